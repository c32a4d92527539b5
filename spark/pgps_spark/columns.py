"""How columns of PostgreSQL and of Spark correspond, and how values travel: as CSV, parsed and written by Arrow.

PostgreSQL knows values that Spark has no word for: a `numeric` of any size, NaN among them, infinite dates, years
before 1 and behind 9999. The server itself looks for these while it copies, so that none is read as another value.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import types as t

__all__ = ["EVENT", "MISFIT", "Column", "columns_of", "has_misfits", "schema_of", "selection"]

_PLAIN: dict[str, t.DataType] = {
    "bool": t.BooleanType(),
    "int2": t.ShortType(),
    "int4": t.IntegerType(),
    "int8": t.LongType(),
    "float4": t.FloatType(),
    "float8": t.DoubleType(),
    "date": t.DateType(),
    "timestamp": t.TimestampNTZType(),
    "timestamptz": t.TimestampType(),
    "text": t.StringType(),
    "varchar": t.StringType(),
    "name": t.StringType(),
    "bytea": t.BinaryType(),
}
# Values of these types are compared as text, byte by byte, by Spark and by PostgreSQL.
_TEXTS = {"text", "varchar", "name"}
_ELEMENTS = {"bool", "int2", "int4", "int8", "float4", "float8", "text", "varchar"}
# numeric without a precision, as Spark's own JDBC source reads it.
_NUMERIC = t.DecimalType(38, 18)
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LAST_DAY = "9999-12-31"
# The first and the last value that Spark has, as PostgreSQL writes them.
_BOUNDS = {
    "date": ("0001-01-01", _LAST_DAY),
    "timestamp": ("0001-01-01 00:00:00", f"{_LAST_DAY} 23:59:59.999999"),
    "timestamptz": ("0001-01-01 00:00:00+00", f"{_LAST_DAY} 23:59:59.999999+00"),
}
MISFIT = "pgps_misfit"
"""The column in which the server says what of a row Spark cannot represent; null for most."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation: its name, its type in PostgreSQL (`int4`, `_text` for an array) and in Spark."""

    name: str
    type_name: str
    type: t.DataType
    # Whether the type in PostgreSQL has no values that `type` has not, except for NaN.
    is_declared: bool = False
    # Its name in the relation, where that is another one.
    source: str | None = None

    @property
    def is_text(self) -> bool:
        """Whether both worlds compare its values as text."""
        return self.type_name in _TEXTS

    def selected(self) -> sql.Composable:
        """Return the expression that COPY takes: what Arrow's CSV reader understands, null for what it cannot."""
        unfit = self.unfit()
        if unfit is None:
            return self._written()
        return sql.SQL("case when not coalesce({}, false) then {} end").format(unfit, self._written())

    def unfit(self) -> sql.Composable | None:
        """Return the condition under which Spark's type has no such value, None when there are no such values."""
        column = self._column()
        if isinstance(self.type, t.ArrayType):
            return sql.SQL("array_ndims({}) > 1").format(column)
        if isinstance(self.type, t.DecimalType) and self.type_name == "numeric":
            if self.is_declared:
                return sql.SQL("{} = 'NaN'").format(column)
            # NaN and infinity are greater than every number; a number that has to be rounded would become another one.
            return sql.SQL("abs({0}) >= {1} or scale({0}) > {2} and scale(trim_scale({0})) > {2}").format(
                column,
                sql.Literal(Decimal(10) ** (self.type.precision - self.type.scale)),
                sql.Literal(self.type.scale),
            )
        if self.type == _PLAIN.get(self.type_name) and self.type_name in _BOUNDS:
            return sql.SQL("{} not between {} and {}").format(column, *map(sql.Literal, _BOUNDS[self.type_name]))
        return None

    def _column(self) -> sql.Composable:
        return sql.Identifier(self.source or self.name)

    def _written(self) -> sql.Composable:
        column = self._column()
        if isinstance(self.type, t.ArrayType):
            return sql.SQL("to_json({})::text").format(column)
        if isinstance(self.type, t.BinaryType):
            return sql.SQL("encode({}, 'base64')").format(column)
        if isinstance(self.type, t.StringType) and not self.is_text:
            return sql.SQL("{}::text").format(column)
        return column

    def parsed_as(self, wanted: pa.DataType) -> pa.DataType:
        """Return the Arrow type the CSV reader is told, for a column that becomes `wanted`."""
        return pa.string() if isinstance(self.type, t.ArrayType | t.BinaryType) else wanted

    def finished(self, values: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray | pa.Array:
        """Return what was parsed as the type that Spark wants."""
        decode = self._decoder()
        if decode is None:
            return values
        return pa.array([None if v is None else decode(v) for v in values.to_pylist()], type=wanted)

    def _decoder(self) -> Callable[[str], Any] | None:
        if isinstance(self.type, t.ArrayType):
            # JSON has no NaN and no infinity: PostgreSQL writes them as strings.
            if isinstance(self.type.elementType, t.FloatType | t.DoubleType):
                return lambda text: [_FLOATS.get(v, v) if isinstance(v, str) else v for v in json.loads(text)]
            return json.loads
        return base64.b64decode if isinstance(self.type, t.BinaryType) else None


EVENT = Column("pgps_event_id", "int8", t.LongType(), source="event_id")
"""An event's id as it is, read beside a column event_id that a schema wants as a type that is too narrow for it."""


def selection(columns: Sequence[Column]) -> sql.Composable:
    """Return what COPY selects for columns: their values, and MISFIT when one of them may have no value in Spark."""
    chosen = [column.selected() for column in columns]
    complaints = [
        sql.SQL("case when {} then json_build_array({}, {}::text, {})::text end").format(
            unfit,
            sql.Literal(column.name),
            column._column(),
            sql.Literal(column.type.simpleString()),
        )
        for column in columns
        if (unfit := column.unfit()) is not None
    ]
    if complaints:
        told = sql.SQL("nullif(concat_ws(',', {}), '')").format(sql.SQL(", ").join(complaints))
        chosen.append(sql.SQL("{} as {}").format(told, sql.Identifier(MISFIT)))
    return sql.SQL(", ").join(chosen)


def has_misfits(columns: Sequence[Column]) -> bool:
    """Say whether `selection` of these columns has MISFIT."""
    return any(column.unfit() is not None for column in columns)


def _type_of(type_name: str, modifier: int) -> t.DataType:
    if type_name == "numeric":
        precision, scale = ((modifier - 4) >> 16) & 0xFFFF, (modifier - 4) & 0x7FF
        if modifier < 4 or precision > 38 or scale > precision:
            return _NUMERIC
        return t.DecimalType(precision, scale)
    if type_name.startswith("_") and type_name[1:] in _ELEMENTS:
        return t.ArrayType(_PLAIN[type_name[1:]])
    return _PLAIN.get(type_name, t.StringType())


def columns_of(connection: psycopg.Connection, relation: str, names: Sequence[str] | None = None) -> list[Column]:
    """Return the columns of a view, all or those named, in that order; domains as what they stand for."""
    rows = connection.execute(
        """
        select a.attname, coalesce(b.typname, y.typname), case when b.oid is null then a.atttypmod else y.typtypmod end
        from pg_attribute a
        join pg_type y on y.oid = a.atttypid
        left join pg_type b on y.typtype = 'd' and b.oid = y.typbasetype
        where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum
        """,
        [relation],
    ).fetchall()
    found = {
        name: Column(name, type_name, kind, modifier >= 4 and kind is not _NUMERIC)
        for name, type_name, modifier in rows
        for kind in [_type_of(type_name, modifier)]
    }
    return list(found.values()) if names is None else [found[name] for name in names if name in found]


def schema_of(columns: Sequence[Column]) -> t.StructType:
    """Return the schema that Spark shows."""
    return t.StructType([t.StructField(column.name, column.type, True) for column in columns])
