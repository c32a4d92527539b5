"""One partition key of a composite event: the broker's detector over its events, and its state between two calls.

This runs in Spark's Python workers. Nothing stays there: what is open goes into Spark's state store as JSON, so a query
that was stopped or killed goes on from its checkpoint.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import time
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pgps.errors import BadArgument, WrongState
from pgps_spark.detecting.evaluating import value_of
from pgps_spark.detecting.language import read
from pgps_spark.detecting.modules import module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Detected", "Job", "Row", "Step", "take"]

_log = logging.getLogger(__name__)
_SILENT_SECONDS = 10.0
POSITION_BITS = 48  # of the second column of the order
_LARGEST = {"smallint": 1 << 15, "int": 1 << 31, "bigint": 1 << 63}


@dataclass(frozen=True, slots=True)
class Job:
    """Hold what a task has to know, as text: it travels with the plan.

    given: the definition, in JSON. intervals: event types whose events have a beginning. kinds: of each event type the
    attributes that the definition uses, with their kinds, in JSON. types: Spark's types of the attributes of the
    composite event.
    """

    given: str
    intervals: tuple[str, ...]
    kinds: str
    types: tuple[str, ...]


class Row(NamedTuple):
    """Hold an event for one leaf, times in microseconds since 1970; position: its place among those of its time."""

    leaf: int
    at: int
    position: int
    event_type: str
    event_id: int
    origin: str | None
    payload: str
    starts: int | None = None
    ends: int | None = None


class Detected(NamedTuple):
    """Hold a detection, as text where its type is not always the same."""

    starts: int
    ends: int
    detected: int
    constituents: str
    attributes: tuple[str | None, ...]
    error: str | None


class Step(NamedTuple):
    """Hold what a step gives: the state (None: nothing is open), when time has something to do, and detections."""

    state: str | None
    due: int | None
    found: list[Detected]


class _Troubles:
    """Say in the log of the task what the broker tells of a composite event: last_error and given_up; not too often."""

    def __init__(self) -> None:
        self.faults = self.given_up = 0
        self.silent_until = 0.0

    def note(self, key: str, changes: Any) -> None:
        """Count what a step has brought, and log it, at most every ten seconds."""
        self.faults += len(changes.faults)
        self.given_up += len(changes.given_up)
        if not (changes.faults or changes.given_up) or time.monotonic() < self.silent_until:
            return
        if changes.faults:
            last, text = changes.faults[-1], "the filter raised %s times, and detects nothing there; key %s: %s (%s)"
            _log.warning(text, self.faults, key, last.error or type(last.error).__name__, last.text)
        if changes.given_up:
            _log.warning("max_open is reached, and %s open occurrences were given up; key %s", self.given_up, key)
        self.faults = self.given_up = 0
        self.silent_until = time.monotonic() + _SILENT_SECONDS


class _Known:
    """Hold the graph of a definition, and what evaluates its expressions."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.definition = module("composite.described").define_from(json.loads(job.given))
        (self.graph,) = module("composite.graph").build([self.definition], job.intervals)
        self.digest = hashlib.sha256(repr(job).encode()).hexdigest()[:16]
        self.nodes = [node.name for node in module("composite.described").leaf_nodes(self.definition, self.graph)]
        self.kinds: dict[str, dict[str, str]] = json.loads(job.kinds)
        self.alias_types = {alias.name: alias.type for alias in self.definition.aliases if alias.name}
        sets = frozenset(alias.name for alias in self.definition.aliases if alias.name and alias.many)
        columns = {name: self.kinds[kind] for name, kind in self.alias_types.items()}
        self.conditions = {
            one.text: partial(self.holds, read(one.text, "filter", columns, sets)) for one in self.definition.conditions
        }
        self.attributes = [read(one.text, "attributes", columns, sets) for one in self.definition.attributes]
        self.troubles = _Troubles()
        self.event = lru_cache(maxsize=10_000)(self.read_event)

    def read_event(self, event_type: str, payload: str) -> dict[str, Any]:
        """Return the attributes of an event as expressions take them."""
        found = json.loads(payload, parse_float=Decimal)
        kinds = self.kinds[event_type].items()
        return {name: _READERS[kind](found[name]) for name, kind in kinds if found.get(name) is not None}

    def bound(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return what names stand for, from payloads."""
        return {
            name: [self.event(self.alias_types[name], one) for one in value]
            if isinstance(value, list)
            else None
            if value is None
            else self.event(self.alias_types[name], value)
            for name, value in given.items()
        }

    def holds(self, node: Any, given: dict[str, Any]) -> bool | None:
        """Tell whether a condition is true of a candidate."""
        return value_of(node, self.bound(given))  # type: ignore[no-any-return]

    def tell(self, found: Any) -> Detected:
        """Return a detection; attributes that raise are left out, with the reason."""
        one, points, told = found.occurrence, module("composite.points"), module("composite.told")
        values: tuple[str | None, ...] = (None,) * len(self.attributes)
        error = None
        try:
            parts = told.write_parts(self.definition, one)
        except module("lexer").SqlTextError as raised:
            parts, error = told.write_few(self.definition, one), str(raised)
        if self.attributes and error is None:
            try:
                bound = self.bound(module("composite.occurrences").bind(self.definition, one))
                values = tuple(
                    _written(value_of(node, bound), kind)
                    for node, kind in zip(self.attributes, self.job.types, strict=True)
                )
            except (ArithmeticError, TypeError, ValueError) as raised:
                error = str(raised) or type(raised).__name__
        return Detected(
            points.time_of(one[points.START]), points.time_of(one[points.END]), points.time_of(found.point),
            parts, values, error,
        )  # fmt: skip


@lru_cache(maxsize=16)
def _known(job: Job) -> _Known:
    return _Known(job)


def take(job: Job, key: str, rows: Iterable[Row], stored: str | None, frontier: int | None) -> Step:
    """Take events of a key, in any order, and let time pass up to `frontier`, before which all have come.

    `stored` is the state that the step before returned. Raises WrongState when it is of another definition, BadArgument
    for two events that nothing puts in order.
    """
    known = _known(job)
    state = module("composite.detector").State(known.graph, known.conditions)
    partition: Any = key if known.graph.frame.partitioned else ()
    open_rows = _restore(known, state, partition, stored)
    events = _events(known, rows, partition, _waiting(state, partition))
    changes, found = module("composite.detector").detect(state, events, frontier)
    known.troubles.note(key, changes)
    told = [known.tell(one) for one in found]
    if not changes.keys:
        # Nothing is open any more; or nothing was to be done, and what is to be done is what it was.
        kept = None if changes.dropped else stored
        return Step(kept, json.loads(kept)[2][-1] if kept else None, told)
    shapes = module("composite.rows")
    for gone in changes.closed:
        open_rows.pop((gone.node, gone.slot, gone.serial), None)
    for row in changes.opened:
        if row.slot != shapes.HELD:
            open_rows[row.node, row.slot, row.serial] = row
    # What waits is told apart by its point: an order of the user's may begin anew with each time.
    held = [shapes.held_row(partition, name, point, one) for point, name, one in state.keys[partition].held]
    (key_row,) = changes.keys
    dumped = [known.digest, changes.ordering, key_row[1:], [row[1:] for row in (*open_rows.values(), *held)]]
    return Step(json.dumps(dumped, ensure_ascii=False, separators=(",", ":")), key_row.due, told)


def _restore(known: _Known, state: Any, partition: Any, stored: str | None) -> dict[tuple[str, int, int], Any]:
    if stored is None:
        return {}
    shapes = module("composite.rows")
    name, ordering, key_row, dumped = json.loads(stored)
    if name != known.digest:
        raise WrongState(
            "the checkpoint is of another definition of the composite event",
            hint="Start it with a new checkpointLocation; what was open is forgotten then.",
            sqlstate="55000",
        )
    rows = [shapes.Row(partition, *row) for row in dumped]
    state.load(ordering, [shapes.KeyRow(partition, *key_row)], rows)
    return {(row.node, row.slot, row.serial): row for row in rows if row.slot != shapes.HELD}


def _waiting(state: Any, partition: Any) -> dict[int, dict[str, tuple[Any, ...]]]:
    """Return what waits for the watermark: at each point the leaves, with id, origin and payload of the event."""
    found: dict[int, dict[str, tuple[Any, ...]]] = {}
    kept = state.keys.get(partition)
    for point, name, occurrence in kept.held if kept else ():
        found.setdefault(point, {})[name] = tuple(occurrence[4:])
    return found


def _events(
    known: _Known, rows: Iterable[Row], partition: Any, waiting: dict[int, dict[str, tuple[Any, ...]]]
) -> list[Any]:
    """Return rows as events, each once. Raises BadArgument for two events that nothing puts in order."""
    points = module("composite.points")
    found: dict[tuple[int, int], Any] = {}
    for row in rows:
        match = (known.nodes[row.leaf], partition)
        itself = (row.event_id, row.origin, row.payload)
        there = waiting.get(points.point_of(row.at, row.position), {})
        event = found.get((row.at, row.position))
        others = {*there.values()} if event is None else {*there.values(), (event.id, event.origin, event.payload)}
        if others - {itself}:
            ((other, *_), *_) = others - {itself}
            raise BadArgument(
                f"events {other} and {row.event_id} of type {row.event_type} have the same time and the same order",
                hint="Give order_by that tells them apart, as order_by=('batch_id', 'event_id').",
                sqlstate="22023",
            )
        if match[0] in there:
            # It came before, and waits.
            continue
        if event is None:
            span = None
            if row.starts is not None and row.ends is not None:
                span = (points.point_of(row.starts, 0), points.point_of(row.ends, row.position))
            event = points.Event(
                row.position, row.at, row.event_type, row.payload, row.event_id, row.origin, None, None, [], span
            )
            found[row.at, row.position] = event
        # Leaves that differ in their alias alone are one node.
        if match not in event.matches:
            event.matches.append(match)
    return [found[place] for place in sorted(found)]


def _moment(value: Any) -> dt.datetime:
    return dt.datetime.fromisoformat(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "decimal": Decimal,
    "float": float,
    "text": str,
    "bool": bool,
    "time": _moment,
    "date": dt.date.fromisoformat,
    "other": lambda value: value,
}


def _written(value: Any, kind: str) -> str | None:
    """Return a value as Spark reads it as a type; ArithmeticError when it does not fit."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if kind in _LARGEST:
        rounded = int(value.to_integral_value(ROUND_HALF_UP)) if isinstance(value, Decimal) else round(value)
        if not -_LARGEST[kind] <= rounded < _LARGEST[kind]:
            raise OverflowError(f"{kind} out of range")
        return str(rounded)
    if kind.startswith("decimal"):
        digits, scale = map(int, kind.removeprefix("decimal(").removesuffix(")").split(","))
        rounded_to = Decimal(value).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        if abs(rounded_to) >= Decimal(10) ** (digits - scale):
            raise OverflowError(f"{kind} out of range")
        return f"{rounded_to:f}"
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)
