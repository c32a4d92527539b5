"""Events as applications get them, and classes of the application for their payloads."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import json
import math
import re
import types
import typing
import uuid
from collections.abc import Callable, Sequence
from keyword import iskeyword
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from pgps.client import _wire
from pgps.client._arguments import refused, seconds, shown
from pgps.client._wire import Attribute, Shape
from pgps.errors import BadArgument, TypeMismatch

__all__ = ["Event", "Handling", "class_source", "event_class", "event_type", "name_of"]

T = TypeVar("T")
C = TypeVar("C", bound=type)

_NAME = "__pgps_event_type__"
# Which annotations fit a data type; what is not listed is not checked.
_FITTING: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "smallint": (int,),
    "integer": (int,),
    "bigint": (int,),
    "real": (float,),
    "double precision": (float,),
    "numeric": (decimal.Decimal,),
    "text": (str,),
    "character varying": (str,),
    "bpchar": (str,),
    "name": (str,),
    "bytea": (bytes,),
    "date": (dt.date,),
    "time without time zone": (dt.time,),
    "time with time zone": (dt.time,),
    "timestamp without time zone": (dt.datetime,),
    "timestamp with time zone": (dt.datetime,),
    "interval": (dt.timedelta,),
    "uuid": (uuid.UUID,),
    "json": (dict, list, str, int, float, bool),
    "jsonb": (dict, list, str, int, float, bool),
}


class Event(NamedTuple, Generic[T]):
    """One event as a subscription gets it.

    `payload` is a dict of the attributes, or an object of the class that the
    subscription was given; values are of the types psycopg gives them.
    `attempt` counts how often it was handed out. A tuple, since making a
    frozen dataclass of eight fields takes four times as long. A time that
    Python has no object for, such as infinity, is the text that it is.
    """

    event_id: int
    event_type: str
    payload: T
    published_at: dt.datetime
    publisher: str
    xid: int
    origin: str
    attempt: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """How a handler is called.

    `transactional`: with the event and a connection, in whose transaction the
    event is acknowledged: what the handler writes there happens exactly once.
    If a handler of a batch fails, the batch is rolled back and handled again,
    each event in a savepoint. `batch`: with a list of events instead of one.
    `timeout`: seconds until it is interrupted, which fails it (`Client` can
    only warn). `retry_in`: seconds until an event that failed comes again.
    """

    transactional: bool = False
    batch: bool = False
    max_events: int | None = None
    timeout: float | None = None
    retry_in: float | None = 1.0

    def __post_init__(self) -> None:
        """Raise BadArgument for a time that is none."""
        for name in ("timeout", "retry_in"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, seconds(given, name))


def event_type(name: str) -> Callable[[C], C]:
    """Say which event type a dataclass stands for; without it, its own name in snake_case."""

    def decorate(cls: C) -> C:
        setattr(cls, _NAME, name)
        return cls

    return decorate


def name_of(given: str | type) -> str:
    """Return the name of an event type: a string itself, or what a class stands for."""
    if isinstance(given, str):
        return given
    if not isinstance(given, type):
        raise refused(
            f"an event type is a string or a class, not {type(given).__name__}: {shown(given)}",
            "Give its name, or the class that stands for it.",
        )
    told = getattr(given, _NAME, None)
    if told is not None:
        return str(told)
    name = given.__name__
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _check_names(shape: Shape) -> None:
    wrong = next((one.name for one in shape.attributes if not one.name.isidentifier() or iskeyword(one.name)), None)
    if wrong is not None:
        raise BadArgument(
            f'attribute "{wrong}" of event type "{shape.event_type}" cannot be a field of a class',
            hint="Use plain dictionaries for events of this type.",
        )


def event_class(shape: Shape) -> type[Any]:
    """Make a frozen dataclass with the attributes of an event type, in their order.

    Raises BadArgument when one has a name that no field can have.
    """
    _check_names(shape)
    made = dataclasses.make_dataclass(
        _class_name(shape.event_type),
        [(one.name, _annotation(one)) for one in shape.attributes],
        frozen=True,
        slots=True,
    )
    return event_type(shape.event_type)(made)


def class_source(shape: Shape) -> str:
    """Return the source of that dataclass, to be kept with an application. Raises BadArgument as event_class."""
    _check_names(shape)
    annotations = [(one.name, _annotation(one), _spelled(one)) for one in shape.attributes]
    modules = sorted(
        {kind.__module__ for _, kind, _ in annotations for kind in _classes(kind)} - {"builtins", "typing"}
    )
    lines = [f"import {module}" for module in modules]
    if any("Any" in spelled for *_, spelled in annotations):
        lines.append("from typing import Any")
    fields = [f"    {name}: {spelled}" for name, _, spelled in annotations] or ["    pass"]
    return "\n".join(
        [
            *sorted([*lines, "from dataclasses import dataclass"]),
            "",
            "from pgps.client import event_type",
            "",
            "",
            f"@event_type({json.dumps(shape.event_type, ensure_ascii=False)})",
            "@dataclass(frozen=True, slots=True)",
            f"class {_class_name(shape.event_type)}:",
            f"    # Event type {shape.event_type}",
            *fields,
            "",
        ]
    )


def checked(cls: type, shape: Shape) -> tuple[str, ...]:
    """Return the attributes that a class wants, in the order of its fields; check that the event type has them.

    Raises TypeMismatch. What the class leaves out is not fetched.
    """
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is no dataclass")
    by_name = {one.name: one for one in shape.attributes}
    hints = typing.get_type_hints(cls)
    wanted = [one.name for one in dataclasses.fields(cls) if one.init]
    for name in wanted:
        attribute = by_name.get(name)
        expected = hints[name]
        if attribute is None:
            raise _mismatch(cls, shape, name, expected, None)
        fitting = _FITTING.get(attribute.base_type)
        known = _classes(expected)
        if fitting and known and not any(issubclass(one, fitting) for one in known):
            raise _mismatch(cls, shape, name, expected, attribute.type)
    return tuple(wanted)


def _mismatch(cls: type, shape: Shape, name: str, expected: Any, found: str | None) -> TypeMismatch:
    has = f"has it as {found}" if found else "has no such attribute"
    return TypeMismatch(
        f'class {cls.__name__} does not fit event type "{shape.event_type}": attribute "{name}" is '
        f"{getattr(expected, '__name__', expected)} there, and the type {has}",
        event_type=shape.event_type,
        attribute=name,
        expected=str(getattr(expected, "__name__", expected)),
        found=found,
        hint=f"See what it would be: pgps client class {shape.event_type}",
    )


class RowReader:
    """Makes events of the rows of pgps_queue.<type>_receive."""

    def __init__(self, event_type: str, names: tuple[str, ...], cls: type | None, shape: Shape | None) -> None:
        self.names = names
        wanted = set(checked(cls, shape)) if cls is not None and shape is not None else None
        self.events = _compiled(event_type, names, cls, wanted)
        """Return events for rows; each has a payload of its own."""


def _compiled(
    event_type: str, names: tuple[str, ...], cls: type | None, wanted: set[str] | None
) -> Callable[[list[tuple[Any, ...]]], list[Event[Any]]]:
    """Return a function that is written for the attributes: a general one took 2.7 us an event, this takes 1.2."""
    values = [f"v{place}" for place in range(len(names))]
    if cls is None:
        payload = "{" + ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True)) + "}"
    else:
        given = [(name, value) for name, value in zip(names, values, strict=True) if wanted is None or name in wanted]
        payload = "cls(" + ", ".join(f"{name}={value}" for name, value in given) + ")"
    source = (
        "lambda rows: [new(Event, (i, event_type, " + payload + ", a, p, x, o, n))"
        " for " + ", ".join(["i", "a", "p", "x", "o", "n", "_", *values]) + " in rows]"
    )
    scope = {"Event": Event, "cls": cls, "event_type": event_type, "new": tuple.__new__}
    # Nothing of it comes from outside but names of attributes: quoted, or those of the class's own fields.
    made: Callable[[list[tuple[Any, ...]]], list[Event[Any]]] = eval(source, scope)  # noqa: S307
    return made


class Reader:
    """Makes payloads of the JSON that pgps.receive returns: values as psycopg would give them."""

    def __init__(self, shape: Shape, cls: type | None) -> None:
        names = checked(cls, shape) if cls is not None else tuple(one.name for one in shape.attributes)
        by_name = {one.name: one for one in shape.attributes}
        self.keys = by_name.keys()
        self._cls = cls
        self._transformer = Transformer()
        self._values = [(name, self._loader(by_name[name])) for name in names]

    def __call__(self, payload: dict[str, Any]) -> Any:
        """Return the payload of one event."""
        values = [
            value if load is None or value is None else load(value)
            for value, load in ((payload.get(name), load) for name, load in self._values)
        ]
        if self._cls is not None:
            return self._cls(*values)
        return dict(zip([name for name, _ in self._values], values, strict=True))

    def _loader(self, attribute: Attribute) -> Callable[[Any], Any] | None:
        if attribute.kind == "c" or attribute.base_type in ("boolean", "text", "character varying"):
            return None
        if attribute.base_type in ("json", "jsonb"):
            return _with_floats
        if attribute.element_oid and attribute.base_type.endswith("[]"):
            one = self._scalar(attribute.element_oid)
            return lambda values: _mapped_deep(one, values)
        return self._scalar(attribute.oid)

    def _scalar(self, oid: int) -> Callable[[Any], Any]:
        load = self._transformer.get_loader(oid, pq.Format.TEXT).load

        def loaded(value: Any) -> Any:
            if isinstance(value, (bool, dict, list)):
                return value
            try:
                return load(str(value).encode())
            except psycopg.DataError:  # Python has no such time
                return value

        return loaded


def _mapped_deep(function: Callable[[Any], Any], values: Any) -> Any:
    if isinstance(values, list):
        return [_mapped_deep(function, one) for one in values]
    return None if values is None else function(values)


def _with_floats(value: Any) -> Any:
    """Return a document as psycopg does: its numbers with a point are floats, unless they are too large for one."""
    if isinstance(value, decimal.Decimal):
        found = float(value)
        return value if math.isinf(found) else found
    if isinstance(value, dict):
        return {key: _with_floats(one) for key, one in value.items()}
    return [_with_floats(one) for one in value] if isinstance(value, list) else value


def loads(text: str) -> Any:
    """Return what JSON says, without rounding a number."""
    return _wire.loads(text, parse_float=decimal.Decimal)


def _class_name(name: str) -> str:
    made = "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", name))
    return made if made.isidentifier() and not iskeyword(made) else f"Event{made}"


def _annotation(attribute: Attribute) -> Any:
    if attribute.base_type.endswith("[]"):
        kind: Any = list
    elif attribute.base_type in ("json", "jsonb"):
        return Any
    else:
        kind = _FITTING.get(attribute.base_type, (typing.Any,))[0]
    return kind if attribute.not_null or kind is Any else kind | None


def _spelled(attribute: Attribute) -> str:
    kind = _annotation(attribute)
    if kind is Any:
        return "Any"
    plain = _classes(kind)[0]
    spelled = plain.__name__ if plain.__module__ == "builtins" else f"{plain.__module__}.{plain.__name__}"
    return spelled if attribute.not_null else f"{spelled} | None"


def _classes(annotation: Any) -> list[type]:
    """Return the classes of an annotation, None left out; [] when anything goes."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts: Sequence[Any] = [one for one in typing.get_args(annotation) if one is not type(None)]
    else:
        parts = [annotation]
    found = [typing.get_origin(one) or one for one in parts]
    return [one for one in found if isinstance(one, type)] if all(isinstance(one, type) for one in found) else []
