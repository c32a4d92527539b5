"""The queue of a named client. Its occurrences come one by one; the next one, or a commit, completes the last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pgps.client import _names
from pgps.client._async.occurrence import AsyncOccurrence
from pgps.client._async.seat import AsyncIntake, AsyncSeat
from pgps.client._async.session import AnyConnection

__all__ = ["AsyncEventQueue"]


class AsyncEventQueue:
    """Receives queued occurrences of some registrations; the public face of each call is AsyncIdentity's.

    `among` says which registrations: those that no other part of the program
    works on, so that nobody completes what another one has in hand; None: all.
    """

    def __init__(self, seat: AsyncSeat, among: Callable[[], Awaitable[list[int] | None]]) -> None:
        self.intake = AsyncIntake(seat, _names.RECEIVE_EVENT, _names.RE_RECEIVE_EVENT)
        self._seat = seat
        self._among = among

    async def receive(self, event_name: str | None, checkpoint: bytes | None = None) -> AsyncOccurrence | None:
        """Return the next occurrence, and complete the one before; see AsyncIdentity.receive_event."""
        among = await self._among()
        params = {"event_name": event_name, "checkpoint": self._checkpoint(checkpoint), "among": among}
        return self._occurrence(await self.intake.next(params), among)

    async def receive_again(self) -> AsyncOccurrence | None:
        """Return the occurrence received last."""
        among = await self._among()
        rows = await self._seat.rows(_names.RE_RECEIVE_EVENT, {"among": among})
        return self._occurrence(self.intake.had(rows), among)

    async def receive_open(self) -> AsyncOccurrence | None:
        """Return the occurrence received last, None when it is completed."""
        found = await self.receive_again()
        return None if found is None or await found.is_completed() else found

    async def commit(self, checkpoint: bytes | None = None, connection: AnyConnection | None = None) -> int | None:
        """Complete the occurrence received last; see AsyncIdentity.commit_event."""
        params = {"checkpoint": self._checkpoint(checkpoint), "among": await self._among()}
        value: int | None = (await self._seat.rows(_names.COMMIT_EVENT, params, connection))[0][0]
        return value

    def _occurrence(self, rows: list[Any], among: list[int] | None) -> AsyncOccurrence | None:
        return AsyncOccurrence(self._seat, rows[0], among) if rows else None

    def _checkpoint(self, given: bytes | None) -> bytes | None:
        return given if given is not None or self._seat.save is None else self._seat.save()
