"""Filters that Spark pushes down, as conditions of PostgreSQL that are true for exactly the same rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, LiteralString

from psycopg import sql
from pyspark.sql import datasource as ds

from pgps_spark.columns import Column

__all__ = ["conjunction", "translated"]

_ORDERS: dict[type[ds.Filter], LiteralString] = {
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}
_SAME_EVERYWHERE: dict[type[ds.Filter], LiteralString] = {
    ds.EqualTo: "{name} = {value}",
    ds.EqualNullSafe: "{name} is not distinct from {value}",
}
_OF_TEXT: dict[type[ds.Filter], LiteralString] = {
    ds.StringStartsWith: "starts_with({name}::text, {value})",
    ds.StringEndsWith: "right({name}::text, length({value})) = {value}",
    ds.StringContains: "strpos({name}::text, {value}) > 0",
}
# Types whose equality and order Spark and PostgreSQL agree on.
_SAME = {"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "date", "timestamp", "timestamptz"}
_VALUES = (bool, int, float, Decimal, str, dt.date, dt.datetime)


def conjunction(conditions: Sequence[str]) -> sql.Composable:
    """Return the conjunction of conditions, as text."""
    return sql.SQL(" and ").join(sql.SQL(text) for text in conditions) if conditions else sql.SQL("true")


def translated(given: ds.Filter, columns: Mapping[str, Column]) -> sql.Composable | None:
    """Return the condition for a filter, None if Spark has to evaluate it."""
    if isinstance(given, ds.Not):
        inner = translated(given.child, columns)
        return None if inner is None else sql.SQL("not ({})").format(inner)
    path: tuple[str, ...] = getattr(given, "attribute", ())
    column = columns.get(path[-1]) if len(path) == 1 else None
    if column is None:
        return None
    name = sql.Identifier(column.name)
    if isinstance(given, ds.IsNull):
        return sql.SQL("{} is null").format(name)
    if isinstance(given, ds.IsNotNull):
        return sql.SQL("{} is not null").format(name)
    return _compared(given, column, name)


def _compared(given: Any, column: Column, name: sql.Identifier) -> sql.Composable | None:
    values = list(given.value) if isinstance(given, ds.In) else [given.value]
    if not values or not all(_is_comparable(each, column) for each in values):
        return None
    literals = [_literal(each, column) for each in values]
    if isinstance(given, ds.In):
        return sql.SQL("{} in ({})").format(name, sql.SQL(", ").join(literals))
    order = _ORDERS.get(type(given))
    if order is not None:
        collation = sql.SQL(' collate "C"' if column.is_text else "")
        return sql.SQL("{}{} {} {}").format(name, collation, sql.SQL(order), literals[0])
    template = _SAME_EVERYWHERE.get(type(given)) or (_OF_TEXT.get(type(given)) if column.is_text else None)
    return None if template is None else sql.SQL(template).format(name=name, value=literals[0])


def _is_comparable(value: object, column: Column) -> bool:
    if not isinstance(value, _VALUES) or isinstance(value, str) != column.is_text:
        return False
    return column.is_text or column.type_name in _SAME


def _literal(value: Any, column: Column) -> sql.Composable:
    kind = "text" if column.is_text else column.type_name
    return sql.SQL("{}::{}").format(sql.Literal(str(value)), sql.SQL(kind))
