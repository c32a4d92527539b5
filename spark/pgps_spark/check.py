"""Checks whether a DataFrame fits an event type, before anything is written."""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg
from pyspark.sql import types as t

from pgps.errors import BadArgument, NotPermitted, UnknownName, WrongState
from pgps_spark.errors import database_errors

__all__ = ["Attribute", "EventType", "check", "find_event_type"]

_INTEGERS = {"smallint": 2, "integer": 4, "bigint": 8}
_SIZES: dict[type[t.DataType], int] = {t.ByteType: 1, t.ShortType: 2, t.IntegerType: 4, t.LongType: 8}
_FLOATS = {"real", "double precision"}
_TEXTS = ("text", "character varying", "character", "name", "citext")
_JSON = {"json", "jsonb"}
# Attributes of these types do not accept a column of text: a mistake in a column would show only in the middle of a
# job.
_NOT_FROM_TEXT = {*_INTEGERS, *_FLOATS, "numeric", "boolean", "date", "bytea"}


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an event type, as pgps.event_types says."""

    name: str
    type: str
    not_null: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class EventType:
    """What a publisher has to know of an event type."""

    name: str
    attributes: tuple[Attribute, ...]


def find_event_type(connection: psycopg.Connection, name: str) -> EventType:
    """Return an event type that this role may publish.

    Raises UnknownName, NotPermitted, WrongState (not advertised).
    """
    with database_errors():
        row = connection.execute(
            """
            select t.name, t.attributes, t.can_publish, exists (select from pgps.advertisements a
                where a.event_type = t.name and pg_has_role(current_user, a.role, 'usage'))
            from pgps.event_types t where t.name = %s or t.name = lower(%s)
            order by t.name = %s desc limit 1
            """,
            [name, name, name],
        ).fetchone()
    if row is None:
        raise UnknownName(
            f'event type "{name}" does not exist',
            hint="See pgps.event_types for what this role may use.",
            sqlstate="42704",
        )
    found, attributes, may_publish, advertised = row
    if not may_publish:
        raise NotPermitted(
            f'role "{connection.info.user}" may not publish event type "{found}"',
            hint=f'Ask for: grant insert on pgps_event."{found}" to "{connection.info.user}"',
            sqlstate="42501",
        )
    if not advertised:
        raise WrongState(
            f'role "{connection.info.user}" has not advertised event type "{found}"',
            hint=f"First: select pgps.advertise('{found}')",
            sqlstate="55000",
        )
    return EventType(
        found,
        tuple(
            Attribute(each["name"], each["type"], each["not_null"], each["default"] is not None)
            for each in attributes or ()
        ),
    )


def check(schema: t.StructType, event_type: EventType, *, besides: tuple[str, ...] = ()) -> None:
    """Raise BadArgument when rows of this schema are no events of the type; all that is wrong in one message.

    `besides` are columns that are not attributes, like `_producer`.
    """
    known = {attribute.name: attribute for attribute in event_type.attributes}
    given = {field.name: field for field in schema.fields}
    wrong = [f'column "{name}" is no attribute' for name in given if name not in known and name not in besides]
    wrong += [
        f'attribute "{name}" ({attribute.type}, not null) has no column'
        for name, attribute in known.items()
        if name not in given and attribute.not_null and not attribute.has_default
    ]
    wrong += [
        f'column "{name}" is {field.dataType.simpleString()}, the attribute {known[name].type}'
        for name, field in given.items()
        if name in known and not _fits(field.dataType, known[name].type)
    ]
    if not wrong:
        return
    attributes = ", ".join(f"{a.name} {a.type}{' not null' if a.not_null else ''}" for a in event_type.attributes)
    raise BadArgument(
        f'the DataFrame does not fit event type "{event_type.name}": {"; ".join(wrong)}',
        hint=f"The type has {attributes}. Select, rename or cast the columns.",
        sqlstate="22023",
    )


def _fits(kind: t.DataType, wanted: str) -> bool:
    if isinstance(kind, t.NullType):
        return True
    if isinstance(kind, t.ArrayType):
        return wanted in _JSON or (wanted.endswith("[]") and _fits(kind.elementType, wanted.removesuffix("[]")))
    # "timestamp(3) with time zone" is one of the types with a time zone.
    base = re.sub(r" ?\([\d, ]+\)", "", wanted).strip()
    if isinstance(kind, t.DayTimeIntervalType):
        return base.startswith("interval") or _is_own(base)
    if isinstance(kind, t.StringType):
        return base not in _NOT_FROM_TEXT and not base.startswith("timestamp")
    if isinstance(kind, t.StructType | t.MapType):
        return base in _JSON
    if isinstance(kind, t.IntegralType):
        size = _INTEGERS.get(base)
        return base == "numeric" or base in _FLOATS or (size is not None and _SIZES[type(kind)] <= size)
    if isinstance(kind, t.DecimalType):
        return base == "numeric"
    return base in _targets(kind) or (_is_own(base) and not isinstance(kind, t.YearMonthIntervalType))


def _targets(kind: t.DataType) -> tuple[str, ...]:
    for of, targets in (
        (t.FloatType, ("real", "double precision", "numeric")),
        (t.DoubleType, ("double precision", "numeric")),
        (t.BooleanType, ("boolean",)),
        (t.DateType, ("date", "timestamp without time zone", "timestamp with time zone")),
        (t.TimestampType, ("timestamp with time zone",)),
        (t.TimestampNTZType, ("timestamp without time zone",)),
        (t.BinaryType, ("bytea",)),
    ):
        if isinstance(kind, of):
            return targets
    return ()


def _is_own(base: str) -> bool:
    """Say whether a type is none of those above: a domain or a type of an extension, for PostgreSQL to judge."""
    builtin = {
        *_NOT_FROM_TEXT,
        *_TEXTS,
        *_JSON,
        "timestamp",
        "timestamp without time zone",
        "timestamp with time zone",
        "uuid",
    }
    return base not in builtin and not base.startswith("timestamp")
