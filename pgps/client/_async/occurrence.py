"""An event that was raised, with its tuples, and a reply, with its rows; both are read in groups of any size."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Callable
from typing import Any

from pgps.client import _names
from pgps.client._async.seat import AsyncSeat
from pgps.client.events import loads
from pgps.errors import RequestFailed

__all__ = ["AsyncOccurrence", "AsyncReply"]


class AsyncOccurrence:
    """An event as it was raised: by one statement, for a set of tuples.

    Iterate over it for the tuples as dicts, or over `groups()`. `event_id` is
    the id of the first tuple, and of the event as a confirming event has it.
    Those of a queued occurrence can be walked until another one is received.
    """

    def __init__(self, seat: AsyncSeat, row: tuple[Any, ...], among: list[int] | None = None) -> None:
        self._seat = seat
        self.event_id: int = row[0]
        self.last_event_id: int | None = row[1]
        self.event_type: str = row[2]
        self.event_name: str = row[3]
        self.published_at: dt.datetime = row[4]
        self.publisher: str = row[5]
        self.xid: int = row[6]
        self.origin: str = row[7]
        self.raiser: str | None = row[8]
        self.attempt: int = row[9]
        self.count: int | None = row[10]
        self.is_queued = True
        self._among = among
        self._first: list[tuple[int, dict[str, Any]]] = []
        self._note: str | None = None
        self._up_to = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.event_type} {self.event_id}>"

    @classmethod
    def pushed(cls, seat: AsyncSeat, rows: list[tuple[Any, ...]], note: str | None) -> AsyncOccurrence:
        """Make a direct one from rows of pgps.fetch_direct; with a note there are more."""
        _, _, _, event_type, event_name, published_at, publisher, xid, origin, raiser, up_to, event_id = rows[0]
        last, count = (rows[-1][1], len(rows)) if note is None else (None, None)
        made = cls(
            seat,
            (event_id, last, event_type, event_name, published_at, publisher, xid, origin, raiser, 1, count),
        )
        made.is_queued = False
        made._first = [(row[1], loads(row[2])) for row in rows]
        made._note, made._up_to = note, up_to
        return made

    @classmethod
    def carried(cls, seat: AsyncSeat, statement: list[Any]) -> AsyncOccurrence:
        """Make a direct one from what came with its note."""
        event_type, published_at, publisher, xid, origin, raiser, tuples = statement
        at = dt.datetime.fromisoformat(published_at)
        first, last, count = tuples[0][0], tuples[-1][0], len(tuples)
        made = cls(seat, (first, last, event_type, event_type, at, publisher, xid, origin, raiser, 1, count))
        made.is_queued = False
        made._first = tuples
        return made

    def keep(self, is_wanted: Callable[[int], bool]) -> bool:
        """Leave out the tuples it holds that are not wanted, by their ids; return whether some are left."""
        self._first = [one for one in self._first if is_wanted(one[0])]
        if self._first:
            self.last_event_id, self.count = self._first[-1][0], len(self._first)
        return bool(self._first)

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        async for group in self.groups():
            for payload in group:
                yield payload

    async def is_completed(self) -> bool:
        """Tell whether it was completed: by `commit_event`, or since another was received. A direct one never is."""
        params = {"id": self.event_id, "event_name": self.event_name}
        return self.is_queued and await self._seat.is_completed(_names.EVENT_COMPLETED, params)

    async def first(self) -> dict[str, Any]:
        """Return the first tuple."""
        async for payload in self:
            return payload
        return {}

    async def groups(self, size: int = _names.GROUP) -> AsyncIterator[list[dict[str, Any]]]:
        """Iterate over the tuples in lists of at most `size`, fetched one after the other."""
        after = 0
        if self._first:
            held = [await self._seat.native(self.event_type, payload) for _, payload in self._first]
            for start in range(0, len(held), size):
                yield held[start : start + size]
            after = self._first[-1][0]
        goes_on = self.is_queued or self._note is not None
        while goes_on:
            rows, after, goes_on = await self._more(after, size)
            if rows:
                yield [await self._seat.native(self.event_type, loads(text)) for _, text in rows]

    async def _more(self, after: int, size: int) -> tuple[list[tuple[int, str]], int, bool]:
        """Return tuples behind an event id, the id to ask behind next, and whether there may be more."""
        if self.is_queued:
            # There may be fewer than were asked for, or none: a policy hides the others.
            rows = await self._seat.rows(_names.TUPLES, {"after": after, "max": size, "among": self._among})
            after = rows[-1][0] if rows else after
            return rows, after, bool(rows) and (self.last_event_id is None or after < self.last_event_id)
        rows = await self._seat.rows(_names.FETCH_DIRECT, {"notes": [self._note], "after": after, "max": size})
        # Those of other statements that the note stands for lie between them.
        own = [(row[1], row[2]) for row in rows if row[-1] == self.event_id]
        after = rows[-1][1] if rows else after
        return own, after, len(rows) == size and after < self._up_to


class AsyncReply:
    """What became of a request: its rows, or its error."""

    def __init__(self, seat: AsyncSeat, row: tuple[Any, ...]) -> None:
        self._seat = seat
        self.request_id: int = row[0]
        self.status: str = row[1]
        self.columns: list[str] = row[2] or []
        self.row_count: int | None = row[3]
        self.sqlstate: str | None = row[4]
        self.error: str | None = row[5]
        self.detail: str | None = row[6]
        self.hint: str | None = row[7]
        self.sent_at: dt.datetime = row[8]
        self.replied_at: dt.datetime = row[9]
        self.attempts: int = row[10]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.request_id} {self.status}>"

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for group in self.groups():
            for row in group:
                yield row

    async def groups(self, size: int = _names.GROUP) -> AsyncIterator[list[Any]]:
        """Iterate over the rows, as JSON has them, in lists of at most `size`. Raises RequestFailed."""
        self.raise_error()
        after = 0
        while True:
            rows = await self._seat.rows(_names.REPLY_ROWS, {"after": after, "max": size})
            if rows:
                yield [loads(text) for _, text in rows]
                after = rows[-1][0]
            if len(rows) < size:
                return

    async def is_completed(self) -> bool:
        """Tell whether it was completed: by `commit_receive`, or since another one was received."""
        return await self._seat.is_completed(_names.REPLY_COMPLETED, {"id": self.request_id})

    def raise_error(self) -> None:
        """Raise RequestFailed unless the request succeeded."""
        if self.status != "done":
            raise RequestFailed(
                self.error or "the request failed",
                request_id=self.request_id,
                sqlstate=self.sqlstate,
                hint=self.hint,
                detail=self.detail,
            )
