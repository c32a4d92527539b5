"""Which direct events a program has had or missed: whoever may connect can send the note of them once more."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from dataclasses import dataclass, field

__all__ = ["Ended", "Had"]


class Ended:
    """The transactions that had ended when a snapshot was taken, which is given as PostgreSQL writes it.

    Those that go on in other databases of the server are among its own; so
    the lowest of them alone tells little.
    """

    __slots__ = ("_going_on", "_xmin", "xmax")

    def __init__(self, snapshot: str) -> None:
        xmin, xmax, going_on = snapshot.split(":")
        self._xmin, self.xmax = int(xmin), int(xmax)
        self._going_on = frozenset(int(xid) for xid in going_on.split(",") if xid)

    def __contains__(self, xid: int) -> bool:
        return xid < self._xmin or (xid < self.xmax and xid not in self._going_on)


@dataclass(slots=True)
class _Events:
    """Events of one type, as intervals of their ids that do not touch each other."""

    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    newest: dt.datetime | None = None

    def add(self, place: int, event_id: int) -> None:
        """Note an event behind the interval at a place."""
        follows = place >= 0 and self.last[place] == event_id - 1
        precedes = place + 1 < len(self.first) and self.first[place + 1] == event_id + 1
        if follows and precedes:
            self.last[place] = self.last[place + 1]
            del self.first[place + 1], self.last[place + 1]
        elif follows:
            self.last[place] = event_id
        elif precedes:
            self.first[place + 1] = event_id
        else:
            self.first.insert(place + 1, event_id)
            self.last.insert(place + 1, event_id)


class Had:
    """The events that a program has had in this session, by event type.

    Of a type up to `most` intervals of ids are known; of more the lowest are
    forgotten. Between them lie events of other types, and those that were
    rolled back or are not for this program.
    """

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._types: dict[int, _Events] = {}

    def is_new(self, type_id: int, event_id: int, published_at: dt.datetime) -> bool:
        """Note an event; return whether it has not come before."""
        events = self._types.setdefault(type_id, _Events())
        place = bisect_right(events.first, event_id) - 1
        if place >= 0 and event_id <= events.last[place]:
            if events.newest is not None and published_at <= events.newest:
                return False
            # The server was put back to a former state, and counts on from there: this is another event of that id.
            events = self._types[type_id] = _Events()
            place = -1
        events.add(place, event_id)
        events.newest = published_at if events.newest is None else max(events.newest, published_at)
        if len(events.first) > self._most:
            some = max(self._most // 100, 1)
            del events.first[:some], events.last[:some]
        return True
