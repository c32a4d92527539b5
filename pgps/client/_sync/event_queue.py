# Made by tools/unasync_client.py from pgps/client/_async/event_queue.py: change that, then `make generate`.
"""The queue of a named client. Its occurrences come one by one; the next one, or a commit, completes the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pgps.client import _names
from pgps.client._sync.occurrence import Occurrence
from pgps.client._sync.seat import Intake, Seat
from pgps.client._sync.session import AnyConnection

__all__ = ["EventQueue"]


class EventQueue:
    """Receives queued occurrences of some registrations; the public face of each call is Identity's.

    `among` says which registrations: those that no other part of the program
    works on, so that nobody completes what another one has in hand; None: all.
    """

    def __init__(self, seat: Seat, among: Callable[[], list[int] | None]) -> None:
        self.intake = Intake(seat, _names.RECEIVE_EVENT, _names.RE_RECEIVE_EVENT)
        self._seat = seat
        self._among = among

    def receive(self, event_name: str | None, checkpoint: bytes | None = None) -> Occurrence | None:
        """Return the next occurrence, and complete the one before; see Identity.receive_event."""
        among = self._among()
        params = {"event_name": event_name, "checkpoint": self._checkpoint(checkpoint), "among": among}
        return self._occurrence(self.intake.next(params), among)

    def receive_again(self) -> Occurrence | None:
        """Return the occurrence received last."""
        among = self._among()
        rows = self._seat.rows(_names.RE_RECEIVE_EVENT, {"among": among})
        return self._occurrence(self.intake.had(rows), among)

    def receive_open(self) -> Occurrence | None:
        """Return the occurrence received last, None when it is completed."""
        found = self.receive_again()
        return None if found is None or found.is_completed() else found

    def commit(self, checkpoint: bytes | None = None, connection: AnyConnection | None = None) -> int | None:
        """Complete the occurrence received last; see Identity.commit_event."""
        params = {"checkpoint": self._checkpoint(checkpoint), "among": self._among()}
        value: int | None = (self._seat.rows(_names.COMMIT_EVENT, params, connection))[0][0]
        return value

    def _occurrence(self, rows: list[Any], among: list[int] | None) -> Occurrence | None:
        return Occurrence(self._seat, rows[0], among) if rows else None

    def _checkpoint(self, given: bytes | None) -> bytes | None:
        return given if given is not None or self._seat.save is None else self._seat.save()
