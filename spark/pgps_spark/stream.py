"""Reads a subscription as a stream. The offsets in a checkpoint are positions of the broker.

What lies between two positions stays at the broker until it is acknowledged, so that a
micro-batch can be read again after a crash. Spark asks for the next micro-batch only when
all earlier ones are committed; then those are acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pgps.errors import BrokerError, ConnectionLost, WrongState
from pgps_spark.connection import connect
from pgps_spark.errors import database_errors
from pgps_spark.misfits import DEADLETTER
from pgps_spark.reading import EventReader, TooLarge
from pgps_spark.slices import Slice, cut

__all__ = ["SubscriptionReader"]

_PARTITIONS = 4
_IN_USE = "55006"
# Up to so many events are read beside the driver and travel with their task, since a connection for each task would
# cost more.
_FEW = 1_000
_FEW_BYTES = 1 << 20
# An id behind every event of a batch. It is one less than the greatest bigint, so that a range can begin behind it.
_LAST_EVENT = 2**63 - 2
Offset = dict[str, Any]


@dataclass
class Slices(InputPartition):
    """What one task reads, in order."""

    slices: list[Slice]

    def __init__(self, slices: list[Slice]) -> None:
        super().__init__(None)
        self.slices = slices


@dataclass
class Events(InputPartition):
    """What one task passes on: events that were read already."""

    events: pa.RecordBatch

    def __init__(self, events: pa.RecordBatch) -> None:
        super().__init__(None)
        self.events = events


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
        mode: str = DEADLETTER,
    ) -> None:
        self._dsn = dsn
        self._subscription = subscription
        self._schema = schema
        self._partitions = partitions or _PARTITIONS
        self._max_events = max_events
        self._patience = patience
        self._mode = mode
        self._connection: psycopg.Connection | None = None
        self._opened: dict[str, Any] = {}
        # With availableNow: the last batch there was, and whether events put back are still to come.
        self._last_batch: int | None = None
        self._takes_retried = True
        self._acked: Offset | None = None
        self._few = _FEW
        self._reader: EventReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Go to the tasks without the connections."""
        return {**self.__dict__, "_connection": None, "_reader": None}

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
        self._last_batch = self._opened["last_batch"]
        self._takes_retried = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Acknowledge what is done, and return how far the next micro-batch goes; `start` when there is nothing."""
        self._ack(start)
        end = self._end(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if self._last_batch is not None:
            end = self._limited(start, end, self._last_batch)
        # Events that were put back make a micro-batch necessary, too.
        return start if _place(end) == _place(start) and not end["retried"] else end

    def _limited(self, start: Offset, end: Offset, last_batch: int) -> Offset:
        """Leave out what came after the query had begun; events put back are taken once."""
        if end["batch"] > last_batch:
            batch, event = max(_place(start), (last_batch, _LAST_EVENT))
            end = {**end, "batch": batch, "event": event}
        if not self._takes_retried:
            return {**end, "retried": [], "turn": _turn(start)}
        self._takes_retried = not end["retried"]
        return end

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Cut what lies between two positions into equal parts, each in order."""
        slices = [
            Slice(batch, event_type, [(r.lower, r.upper) for r in ids])
            for batch, event_type, ids in self._rows(
                "select batch_id, event_type, ids from pgps.slice_stream(%s, %s, %s, %s, %s, %s::bigint[])",
                *self._position(start),
                end["batch"],
                end["event"],
                end["retried"],
            )
        ]
        events = self._read_here(slices) if slices else None
        if events is not None:
            return [Events(events)]
        return [Slices(part) for part in cut(slices, self._partitions)]

    def commit(self, end: Offset) -> None:
        """Acknowledge a micro-batch."""
        self._ack(end)

    def stop(self) -> None:
        """Close the session, which lets another query read the subscription."""
        connection, self._connection = self._connection, None
        self._acked = None
        if connection is not None:
            connection.close()
        if self._reader is not None:
            self._reader.close()

    # -- what runs in tasks -----------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read some slices, or pass on what was read."""
        if isinstance(partition, Events):
            yield partition.events
            return
        assert isinstance(partition, Slices)
        with self._events() as reader:
            yield from reader.read(partition.slices)

    def _events(self) -> EventReader:
        return EventReader(self._connect, self._schema, mode=self._mode, subscription=self._subscription)

    def _read_here(self, slices: list[Slice]) -> pa.RecordBatch | None:
        """Return the events when they are few; None when tasks shall read them."""
        if sum(each.events for each in slices) > self._few:
            return None
        self._reader = self._reader or self._events()
        try:
            return self._reader.together(slices, _FEW_BYTES)
        except TooLarge:
            self._few //= 2
        except ConnectionLost:
            # Tasks are tried again.
            self._reader.close()
        return None

    # -- the session ------------------------------------------------------------------------------------------------

    def _connect(self) -> psycopg.Connection:
        return connect(self._dsn, patience=self._patience)

    def _session(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
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
        ((answer,),) = self._rows(query, *arguments)
        return answer

    def _rows(self, query: str, *arguments: object) -> list[Any]:
        """Ask the broker; once more on a new connection when it was lost: nothing asked here does harm twice."""
        for last in (False, True):
            try:
                self._open()
                with database_errors():
                    return self._session().execute(query.encode(), list(arguments)).fetchall()
            except ConnectionLost:
                self.stop()
                if last:
                    raise
        raise AssertionError

    def _end(self, start: Offset, most: int | None) -> Offset:
        end = self._ask("select pgps.end_of_stream(%s, %s, %s, %s)", *self._position(start), most)
        turn = _turn(start) + bool(end["retried"])
        return self._offset(end["batch"], end["event"], end["retried"], turn)

    def _offset(self, batch: int, event: int, retried: list[int] | None = None, turn: int = 0) -> Offset:
        opened = self._opened
        return {
            "broker": opened["broker"],
            "subscription": opened["subscription_id"],
            "batch": batch,
            "event": event,
            "retried": retried or [],
            # If the same events are put back once more, the offset is another one.
            "turn": turn,
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

    def _ack(self, offset: Offset) -> None:
        if offset != self._acked:
            position = self._position(offset)
            self._ask("select pgps.ack_stream(%s, %s, %s, %s::bigint[])", *position, offset["retried"])
            self._acked = offset


def _place(offset: Offset) -> tuple[int, int]:
    return offset["batch"], offset["event"]


def _turn(offset: Offset) -> int:
    return int(offset.get("turn", 0))
