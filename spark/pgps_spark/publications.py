"""When, by whom and where events were published: the same for all events of a statement, and looked up once for each.

The view of the log looks this up for each event anew, which costs many times as much as reading the event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import types as t

from pgps_spark.columns import EVENT, Column
from pgps_spark.errors import database_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SHARED", "XID", "Publications", "ids_of"]

SHARED = ("published_at", "publisher", "origin")
# What an event is found by, beside its id; read beside the columns that are wanted.
XID = Column("pgps_xid", "xid8", t.LongType(), source="xid")


def ids_of(events: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the ids of events that were read with event_id, or with EVENT, where that is another type's."""
    name = EVENT.name if EVENT.name in events.schema.names else "event_id"
    ids: NDArray[np.int64] = events.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return ids


class Publications:
    """Looks up what the events of one type share."""

    def __init__(self, connection: psycopg.Connection, event_type: str, view: str) -> None:
        self._connection = connection
        self._event_type = event_type
        self._view = view

    def of(self, events: pa.RecordBatch, kinds: dict[str, pa.DataType]) -> dict[str, pa.Array]:
        """Return the wanted ones of SHARED for events that were read with their ids and XID."""
        ids = ids_of(events)
        xids: NDArray[np.int64] = events.column(XID.name).to_numpy(zero_copy_only=False)
        low, high = int(ids.min()), int(ids.max())
        runs = self._runs(np.unique(xids), low, high)
        places = _places(runs, ids, xids, low, high)
        values = [row[3:] for row in runs]
        strangers = np.flatnonzero(places < 0)
        if strangers.size:
            # The type has policies, or the statement that published the event is not known any more.
            known = self._one_by_one(ids[strangers])
            places[strangers] = np.arange(len(values), len(values) + strangers.size)
            values += [known.get(int(number), (None, None, None)) for number in ids[strangers]]
        indices = pa.array(places)
        columns = zip(SHARED, zip(*values, strict=True), strict=True)
        return {name: pa.array(of, type=kinds[name]).take(indices) for name, of in columns if name in kinds}

    def _runs(self, xids: NDArray[np.int64], low: int, high: int) -> list[tuple[Any, ...]]:
        """Return xid, first and last event, and what they share, in the order of xid and event."""
        with database_errors():
            return self._connection.execute(
                """
                select p.xid::text::bigint, p.first_event, p.last_event, p.published_at, p.publisher, p.origin
                from pgps.publications p
                where p.event_type = %s and p.xid = any (%s::text[]::xid8[])
                    and p.last_event >= %s and p.first_event <= %s
                order by p.xid, p.last_event
                """,
                [self._event_type, [str(xid) for xid in xids], low, high],
            ).fetchall()

    def _one_by_one(self, ids: NDArray[np.int64]) -> dict[int, tuple[Any, ...]]:
        query = sql.SQL("select event_id, published_at, publisher, origin from {} where event_id = any (%s)")
        with database_errors():
            rows = self._connection.execute(query.format(sql.SQL(self._view)), [ids.tolist()]).fetchall()
        return {row[0]: row[1:] for row in rows}


def _places(
    runs: list[tuple[Any, ...]], ids: NDArray[np.int64], xids: NDArray[np.int64], low: int, high: int
) -> NDArray[np.int64]:
    """Return which run each event is of, -1 for none."""
    if not runs:
        return np.full(ids.size, -1, dtype=np.int64)
    of, first, last = (np.array([row[n] for row in runs], dtype=np.int64) for n in range(3))
    known = np.unique(of)
    span = high - low + 1
    # One number for transaction and event: a transaction's runs follow one another, those of several may overlap.
    ends = np.searchsorted(known, of) * span + np.minimum(last, high) - low
    ranks = np.minimum(np.searchsorted(known, xids), known.size - 1)
    places = np.searchsorted(ends, ranks * span + ids - low)
    found = np.minimum(places, len(runs) - 1)
    fits = (places < len(runs)) & (of[found] == xids) & (first[found] <= ids)
    return np.where(fits, found, -1)
