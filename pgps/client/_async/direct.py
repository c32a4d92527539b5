"""Direct events: the notes that tell of them, the occurrences that they stand for, and who gets these."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from pgps.client import _names
from pgps.client._async import runtime
from pgps.client._async.hub import Heard
from pgps.client._async.occurrence import AsyncOccurrence
from pgps.client._async.seat import AsyncSeat
from pgps.client._had import Ended, Had
from pgps.client._names import Registration, Registrations

__all__ = ["AsyncDirect", "log_failure"]

_log = logging.getLogger("pgps.client")
_CHANNEL = "pgps_direct_"
_NOTES = 100
"""How many notes are fetched at once."""
_CARRIED = 1000
"""Up to so many events that came with their notes are held; the events of later notes are fetched."""
_LONG = 1000
"""Of so many occurrences that are fetched by whoever walks them it is known that they were handed out."""
_PAUSE = 0.05
"""How often it is looked whether somebody has polled, when there is no room for more."""


class AsyncDirect:
    """The direct occurrences of a named client.

    `local` holds those that nobody handles, for whoever polls, up to
    `max_local`; then their notes wait, and hold up no handler. `dropped`
    counts those for which there was no room.
    """

    def __init__(self, seat: AsyncSeat, registrations: Registrations, max_local: int) -> None:
        self.dropped = 0
        self.local: deque[AsyncOccurrence] = deque()
        self.arrived = runtime.Signal()
        self.look_again = False
        self.is_started = False
        self._seat = seat
        self._registrations = registrations
        self._max_local = max_local
        self._notes: deque[str] = deque()
        self._waiting: deque[str] = deque()
        self._had = Had()
        self._ended: dict[str, Ended] = {}
        self._names_of: dict[str, str] = {}
        self._long: dict[tuple[str, int], None] = {}

    # -----------------------------------------------------------------------------------------------------------------
    # Notes
    # -----------------------------------------------------------------------------------------------------------------

    async def listen(self, channels: list[str], snapshot: str) -> None:
        """Listen on channels of direct events; of transactions that had ended by the snapshot none are told there.

        The snapshot is of before it is listened. One that ends lower than
        before is that of a server that was put back.
        """
        ended = Ended(snapshot)
        for channel in channels:
            if ended.xmax < self._ended.setdefault(channel, ended).xmax:
                self._ended[channel] = ended
                self._long.clear()
            await self._seat.listen(channel, self.ear(channel))

    def ear(self, channel: str) -> Heard:
        """Return what is told the notifications of a channel.

        Whoever may connect can send on a channel whose name he guesses. So events are taken only out of what comes on
        the one that the broker has told to this session, and there alone the broker tells of former transactions. Of
        a type's channel a note is taken if it is about that type and a transaction that had not ended before. What was
        told before is told in vain.
        """

        def heard(payload: str | None) -> None:
            if payload is None or payload == "registrations":
                self.look_again = True
            elif payload != "reply" and self.is_started:
                self._take(channel, payload)
            self.arrived.set()
            self._seat.signal.set()

        return heard

    def _take(self, channel: str, payload: str) -> None:
        bare = _names.bare(payload)
        is_fine = _names.is_note(payload)
        if not channel.startswith("pgps_carried_"):
            parts = bare.split(" ")
            is_fine = is_fine and len(parts) == 4 and channel == _CHANNEL + parts[0]
            if is_fine and channel in self._ended and int(parts[3]) in self._ended[channel]:
                return
            payload = bare
        held = len(self._notes)
        if not is_fine:
            _log.warning("client %s was sent something that is no note of events", self._seat.name)
        elif held < self._max_local:
            self._notes.append(payload if held < _CARRIED else bare)
        else:
            self.dropped += 1

    async def look(self) -> None:
        """Ask for the channels once more, when there may be others."""
        if self.look_again:
            self.look_again = False
            channels, snapshot = (await self._seat.rows(_names.CHANNELS, {}))[0]
            await self.listen([channel for channel in channels if channel.startswith(_CHANNEL)], snapshot)

    async def hand_out(self) -> None:
        """Hand out what has been told of: to handlers, and to whoever polls as far as there is room."""
        while not self._seat.is_closed:
            if self._waiting and self._has_room():
                notes = self._waiting
            elif not self._notes:
                if not self._waiting:
                    return
                await runtime.sleep(_PAUSE)  # who polls is slow
                continue
            elif self._is_to_wait(self._notes[0]):
                self._put_aside(self._notes.popleft())
                continue
            else:
                notes = self._notes
            if notes[0] != _names.bare(notes[0]):
                await self._hand_out_carried(notes.popleft())
                continue
            async for occurrence in self._pushed(self._next_of(notes)):
                await self._hand_out(occurrence)

    def _has_room(self) -> bool:
        return len(self.local) < self._max_local

    def _is_to_wait(self, note: str) -> bool:
        """Tell whether a note is one for whoever polls, and others wait already, or there is no room."""
        if not self._waiting and self._has_room():
            return False
        event_type = self._names_of.get(note.partition(" ")[0])
        # The first of a type tells which that is.
        return event_type is not None and not self._has_handler(event_type)

    def _has_handler(self, event_type: str) -> bool:
        registration = self._registrations.direct(event_type)
        return registration is not None and registration.is_handled

    def _put_aside(self, note: str) -> None:
        if len(self._waiting) < self._max_local:
            self._waiting.append(_names.bare(note))
        else:
            self.dropped += 1

    def _next_of(self, queue: deque[str]) -> list[str]:
        notes: list[str] = []
        while queue and len(notes) < _NOTES and queue[0] == _names.bare(queue[0]):
            if queue is self._notes and self._is_to_wait(queue[0]):
                break
            notes.append(queue.popleft())
        return notes

    # -----------------------------------------------------------------------------------------------------------------
    # Occurrences
    # -----------------------------------------------------------------------------------------------------------------

    async def _hand_out_carried(self, note: str) -> None:
        type_id = note.partition(" ")[0]
        try:
            occurrence = AsyncOccurrence.carried(self._seat, _names.carried(note))
        except Exception as error:
            _log.warning("client %s cannot read a note: %s", self._seat.name, type(error).__name__)
            return
        self._names_of[type_id] = occurrence.event_type
        if occurrence.keep(lambda event_id: self._had.is_new(int(type_id), event_id, occurrence.published_at)):
            await self._hand_out(occurrence)

    async def _hand_out(self, occurrence: AsyncOccurrence) -> None:
        registration = self._registrations.direct(occurrence.event_type)
        if registration is not None:
            occurrence.event_name = registration.event_name
        if registration is None or registration.handler is None or not registration.is_handled:
            self.local.append(occurrence)
            self._seat.signal.set()
            return
        try:
            await runtime.call(registration.handler, occurrence)
        except runtime.STOPPED:
            raise
        except BaseException as error:  # the application's own
            registration.note_failure(error)
            log_failure(registration, occurrence, error)
            if isinstance(error, runtime.ENDS_PROGRAM):
                raise

    async def _pushed(self, notes: list[str]) -> AsyncIterator[AsyncOccurrence]:
        """Yield the occurrences that notes stand for; the tuples of a large one are fetched as they are walked."""
        after = 0
        while notes:
            params = {"notes": notes, "after": after, "max": _names.GROUP}
            rows = await self._seat.rows(_names.FETCH_DIRECT, params)
            is_whole = len(rows) < _names.GROUP
            last_note, last_id = rows[-1][:2] if rows else (0, 0)
            for part in self._parts(notes, rows):
                note, occurrence, up_to = part[0][0], part[0][-1], part[0][-2]
                goes_on = not is_whole and note == last_note and up_to > last_id
                if goes_on:
                    self._note_long(notes[note - 1], occurrence)
                yield AsyncOccurrence.pushed(self._seat, part, notes[note - 1] if goes_on else None)
            if is_whole:
                return
            if _is_one_statement(notes[last_note - 1], [row for row in rows if row[0] == last_note]):
                notes, after = notes[last_note:], 0  # who walks it fetches the rest
            else:
                notes, after = notes[last_note - 1 :], last_id

    def _parts(self, notes: list[str], rows: list[Any]) -> list[list[Any]]:
        """Return the rows that have not come before, those of each note and occurrence together."""
        parts: dict[tuple[int, int], list[Any]] = {}
        for row in rows:
            type_id = notes[row[0] - 1].partition(" ")[0]
            self._names_of[type_id] = row[3]
            if (type_id, row[-1]) not in self._long and self._had.is_new(int(type_id), row[1], row[5]):
                parts.setdefault((row[0], row[-1]), []).append(row)
        return list(parts.values())

    def _note_long(self, note: str, occurrence: int) -> None:
        self._long[note.partition(" ")[0], occurrence] = None
        if len(self._long) > _LONG:
            del self._long[next(iter(self._long))]


def _is_one_statement(note: str, rows: list[Any]) -> bool:
    """Tell whether what a note stands for is all of the statement that its rows so far are of."""
    parts = note.split(" ")
    return len(parts) == 4 and {row[-1] for row in rows} == {rows[0][-1]} and rows[0][-2] == int(parts[2])


def log_failure(registration: Registration, occurrence: AsyncOccurrence, error: BaseException) -> None:
    """Log what a handler has raised, with its traceback; whoever collects logs may read the rest by name."""
    has_ended = registration.error is not None
    _log.log(
        logging.ERROR if has_ended else logging.WARNING,
        "the handler of %s failed with %s at event %d%s",
        occurrence.event_name,
        type(error).__name__,
        occurrence.event_id,
        ", and is called no more" if has_ended else "",
        exc_info=error,
        extra={"event_type": occurrence.event_name, "event_id": occurrence.event_id},
    )
