"""Values for the attributes of events that a test does not care about."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from pgps.errors import BadArgument, UnknownName

__all__ = ["Needed", "attributes_of", "value_for"]

# Domains are resolved, however many there are one upon the other.
_ATTRIBUTES = """
    with recursive base (number, oid, modifier) as (
        select a.attnum, a.atttypid, a.atttypmod
        from pgps.event_types e join pg_attribute a on a.attrelid = format('pgps_event.%%I', e.name)::regclass
        where e.name = %s and a.attnum > 0 and not a.attisdropped and a.attname not in ('_producer', '_producer_seq')
        union all
        select b.number, t.typbasetype, t.typtypmod from base b join pg_type t on t.oid = b.oid where t.typtype = 'd'
    )
    select a.attname::text, format_type(t.oid, b.modifier), a.attnotnull and not a.atthasdef, t.typcategory = 'A',
        (select l.enumlabel::text from pg_enum l where l.enumtypid = t.oid order by l.enumsortorder limit 1), e.name
    from pgps.event_types e
    join pg_attribute a on a.attrelid = format('pgps_event.%%I', e.name)::regclass
    join base b on b.number = a.attnum
    join pg_type t on t.oid = b.oid and t.typtype <> 'd'
    where e.name = %s
    order by a.attnum
"""


@dataclass(frozen=True, slots=True)
class Needed:
    """An attribute: its data type without domains, and whether an event has to have a value for it."""

    name: str
    type: str
    is_required: bool
    is_array: bool
    label: str | None
    event_type: str


_MORNING = dt.datetime(2026, 1, 1, 8, tzinfo=dt.UTC)
_VALUES: dict[str, Callable[[int], Any]] = {
    "smallint": lambda n: n,
    "integer": lambda n: n,
    "bigint": lambda n: n,
    "numeric": decimal.Decimal,
    "real": float,
    "double precision": float,
    "boolean": lambda _: True,
    "bytea": lambda n: str(n).encode(),
    "date": lambda n: (_MORNING + dt.timedelta(days=n)).date(),
    "time without time zone": lambda n: (_MORNING + dt.timedelta(seconds=n)).time(),
    "timestamp without time zone": lambda n: (_MORNING + dt.timedelta(seconds=n)).replace(tzinfo=None),
    "timestamp with time zone": lambda n: _MORNING + dt.timedelta(seconds=n),
    "interval": lambda n: dt.timedelta(seconds=n),
    "uuid": lambda n: uuid.UUID(int=n),
    "json": lambda n: {"n": n},
    "jsonb": lambda n: {"n": n},
    "inet": lambda _: "127.0.0.1",
}
# numeric(10,2), timestamp(3) with time zone
_MODIFIER = re.compile(r"\([\d,]+\)")
_TEXT = re.compile(r"(?:text|name|citext|character varying|character)(?:\((\d+)\))?")


def attributes_of(connection: psycopg.Connection, event_type: str) -> list[Needed]:
    """Return the attributes of an event type, in order. Raises UnknownName when it does not exist."""
    found = [Needed(*row) for row in connection.execute(_ATTRIBUTES, [event_type, event_type])]
    if not found:
        raise UnknownName(f'event type "{event_type}" does not exist', hint="Create it: broker.event_type(…).")
    return found


def value_for(attribute: Needed, number: int) -> Any:
    """Return a value for the attribute, another one for each number where the type has as many."""
    if attribute.is_array:
        return []
    if attribute.label is not None:
        return attribute.label
    text = _TEXT.fullmatch(attribute.type)
    if text is not None:
        value = f"{attribute.name} {number}"
        return value if text[1] is None else value[-int(text[1]) :]
    make = _VALUES.get(_MODIFIER.sub("", attribute.type))
    if make is None:
        raise BadArgument(
            f'no value is known for attribute "{attribute.name}" of event type "{attribute.event_type}",'
            f" of data type {attribute.type}",
            hint=f"Give one: {attribute.name}=….",
        )
    return make(number)
