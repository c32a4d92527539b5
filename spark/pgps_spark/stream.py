"""Reading a subscription as a stream. Offsets are the broker's positions: a checkpoint and it speak of the same.

What lies between two positions stays at the broker until it is acknowledged, so a
micro-batch can be read again after a crash. Spark asks for a next step only when
all before it is committed: that is when it is acknowledged.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pgps.errors import BrokerError, ConnectionLost, WrongState
from pgps_spark.columns import Column, columns_of, schema_of
from pgps_spark.connection import connect
from pgps_spark.copying import arrow_schema, copied_out
from pgps_spark.errors import database_errors
from pgps_spark.publications import SHARED, XID, Publications
from pgps_spark.queues import as_wanted
from pgps_spark.relations import ADDED, log_view
from pgps_spark.slices import Slice, cut

__all__ = ["SubscriptionReader"]

_PARTITIONS = 4
_IN_USE = "55006"
Offset = dict[str, Any]


@dataclass
class Slices(InputPartition):
    """What one task reads, in order."""

    slices: list[Slice]

    def __init__(self, slices: list[Slice]) -> None:
        super().__init__(None)
        self.slices = slices


class SubscriptionReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a subscription; lives in one Python process beside the driver for as long as the query runs."""

    def __init__(
        self,
        dsn: str,
        subscription: str,
        schema: StructType,
        *,
        partitions: int | None,
        max_events: int | None,
        patience: float,
    ) -> None:
        self._dsn = dsn
        self._subscription = subscription
        self._schema = schema
        self._partitions = partitions or _PARTITIONS
        self._max_events = max_events
        self._patience = patience
        self._connection: psycopg.Connection | None = None
        self._opened: dict[str, Any] = {}
        self._target: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Go to the tasks without the connection."""
        return {**self.__dict__, "_connection": None}

    # -- what Spark calls beside the driver -------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return where the subscription stands: a new checkpoint goes on from there."""
        self._open()
        return self._offset(self._opened["batch"], self._opened["event"])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how much a micro-batch takes at most: the option maxEventsPerTrigger."""
        return ReadAllAvailable() if self._max_events is None else ReadMaxRows(self._max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note how far there is something now."""
        self._open()
        self._target = self._end(self._offset(self._opened["batch"], self._opened["event"]), None)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Acknowledge what is done, and return how far the next micro-batch goes; `start` when there is nothing."""
        self._ask("select pgps.ack_stream(%s, %s, %s, %s::bigint[])", *self._position(start), start["retried"])
        target = self._target
        if target is not None and _place(start) >= _place(target):
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self._end(start, most)
        # Events put back are a reason for a micro-batch, too; only what was there counts with availableNow.
        if target is not None and _place(end) > _place(target):
            return {**target, "retried": end["retried"]}
        return start if _place(end) == _place(start) and not end["retried"] else end

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Cut what lies between two positions into equal parts, each in order."""
        self._open()
        self._check(start)
        connection = self._session()
        with database_errors():
            rows = connection.execute(
                "select batch_id, event_type, ids from pgps.slice_stream(%s, %s, %s, %s, %s, %s::bigint[])",
                [*self._position(start), end["batch"], end["event"], end["retried"]],
            ).fetchall()
        slices = [Slice(batch, event_type, [(r.lower, r.upper) for r in ids]) for batch, event_type, ids in rows]
        return [Slices(part) for part in cut(slices, self._partitions)]

    def commit(self, end: Offset) -> None:
        """Acknowledge a micro-batch."""
        self._ask("select pgps.ack_stream(%s, %s, %s, %s::bigint[])", *self._position(end), end["retried"])

    def stop(self) -> None:
        """Close the session, which lets another query read the subscription."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- what runs in tasks -----------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read some slices."""
        assert isinstance(partition, Slices)
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(connect(self._dsn, patience=self._patience))
            # Another one, since the first is in the middle of a copy.
            asking = stack.enter_context(connect(self._dsn, patience=self._patience)) if self._shared() else None
            known: dict[str, list[Column]] = {}
            for each in partition.slices:
                if each.event_type not in known:
                    with database_errors():
                        known[each.event_type] = [*columns_of(connection, log_view(each.event_type)), *ADDED]
                yield from self._read(connection, asking, each, known[each.event_type])

    def _shared(self) -> set[str]:
        return {*SHARED} & {*self._schema.fieldNames()}

    def _read(
        self, connection: psycopg.Connection, asking: psycopg.Connection | None, each: Slice, known: list[Column]
    ) -> Iterator[pa.RecordBatch]:
        view = log_view(each.event_type)
        schema = arrow_schema(self._schema)
        added = {"batch_id": each.batch, "event_type": each.event_type}
        # Events that were put back (batch 0) may be out of the log: what they have in common stands with each.
        publications = None if asking is None or each.batch == 0 else Publications(asking, each.event_type, view)
        apart = {*added, *(() if publications is None else SHARED)}
        columns = [column for column in as_wanted(known, self._schema) if column.name not in apart]
        # There is always one to read.
        if all(column.name != "event_id" for column in columns):
            columns += [column for column in known if column.name == "event_id"]
        chosen = [column.selected() for column in columns]
        if publications is not None:
            columns.append(XID)
            chosen.append(sql.Identifier("xid"))
        part = arrow_schema(schema_of(columns))
        kinds = {name: schema.field(name).type for name in self._shared()}
        for condition in each.conditions():
            query = sql.SQL("select {} from {} where {} order by event_id").format(
                sql.SQL(", ").join(chosen), sql.SQL(view), condition
            )
            for batch in copied_out(connection, query, columns, part):
                found = {} if publications is None else publications.of(batch, kinds)
                yield _assembled(batch, {**added, **found}, schema)

    # -- the session ------------------------------------------------------------------------------------------------

    def _session(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, patience=self._patience)
            self._opened = {}
        return self._connection

    def _open(self) -> None:
        """Take the subscription for this session; that of a driver that was just killed may take a moment to end."""
        deadline = time.monotonic() + self._patience
        while not self._opened or self._connection is None or self._connection.closed:
            try:
                with database_errors():
                    row = self._session().execute("select pgps.open_stream(%s)", [self._subscription]).fetchone()
                assert row is not None
                self._opened = row[0]
            except BrokerError as error:
                if error.sqlstate != _IN_USE or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _ask(self, query: str, *arguments: object) -> Any:
        """Ask the broker; once more on a new connection when it was lost: nothing asked here does harm twice."""
        for last in (False, True):
            try:
                self._open()
                with database_errors():
                    row = self._session().execute(query.encode(), list(arguments)).fetchone()
                assert row is not None
                return row[0]
            except ConnectionLost:
                self.stop()
                if last:
                    raise
        raise AssertionError

    def _end(self, start: Offset, most: int | None) -> Offset:
        end = self._ask("select pgps.end_of_stream(%s, %s, %s, %s)", *self._position(start), most)
        return self._offset(end["batch"], end["event"], end["retried"])

    def _offset(self, batch: int, event: int, retried: list[int] | None = None) -> Offset:
        opened = self._opened
        return {
            "broker": opened["broker"],
            "subscription": opened["subscription_id"],
            "batch": batch,
            "event": event,
            "retried": retried or [],
        }

    def _position(self, offset: Offset) -> tuple[str, int, int]:
        self._open()
        if (offset["broker"], offset["subscription"]) != (self._opened["broker"], self._opened["subscription_id"]):
            raise WrongState(
                f"the checkpoint is of subscription {offset['subscription']} of broker {offset['broker']}; "
                f'"{self._subscription}" is {self._opened["subscription_id"]} of {self._opened["broker"]}',
                hint="Use the checkpoint of this subscription, or a new one: it goes on from where it stands.",
                sqlstate="55000",
            )
        return self._subscription, offset["batch"], offset["event"]

    def _check(self, start: Offset) -> None:
        """Raise WrongState when somebody has read on meanwhile: what lies behind may be gone."""
        self._ask("select pgps.end_of_stream(%s, %s, %s, 1)", *self._position(start))


def _assembled(batch: pa.RecordBatch, others: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema: those that were read, arrays, and values that are the same for all."""
    arrays = []
    for field in schema:
        other = others.get(field.name)
        if other is None:
            arrays.append(batch.column(field.name))
        elif isinstance(other, pa.Array):
            arrays.append(other)
        else:
            arrays.append(pa.repeat(pa.scalar(other, field.type), batch.num_rows))
    return pa.record_batch(arrays, schema=schema)


def _place(offset: Offset) -> tuple[int, int]:
    return offset["batch"], offset["event"]
