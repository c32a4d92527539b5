# Made by tools/unasync_client.py from pgps/client/_async/delivery.py: change that, then `make generate`.
"""What runs beside a program that is known by name: fetching direct events, and calling handlers."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

from pgps.client import _names
from pgps.client._names import Registration, Registrations
from pgps.client._sync import runtime
from pgps.client._sync.event_queue import EventQueue
from pgps.client._sync.occurrence import Occurrence
from pgps.client._sync.seat import Seat
from pgps.errors import ClientClosed, ConnectionLost, PgpsError, SessionTaken

__all__ = ["Delivery"]

_log = logging.getLogger("pgps.client")
_LOOK = 60.0
_NOTES = 100
"""How many notes are fetched at once."""
_CARRIED = 1000
"""Up to so many events that came with their notes are held; the events of later notes are fetched."""


class Delivery:
    """The tasks beside a named client: one for direct events, one for queued ones.

    `local` holds the direct occurrences that nobody handles, for whoever polls.
    """

    def __init__(self, seat: Seat, queue: EventQueue, registrations: Registrations, max_local: int) -> None:
        self.dropped = 0
        self.local: deque[Occurrence] = deque()
        self._seat = seat
        self._events = queue
        self._registrations = registrations
        self._max_local = max_local
        self._notes: deque[str] = deque()
        self._arrived = runtime.Signal()
        self._queued = runtime.Signal()
        self._look_again = False
        self._tasks: list[runtime.Task] = []

    def start(self) -> None:
        """Begin."""
        if not self._tasks:
            name = self._seat.name
            self._tasks = [
                runtime.Task(self._follow_notes, f"pgps-{name}-direct"),
                runtime.Task(self._follow_queues, f"pgps-{name}-queued"),
            ]

    def stop(self) -> None:
        """End; a handler that runs is waited for."""
        self.wake()
        for task in self._tasks:
            task.stop(grace=self._seat.core.grace)

    def wake(self) -> None:
        """Look what there is."""
        self._arrived.set()
        self._queued.set()

    def heard(self, payload: str | None) -> None:
        """Take a notification: a word, a note of direct events, or None when some may have been missed."""
        if payload is None or payload == "registrations":
            self._look_again = True
        elif payload != "reply" and self._tasks:
            held = len(self._notes)
            if held < self._max_local:
                self._notes.append(payload if held < _CARRIED else _names.bare(payload))
            else:
                self.dropped += 1
        self._arrived.set()
        self._seat.signal.set()

    # -----------------------------------------------------------------------------------------------------------------
    # Direct
    # -----------------------------------------------------------------------------------------------------------------

    def _follow_notes(self) -> None:
        seat = self._seat
        while not seat.is_closed:
            if not self._arrived.wait(_LOOK):
                self._look_again = True  # rights that came later than a type are told by nobody
            self._arrived.clear()
            with self._surviving():
                if self._look_again:
                    self._look_again = False
                    for channel in (seat.rows(_names.CHANNELS, {}))[0][0]:
                        if channel.startswith("pgps_direct_"):
                            seat.listen(channel, self.heard)
                while self._notes and not seat.is_closed:
                    if len(self.local) >= self._max_local:
                        runtime.sleep(0.05)  # who polls is slow: the notes wait, and are short
                        continue
                    carried = _names.carried(self._notes[0])
                    if carried is not None:
                        self._notes.popleft()
                        self._hand_out(Occurrence.carried(seat, carried))
                        continue
                    for occurrence in self._pushed(self._take_notes()):
                        self._hand_out(occurrence)

    def _take_notes(self) -> list[str]:
        notes: list[str] = []
        while self._notes and len(notes) < _NOTES and self._notes[0] == _names.bare(self._notes[0]):
            notes.append(self._notes.popleft())
        return notes

    def _hand_out(self, occurrence: Occurrence) -> None:
        registration = self._registrations.direct(occurrence.event_type)
        if registration is not None:
            occurrence.event_name = registration.event_name
        if registration is None or registration.handler is None:
            self.local.append(occurrence)
            self._seat.signal.set()
            return
        try:
            runtime.call(registration.handler, occurrence)
        except Exception as error:  # the application's own
            registration.failed += 1
            _note(occurrence, error)

    def _pushed(self, notes: list[str]) -> Iterator[Occurrence]:
        """Yield the occurrences that notes stand for; the tuples of a large one are fetched as they are walked."""
        after = 0
        while notes:
            rows = self._fetch(notes, after)
            parts: dict[tuple[int, int], list[Any]] = {}
            for row in rows:
                parts.setdefault((row[0], row[-1]), []).append(row)
            is_whole = len(rows) < _names.GROUP
            for (note, _), part in parts.items():
                goes_on = part[-1] is rows[-1] and not is_whole
                yield Occurrence.pushed(self._seat, part, notes[note - 1] if goes_on else None)
            if is_whole:
                return
            # The rest of the last one is fetched by whoever walks it.
            note, last, occurrence = rows[-1][0], rows[-1][1], rows[-1][-1]
            if len(notes[note - 1].split()) == 4:  # of one statement
                notes, after = notes[note:], 0
            else:
                notes, after = notes[note - 1 :], self._end_of(notes[note - 1], last, occurrence)

    def _end_of(self, note: str, after: int, occurrence: int) -> int:
        """Return the last event id of an occurrence among those that a note stands for."""
        while True:
            rows = self._fetch([note], after)
            same = [row for row in rows if row[-1] == occurrence]
            if same:
                after = same[-1][1]
            if len(same) < _names.GROUP:
                return after

    def _fetch(self, notes: list[str], after: int) -> list[Any]:
        return self._seat.rows(_names.FETCH_DIRECT, {"notes": notes, "after": after, "max": _names.GROUP})

    # -----------------------------------------------------------------------------------------------------------------
    # Queued
    # -----------------------------------------------------------------------------------------------------------------

    def _follow_queues(self) -> None:
        seat = self._seat
        while not seat.is_closed:
            self._queued.wait(_LOOK)
            self._queued.clear()
            with self._surviving():
                for registration in list(self._registrations.values()):
                    while registration.is_handled and not seat.is_closed:
                        if not self._handle(registration):
                            break

    def _handle(self, registration: Registration) -> bool:
        """Handle the next occurrence, or the one that is in hand; False when there is none."""
        handler = registration.handler
        if registration.in_hand is None:
            occurrence = self._events.receive(registration.event_name)
        else:
            occurrence = self._events.receive_again()
        if occurrence is None or handler is None:
            return False
        try:
            if registration.transactional:
                with self._seat.core.transaction() as connection:
                    runtime.call(handler, occurrence, connection)
                    self._events.commit(connection=connection)
            else:
                runtime.call(handler, occurrence)
                self._events.commit()
        except (ConnectionLost, SessionTaken):
            registration.in_hand = occurrence.event_id
            raise
        except Exception as error:  # the application's own
            registration.note_failure(occurrence.event_id, error)
            _note(occurrence, error)
            if registration.error is None:
                runtime.sleep(registration.retry_in)
            return True
        registration.in_hand, registration.attempts = None, 0
        return True

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        """Go on when the connection was lost, end when the session is another program's."""
        try:
            yield
        except ClientClosed:
            self._seat.is_closed = True
        except ConnectionLost as lost:
            _log.info("client %s: %s", self._seat.name, lost.message)
            self.wake()
        except PgpsError as error:
            self._seat.end(error)


def _note(occurrence: Occurrence, error: Exception) -> None:
    """Log what a handler has raised, with its traceback; whoever collects logs may read the rest by name."""
    _log.warning(
        "the handler of %s failed with %s at event %d",
        occurrence.event_name,
        type(error).__name__,
        occurrence.event_id,
        exc_info=error,
        extra={"event_type": occurrence.event_name, "event_id": occurrence.event_id},
    )
