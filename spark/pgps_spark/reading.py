"""Reading slices of a subscription: events by their ids, from the views of the log, as Arrow batches.

Under a flow of single events each dispatched batch is a slice of its own. Small slices that follow
one another are read by one query for each event type, and put in their order here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql.types import StructType

from pgps_spark.columns import EVENT, Column, columns_of, schema_of, selection
from pgps_spark.copying import arrow_schema, copied_out
from pgps_spark.errors import database_errors
from pgps_spark.misfits import CORRUPT, FAILFAST, PERMISSIVE, Misfits
from pgps_spark.publications import SHARED, XID, Publications, ids_of
from pgps_spark.queues import as_wanted
from pgps_spark.relations import ADDED, beside, log_view
from pgps_spark.slices import TOGETHER, Merged, Slice, gathered, merged

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EventReader", "TooLarge"]

# No more bytes than this are held in memory to put events in order.
_MOST_BYTES = 32 << 20
_EVENT_ID = "event_id"


@dataclass(frozen=True, slots=True)
class _Plan:
    """How events of a type are read: columns, what COPY is told for each, and whether to look up what they share."""

    columns: list[Column]
    chosen: sql.Composable
    arrow: pa.Schema
    looks_up: bool


class TooLarge(Exception):
    """The events have more bytes than were to be held in memory."""


class EventReader:
    """Reads slices; `connect` opens a connection when one is needed. Close it by leaving its block.

    `mode` says what becomes of events that Spark cannot represent; with "deadletter" they go to the exception queue of
    `subscription`.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection],
        schema: StructType,
        *,
        mode: str = FAILFAST,
        subscription: str = "",
    ) -> None:
        self._connect = connect
        self._subscription = subscription
        self._misfits = Misfits(mode, self._reject)
        self._arrow = arrow_schema(schema)
        self._wanted = schema
        self._shared = {*SHARED} & {*schema.fieldNames()}
        self._known: dict[str, list[Column]] = {}
        self._open: dict[str, psycopg.Connection] = {}

    def __enter__(self) -> EventReader:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections; reading again opens new ones."""
        while self._open:
            self._open.popitem()[1].close()

    def read(self, slices: list[Slice]) -> Iterator[pa.RecordBatch]:
        """Yield the events of slices in their order."""
        for group in gathered(slices):
            if group[0].events > TOGETHER:
                yield from self._one(group[0])
                continue
            try:
                events = self.together(group, _MOST_BYTES)
            except TooLarge:
                for each in group:
                    yield from self._one(each)
            else:
                if events.num_rows:
                    yield events

    def together(self, group: list[Slice], most_bytes: int) -> pa.RecordBatch:
        """Return the events of small slices in their order, by one query for each type. Raises TooLarge."""
        parts: list[pa.RecordBatch] = []
        places: list[NDArray[np.int64]] = []
        batches = np.array([each.batch for each in group], dtype=np.int64)
        for some in merged(group):
            plan = self._plan(some.whole)
            events = self._held(some.whole, plan, most_bytes - sum(part.nbytes for part in parts))
            if events.num_rows:
                place = _place(events, some)
                # The copy has ended, so the same connection can be used.
                shared = self._looked_up(events, some.whole, plan, "events")
                added = {"batch_id": pa.array(batches[place[0]]), "event_type": some.whole.event_type}
                parts.append(_assembled(events, {**added, **shared}, self._arrow))
                places.append(place)
        table = pa.Table.from_batches(parts, schema=self._arrow)
        if places:
            # Batch, then event: of a pattern, events of one batch are in slices of their types.
            numbers, ids = np.hstack(places)
            order = np.lexsort((ids, batches[numbers]))
            if not np.array_equal(order, np.arange(order.size)):
                table = table.take(pa.array(order))
        return _single(table)

    def _held(self, each: Slice, plan: _Plan, most_bytes: int) -> pa.RecordBatch:
        found: list[pa.RecordBatch] = []
        for query in self._queries(each, plan):
            with contextlib.closing(self._copied(query, plan)) as batches:
                for batch in batches:
                    found.append(batch)
                    most_bytes -= batch.nbytes
                    if most_bytes < 0:
                        raise TooLarge
        return _single(pa.Table.from_batches(found, schema=plan.arrow))

    def _one(self, each: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the events of a large slice, as they come."""
        plan = self._plan(each)
        added = {"batch_id": each.batch, "event_type": each.event_type}
        for query in self._queries(each, plan):
            for batch in self._copied(query, plan):
                # Another connection, since the first is in the middle of a copy.
                shared = self._looked_up(batch, each, plan, "shared")
                yield _assembled(batch, {**added, **shared}, self._arrow)

    def _plan(self, each: Slice) -> _Plan:
        if each.event_type not in self._known:
            with database_errors():
                found = columns_of(self._connection("events"), log_view(each.event_type))
            self._known[each.event_type] = beside(found, ADDED)
        known = self._known[each.event_type]
        # Events that were put back (batch 0) may be out of the log: what they have in common stands with each.
        looks_up = bool(self._shared) and each.batch != 0
        apart = {column.name for column in ADDED}.union(SHARED if looks_up else ())
        columns = [column for column in as_wanted(known, self._wanted) if column.name not in apart]
        # It is always read, since it says to which slice an event belongs, and which one is put aside.
        if not any(column.name == _EVENT_ID and column.type == EVENT.type for column in columns):
            columns.append(EVENT)
        if looks_up:
            columns.append(XID)
        shown = schema_of(columns)
        if self._misfits.mode == PERMISSIVE:
            shown.add(CORRUPT)
        return _Plan(columns, selection(columns), arrow_schema(shown), looks_up)

    def _queries(self, each: Slice, plan: _Plan) -> Iterator[sql.Composable]:
        view = sql.SQL(log_view(each.event_type))
        for condition in each.conditions():
            yield sql.SQL("select {} from {} where {} order by event_id").format(plan.chosen, view, condition)

    def _copied(self, query: sql.Composable, plan: _Plan) -> Generator[pa.RecordBatch]:
        return copied_out(self._connection("events"), query, plan.columns, plan.arrow, self._misfits)

    def _reject(self, events: list[int], reasons: list[str]) -> None:
        """Put events into the exception queue; another connection, since the first is in the middle of a copy."""
        with database_errors():
            self._connection("rejects").execute(
                "select pgps.reject_events(%s, %s::bigint[], %s::text[])", [self._subscription, events, reasons]
            )

    def _looked_up(self, events: pa.RecordBatch, each: Slice, plan: _Plan, name: str) -> dict[str, pa.Array]:
        if not plan.looks_up:
            return {}
        kinds = {field: self._arrow.field(field).type for field in self._shared}
        return Publications(self._connection(name), each.event_type, log_view(each.event_type)).of(events, kinds)

    def _connection(self, name: str) -> psycopg.Connection:
        if name not in self._open or self._open[name].closed:
            self._open[name] = self._connect()
        return self._open[name]


def _place(events: pa.RecordBatch, some: Merged) -> NDArray[np.int64]:
    """Return for each event the number of its slice, and its id."""
    ids = ids_of(events)
    slots = np.searchsorted(np.array(some.starts, dtype=np.int64), ids, side="right") - 1
    return np.vstack((np.array(some.numbers, dtype=np.int64)[slots], ids))


def _single(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _assembled(batch: pa.RecordBatch, others: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema: those that were read, arrays, and values that are the same for all."""
    arrays = []
    for field in schema:
        other = others.get(field.name)
        if other is None:
            arrays.append(batch.column(field.name))
        elif isinstance(other, pa.Array):
            arrays.append(other.cast(field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(other, field.type), batch.num_rows))
    return pa.record_batch(arrays, schema=schema)
