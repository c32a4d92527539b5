"""What goes to the server and what comes back: event types, and values as PostgreSQL has them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import gc
import json
import math
import re
import select
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg
from psycopg import sql
from psycopg.adapt import PyFormat, Transformer

from pgps.client._arguments import refused, require_storable, shown, string
from pgps.errors import BadArgument, UnknownName, from_database

__all__ = [
    "SHAPE",
    "Attribute",
    "Kind",
    "Shape",
    "as_record",
    "columns",
    "document",
    "dumps",
    "has_composites",
    "is_alive",
    "loads",
    "mapped",
    "same_keys",
    "shape_of",
    "storable",
    "uncollected",
]

SHAPE = """
    select a.attname::text, format_type(a.atttypid, a.atttypmod), format_type(a.atttypid, -1), a.atttypid::integer,
        t.typtype::text, t.typelem::integer, a.attnotnull,
        coalesce(pg_get_expr(d.adbin, d.adrelid) ~ 'nextval', false), e.name, e.visibility
    from pgps.event_types e
    join pg_attribute a on a.attrelid = format('pgps_event.%%I', e.name)::regclass
    join pg_type t on t.oid = a.atttypid
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where e.name = %s and a.attnum > 0 and not a.attisdropped and a.attname not in ('_producer', '_producer_seq')
    order by a.attnum
"""
_JSON = (114, 3802)
_OF_JSON = "Give text, numbers that are finite, booleans, None, lists, and dicts with text as keys."
_BINARY = frozenset({int, float, bool, bytes, uuid.UUID, decimal.Decimal, dt.datetime, dt.date, dt.time, dt.timedelta})
_TEXTS = frozenset({"text", "character varying"})
_PLAIN = ("b", "e", "r")


Kind: TypeAlias = type | None
"""The class of an attribute's values; None: several, or nothing but nulls."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an event type: its data type with and without modifier, and what the catalogue tells of it.

    Without one `character` is `bpchar`: by its own name it has length 1.
    """

    name: str
    type: str
    base_type: str
    oid: int
    kind: str
    element_oid: int
    not_null: bool

    @property
    def is_simple(self) -> bool:
        """Whether psycopg knows what to make of a Python value: a document could be meant by anything."""
        return self.kind in _PLAIN and self.oid not in _JSON and self.element_oid not in _JSON

    def takes_binary(self, kind: Kind) -> bool:
        """Whether values of a class mean the same in binary, which takes half the time of text."""
        return kind in _BINARY or (kind is str and self.base_type in _TEXTS)

    @property
    def is_plain(self) -> bool:
        """Whether an array can have its values as they are, an array of arrays or of documents could not."""
        return self.is_simple and self.element_oid == 0


@dataclass(frozen=True, slots=True)
class Shape:
    """The attributes of an event type as they were when it was looked up."""

    event_type: str
    attributes: tuple[Attribute, ...]
    is_direct: bool
    """Whether an INSERT is all it takes, and the last number drawn by it is the event's id."""

    def insertable(self, names: tuple[str, ...], *, many: bool) -> list[Attribute] | None:
        """Return the attributes of these names; None when an INSERT cannot take their values, and pgps.publish must."""
        by_name = {attribute.name: attribute for attribute in self.attributes}
        known = [by_name[name] for name in names if name in by_name]
        if not self.is_direct or not names or len(known) != len(names):
            return None
        return known if all(one.is_plain if many else one.is_simple for one in known) else None

    def insert_one(self, attributes: Sequence[Attribute], *, numbered: bool) -> str:
        """Return the INSERT of one event; with a producer and a number at the end."""
        places = sql.SQL(", ").join([sql.SQL("%s")] * (len(attributes) + 2 * numbered))
        statement = sql.SQL("insert into {} values ({})").format(self._target(attributes, numbered=numbered), places)
        return statement.as_string(None)

    def insert_many(self, attributes: Sequence[Attribute], kinds: Sequence[Kind], *, numbered: bool) -> str:
        """Return the INSERT of events from arrays of these kinds; with a producer and the number before the first."""
        own = _identifiers(attributes)
        arrays = sql.SQL(", ").join(
            sql.SQL("%b::{}[]" if one.takes_binary(kind) else "%s::{}[]").format(sql.SQL(one.base_type))
            for one, kind in zip(attributes, kinds, strict=True)
        )
        statement = sql.SQL(
            "insert into {} select {}{} from unnest({}) with ordinality u({}, pgps_place) order by pgps_place"
        )
        numbers = sql.SQL(", %s::text, %s::bigint + pgps_place" if numbered else "")
        target = self._target(attributes, numbered=numbered)
        return statement.format(target, own, numbers, arrays, own).as_string(None)

    def _target(self, attributes: Sequence[Attribute], *, numbered: bool) -> sql.Composed:
        more = sql.SQL(", _producer, _producer_seq" if numbered else "")
        endpoint = sql.Identifier("pgps_event", self.event_type)
        return sql.SQL("{} ({}{})").format(endpoint, _identifiers(attributes), more)


def _identifiers(attributes: Sequence[Attribute]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(one.name) for one in attributes)


