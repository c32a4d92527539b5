"""Values of expressions: in Python for candidates of the detector, in Spark's SQL for the predicates of leaves."""

from __future__ import annotations

import datetime as dt
import math
import operator
import re
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pgps_spark.detecting.language import AGGREGATES, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pgps_spark.detecting.language import Node

__all__ = ["condition_of", "value_of"]

_DIGITS = 60
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_SIGNS: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_CALLED: dict[str, Callable[[Any], Any]] = {"abs": abs, "length": len, "lower": str.lower, "upper": str.upper}


def value_of(node: Node, bound: Mapping[str, Any]) -> Any:
    """Return the value of an expression; None is NULL.

    `bound`: for each alias the attributes of its event, None where it has none, or a list of such for a set. Raises
    ArithmeticError for what PostgreSQL raises, too: a division by zero.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        return _value(node, bound)


def _value(node: Node, bound: Mapping[str, Any]) -> Any:
    if node.op == "literal":
        return node.value
    if node.op == "column":
        row = bound.get(node.value[0])
        return None if row is None else row.get(node.value[1])
    if node.op in AGGREGATES:
        return _aggregate(node, bound)
    if node.op in ("and", "or"):
        return _connected(node, bound)
    return _applied(node, bound)


def _applied(node: Node, bound: Mapping[str, Any]) -> Any:
    values = [_value(part, bound) for part in node.parts]
    if node.op == "is null":
        return values[0] is None
    if node.op == "coalesce":
        return next((value for value in values if value is not None), None)
    if any(value is None for value in values):
        return None
    if node.op == "not":
        return not values[0]
    if node.op == "like":
        return _pattern(node.value).fullmatch(values[0]) is not None
    if node.op in _CALLED:
        return _CALLED[node.op](values[0])
    return "".join(map(str, values)) if node.op == "||" else _computed(node, *values)


def _connected(node: Node, bound: Mapping[str, Any]) -> Any:
    """Return AND or OR of two conditions, of which each may be unknown."""
    decides = node.op == "or"
    first = _value(node.parts[0], bound)
    if first is decides:
        return decides
    second = _value(node.parts[1], bound)
    if second is decides:
        return decides
    return None if first is None or second is None else not decides


def _computed(node: Node, left: Any, right: Any) -> Any:
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
        if node.op in _COMPARED:
            return _COMPARED[node.op](_in_order(left), _in_order(right))
    elif isinstance(left, Decimal) != isinstance(right, Decimal) and isinstance(left, (int, Decimal)):
        if isinstance(right, (int, Decimal)):
            left, right = Decimal(left), Decimal(right)
    if node.op in _COMPARED:
        return _COMPARED[node.op](left, right)
    if node.parts[0].kind == "date" and isinstance(right, int):
        right = dt.timedelta(days=right)
    if node.op in _SIGNS:
        found = _SIGNS[node.op](left, right)
        return found.days if node.kind == "int" and isinstance(found, dt.timedelta) else found
    if right == 0:
        raise ZeroDivisionError("division by zero")
    if node.op == "%":
        return left - right * _truncated(left, right) if isinstance(left, int) else left % right
    return _truncated(left, right) if isinstance(left, int) else left / right


def _in_order(value: Any) -> Any:
    """Return what PostgreSQL orders floating-point numbers by: NaN is equal to NaN, and above all others."""
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value)
    return value


def _truncated(left: int, right: int) -> int:
    found = abs(left) // abs(right)
    return found if (left < 0) == (right < 0) else -found


def _aggregate(node: Node, bound: Mapping[str, Any]) -> Any:
    part = node.parts[0]
    alias = _alias_of(part)
    rows = bound.get(alias) or []
    if part.op == "event":
        return len(rows)
    values = [value for value in (_value(part, {**bound, alias: row}) for row in rows) if value is not None]
    if node.op == "count":
        return len(values)
    if not values:
        return None
    if node.op in ("min", "max"):
        return min(values, key=_in_order) if node.op == "min" else max(values, key=_in_order)
    total = sum(values[1:], values[0])
    if node.op == "sum":
        return total
    return total / len(values) if isinstance(total, float) else Decimal(total) / len(values)


def _alias_of(node: Node) -> str:
    if node.op in ("column", "event"):
        return str(node.value[0])
    return next((found for found in map(_alias_of, node.parts) if found), "")


@lru_cache(maxsize=1000)
def _pattern(like: str) -> re.Pattern[str]:
    """Return a pattern of LIKE as a regular expression."""
    parts, escaped = [], False
    for character in like:
        if escaped or character not in "\\%_":
            parts.append(re.escape(character))
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            parts.append(".*" if character == "%" else ".")
    return re.compile("".join(parts), re.DOTALL)


def condition_of(node: Node) -> str:
    """Return the predicate of a leaf in Spark's SQL, where it has the same value."""
    parts = [condition_of(part) for part in node.parts]
    if node.op == "literal":
        return _literal(node)
    if node.op == "column":
        return "`" + str(node.value[1]).replace("`", "``") + "`"
    if node.op == "is null":
        return f"({parts[0]} is null)"
    if node.op == "not":
        return f"(not {parts[0]})"
    if node.op == "like":
        return f"({parts[0]} like {_quoted(node.value)})"
    if node.op in ("abs", "coalesce", "length", "lower", "upper"):
        return f"{node.op}({', '.join(parts)})"
    if node.op == "-" and node.kind in ("interval", "int") and node.parts[0].kind in ("time", "date"):
        raise refuse("the difference of two times in the predicate of a leaf is not evaluated in Spark")
    if node.op == "/" and node.kind == "int":
        return f"({parts[0]} div {parts[1]})"
    return f"({parts[0]} {node.op} {parts[1]})"


def _literal(node: Node) -> str:
    value = node.value
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dt.timedelta):
        return f"interval {_quoted(str(value // dt.timedelta(microseconds=1)))} microsecond"
    if isinstance(value, dt.datetime):
        return f"timestamp {_quoted(value.isoformat())}"
    if isinstance(value, dt.date):
        return f"date {_quoted(value.isoformat())}"
    if isinstance(value, float):
        return f"double({_quoted(repr(value))})"
    if isinstance(value, str):
        return _quoted(value)
    return f"{value:f}BD" if isinstance(value, Decimal) else str(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
