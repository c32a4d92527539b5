"""The queue of a named client. Its occurrences come one by one; the next one, or a commit, completes the last."""

from __future__ import annotations

from collections.abc import Callable

from pgps.client import _names
from pgps.client._async.occurrence import AsyncOccurrence
from pgps.client._async.seat import AsyncSeat
from pgps.client._async.session import AnyConnection

__all__ = ["AsyncEventQueue"]


class AsyncEventQueue:
    """Receives queued occurrences; the public face of each call is AsyncIdentity's.

    `last` is the id of the occurrence received last, in this session or the
    one before. `save` says what to store as the checkpoint when none is given.
    """

    def __init__(self, seat: AsyncSeat) -> None:
        self.last: int | None = None
        self.save: Callable[[], bytes | None] | None = None
        self._seat = seat

    async def receive(self, event_name: str | None, checkpoint: bytes | None = None) -> AsyncOccurrence | None:
        """Return the next occurrence, and complete the one before; see AsyncIdentity.receive_event."""
        params = {"event_name": event_name, "checkpoint": self._checkpoint(checkpoint)}
        rows = await self._seat.received(_names.RECEIVE_EVENT, params, _names.RE_RECEIVE_EVENT, self.last)
        self.last = rows[0][0] if rows else self.last
        return AsyncOccurrence(self._seat, rows[0]) if rows else None

    async def receive_again(self) -> AsyncOccurrence | None:
        """Return the occurrence received last."""
        rows = await self._seat.rows(_names.RE_RECEIVE_EVENT, {})
        return AsyncOccurrence(self._seat, rows[0]) if rows else None

    async def commit(self, checkpoint: bytes | None = None, connection: AnyConnection | None = None) -> int | None:
        """Complete the occurrence received last; see AsyncIdentity.commit_event."""
        rows = await self._seat.rows(_names.COMMIT_EVENT, {"checkpoint": self._checkpoint(checkpoint)}, connection)
        value: int | None = rows[0][0]
        return value

    def _checkpoint(self, given: bytes | None) -> bytes | None:
        return given if given is not None or self.save is None else self.save()