def folded(name: str) -> str:
    """Return a name as the catalogue has it: without its quotes, or folded, unless it is not fit for SQL without.

    Raises BadArgument for what is no string.
    """
    string(name, "a name", "Give the name as text.")
    if name.endswith("*"):
        return folded(name[:-1]) + "*"
    if len(name) > 2 and name[0] == name[-1] == '"':
        return name[1:-1].replace('""', '"')
    # SQL folds A to Z and nothing else.
    return re.sub("[A-Z]+", lambda m: m[0].lower(), name) if re.fullmatch(r"[^\W\d][\w$]*", name) else name


def shape_of(name: str, rows: Sequence[tuple[Any, ...]]) -> Shape:
    """Return the shape of an event type from the rows of SHAPE. Raises UnknownName when there are none."""
    if not rows:
        raise UnknownName(
            f'event type "{name}" does not exist, or may not be used',
            hint="See pgps.event_types; ask for INSERT or SELECT on it.",
            sqlstate="42704",
        )
    attributes = tuple(Attribute(*row[:7]) for row in rows)
    draws = any(row[7] for row in rows)
    return Shape(rows[0][8], attributes, rows[0][9] == "deferred" and not draws)


def as_record(payload: Any) -> Mapping[str, Any]:
    """Return an event's attributes. Raises BadArgument for what is neither a mapping nor a dataclass."""
    if isinstance(payload, Mapping):
        return payload
    if dataclasses.is_dataclass(payload) and not isinstance(payload, type):
        return {one.name: getattr(payload, one.name) for one in dataclasses.fields(payload)}
    raise BadArgument(
        f"an event is a mapping or a dataclass, not {type(payload).__name__}",
        hint="Give {'attribute': value, …}.",
        sqlstate="22023",
    )


def same_keys(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | None:
    """Return the attributes that all records have; None when they differ: what is left out takes its default."""
    first = records[0].keys()
    return tuple(first) if all(record.keys() == first for record in records) else None


def has_composites(attributes: Sequence[Attribute], record: Mapping[str, Any]) -> bool:
    """Tell whether a record has mappings or dataclass objects in an array, which the broker takes apart itself."""
    return any(one.element_oid != 0 and _holds_mapping(record[one.name]) for one in attributes)


def _holds_mapping(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_mapping, value))
    return isinstance(value, Mapping) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def columns(columns_of: Sequence[list[Any]]) -> tuple[list[list[Any]], list[Kind]]:
    """Return an array for each attribute, and its class; values of several go as text: any type takes it."""
    found: list[list[Any]] = []
    classes: list[Kind] = []
    for values in columns_of:
        kinds = set(map(type, values)) - {type(None)}
        found.append(values if len(kinds) < 2 else [None if one is None else _text(one) for one in values])
        classes.append(kinds.pop() if len(kinds) == 1 else None)
    return found, classes


def dumps(records: Sequence[Mapping[str, Any]], shape: Shape | None = None) -> str:
    """Return JSON for pgps.publish, an array unless it is one record. Raises BadArgument.

    JSON has no numbers that are not finite. With a shape they are, outside of
    documents, the text that PostgreSQL reads.
    """
    if shape is not None:
        simple = {one.name for one in shape.attributes if one.is_simple}
        records = [
            {name: _finite(value) if name in simple else value for name, value in record.items()} for record in records
        ]
    whole = records if len(records) > 1 else records[0]
    return document(whole, _for_json)


def document(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON for PostgreSQL. Raises BadArgument for what JSON, or jsonb, has no place for."""
    try:
        text = json.dumps(value, default=default, allow_nan=False)
    except (TypeError, ValueError, RecursionError, psycopg.Error) as error:
        raise refused(f"JSON cannot have {shown(value)}: {error}", _OF_JSON) from error
    if "\\u0000" in text or "\\ud" in text:
        require_storable(loads(text))
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def loads(text: str | bytes, **options: Any) -> Any:
    """Return what JSON says; a whole number with more digits than Python takes for an int is a Decimal.

    `options`: those of json.loads.
    """
    try:
        return json.loads(text, **options)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # PostgreSQL takes 131072 digits, Python 4300: whoever publishes one must not stop those who receive.
        return json.loads(text, parse_int=_whole, **options)


def _whole(digits: str) -> int | decimal.Decimal:
    try:
        return int(digits)
    except ValueError:
        return decimal.Decimal(digits)


def _for_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_record(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    return _text(value)


def _text(value: Any) -> str:
    """Return a value as PostgreSQL reads it."""
    if isinstance(value, (str, int, float, decimal.Decimal)) and not isinstance(value, bool):
        return str(value)
    dumped = Transformer().get_dumper(value, PyFormat.TEXT).dump(value)
    return bytes(dumped or b"").decode()


def storable(text: str) -> str:
    """Return a text as PostgreSQL takes it: what it has no room for, NUL and halves of surrogate pairs, is spelled."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


@contextlib.contextmanager
def mapped() -> Iterator[None]:
    """Turn what PostgreSQL reports into the errors of pgps."""
    try:
        yield
    except psycopg.Error as error:
        raise from_database(error) from error


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Put off the garbage collector for a moment: looking at young rows again and again took 1.3 of 6.9 us an event.

    For blocks that make many objects, and no cycles, without waiting for anything.
    """
    if not gc.isenabled():  # the application's own affair
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def is_alive(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return False when the server has hung up on an idle connection; costs a system call, no round trip."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    try:
        while poll.poll(0):
            connection.pgconn.consume_input()
    except (psycopg.OperationalError, OSError):
        return False
    return True
