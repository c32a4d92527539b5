"""Filters that Spark pushes down, as conditions of PostgreSQL that are true for exactly the same rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from psycopg import sql
from pyspark.sql import datasource as ds

from pgps_spark.columns import Column

__all__ = ["conjunction", "translated"]

_ORDERS: dict[type[ds.Filter], str] = {
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}
# Types whose equality and order Spark and PostgreSQL agree on.
_SAME = {"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "date", "timestamp", "timestamptz"}
_VALUES = (bool, int, float, Decimal, str, dt.date, dt.datetime)


def conjunction(conditions: Sequence[str]) -> sql.Composable:
    """Return conditions, as text, put together."""
    return sql.SQL(" and ").join(sql.SQL(text) for text in conditions) if conditions else sql.SQL("true")  # type: ignore[arg-type]


def translated(given: ds.Filter, columns: Mapping[str, Column]) -> sql.Composable | None:
    """Return the condition for a filter, None when it is Spark's to evaluate."""
    if isinstance(given, ds.Not):
        inner = translated(given.child, columns)
        return None if inner is None else sql.SQL("not ({})").format(inner)
    path = getattr(given, "attribute", ())
    column = columns.get(path[0]) if len(path) == 1 else None
    if column is None:
        return None
    name = sql.Identifier(column.name)
    if isinstance(given, ds.IsNull):
        return sql.SQL("{} is null").format(name)
    if isinstance(given, ds.IsNotNull):
        return sql.SQL("{} is not null").format(name)
    return _compared(given, column, name)


def _compared(given: Any, column: Column, name: sql.Identifier) -> sql.Composable | None:
    value = given.value
    if isinstance(given, ds.In):
        if not value or not all(_is_comparable(each, column) for each in value):
            return None
        return sql.SQL("{} in ({})").format(name, sql.SQL(", ").join(_literal(each, column) for each in value))
    if not _is_comparable(value, column):
        return None
    literal = _literal(value, column)
    if isinstance(given, ds.EqualTo):
        return sql.SQL("{} = {}").format(name, literal)
    if isinstance(given, ds.EqualNullSafe):
        return sql.SQL("{} is not distinct from {}").format(name, literal)
    order = _ORDERS.get(type(given))
    if order is not None:
        collation = sql.SQL(' collate "C"' if column.is_text else "")
        return sql.SQL("{}{} {} {}").format(name, collation, sql.SQL(order), literal)  # type: ignore[arg-type]
    if not column.is_text:
        return None
    if isinstance(given, ds.StringStartsWith):
        return sql.SQL("starts_with({}::text, {})").format(name, literal)
    if isinstance(given, ds.StringEndsWith):
        return sql.SQL("right({}::text, length({})) = {}").format(name, literal, literal)
    if isinstance(given, ds.StringContains):
        return sql.SQL("strpos({}::text, {}) > 0").format(name, literal)
    return None


def _is_comparable(value: object, column: Column) -> bool:
    if not isinstance(value, _VALUES) or isinstance(value, str) != column.is_text:
        return False
    return column.is_text or column.type_name in _SAME


def _literal(value: Any, column: Column) -> sql.Composable:
    kind = "text" if column.is_text else column.type_name
    return sql.SQL("{}::{}").format(sql.Literal(str(value)), sql.SQL(kind))  # type: ignore[arg-type]
