# Made by tools/unasync_client.py from pgps/client/_async/event_queue.py: change that, then `make generate`.
"""The queue of a named client. Its occurrences come one by one; the next one, or a commit, completes the last."""

from __future__ import annotations

from collections.abc import Callable

from pgps.client import _names
from pgps.client._sync.occurrence import Occurrence
from pgps.client._sync.seat import Seat
from pgps.client._sync.session import AnyConnection

__all__ = ["EventQueue"]


class EventQueue:
    """Receives queued occurrences; the public face of each call is Identity's.

    `last` is the id of the occurrence received last, in this session or the
    one before. `save` says what to store as the checkpoint when none is given.
    """

    def __init__(self, seat: Seat) -> None:
        self.last: int | None = None
        self.save: Callable[[], bytes | None] | None = None
        self._seat = seat

    def receive(self, event_name: str | None, checkpoint: bytes | None = None) -> Occurrence | None:
        """Return the next occurrence, and complete the one before; see Identity.receive_event."""
        params = {"event_name": event_name, "checkpoint": self._checkpoint(checkpoint)}
        rows = self._seat.received(_names.RECEIVE_EVENT, params, _names.RE_RECEIVE_EVENT, self.last)
        self.last = rows[0][0] if rows else self.last
        return Occurrence(self._seat, rows[0]) if rows else None

    def receive_again(self) -> Occurrence | None:
        """Return the occurrence received last."""
        rows = self._seat.rows(_names.RE_RECEIVE_EVENT, {})
        return Occurrence(self._seat, rows[0]) if rows else None

    def commit(self, checkpoint: bytes | None = None, connection: AnyConnection | None = None) -> int | None:
        """Complete the occurrence received last; see Identity.commit_event."""
        rows = self._seat.rows(_names.COMMIT_EVENT, {"checkpoint": self._checkpoint(checkpoint)}, connection)
        value: int | None = rows[0][0]
        return value

    def _checkpoint(self, given: bytes | None) -> bytes | None:
        return given if given is not None or self.save is None else self.save()
