"""How columns of PostgreSQL and of Spark correspond, and how values travel: as CSV, parsed and written by Arrow."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import types as t

__all__ = ["Column", "columns_of", "schema_of"]

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
# Compared as text, byte by byte, in both worlds.
_TEXTS = {"text", "varchar", "name"}
_ELEMENTS = {"bool", "int2", "int4", "int8", "float4", "float8", "text", "varchar"}
# numeric without a precision, as Spark's own JDBC source reads it.
_NUMERIC = t.DecimalType(38, 18)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation: its name, its type in PostgreSQL (`int4`, `_text` for an array) and in Spark."""

    name: str
    type_name: str
    type: t.DataType

    @property
    def is_text(self) -> bool:
        """Whether both worlds compare its values as text."""
        return self.type_name in _TEXTS

    def selected(self) -> sql.Composable:
        """Return the expression that COPY takes: what Arrow's CSV reader understands."""
        column = sql.Identifier(self.name)
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
            return lambda text: json.loads(text, parse_float=Decimal if self._is_decimal() else float)
        return base64.b64decode if isinstance(self.type, t.BinaryType) else None

    def _is_decimal(self) -> bool:
        return isinstance(self.type, t.ArrayType) and isinstance(self.type.elementType, t.DecimalType)


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
    found = {name: Column(name, type_name, _type_of(type_name, modifier)) for name, type_name, modifier in rows}
    return list(found.values()) if names is None else [found[name] for name in names if name in found]


def schema_of(columns: Sequence[Column]) -> t.StructType:
    """Return the schema that Spark shows."""
    return t.StructType([t.StructField(column.name, column.type, True) for column in columns])
