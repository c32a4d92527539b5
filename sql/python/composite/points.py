"""Points of a history, and occurrences, which lie between two of them.

A point is one integer: microseconds, then the position in the order of delivery, then a rank. So two points
compare as fast as two numbers and take 48 bytes. A tick of the clock comes behind all events of its time.

An occurrence is a tuple, since a detector may hold a million of them:
of an event     (serial, start, end, leaf, event_id, origin, payload)
of an operator  (serial, start, end, node, groups); a group of occurrences for each operand
of ticks        (0, first, last, None, period), which stands for all ticks from the first to the last
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional

BEFORE, EVENT, BEHIND = 0, 1, 2  # ranks: the beginning of a transaction, an event, a commit
TIME_BITS = 100
TICK = 1 << 99
POSITION = (1 << 97) - 1

Occurrence = tuple[Any, ...]
Groups = tuple[tuple[Occurrence, ...], ...]
SERIAL, START, END, NODE, GROUPS, ORIGIN, PAYLOAD = range(7)


class Event(NamedTuple):
    """Hold an event as the detector takes it.

    position: its place in the order of delivery, below 2^96. time: microseconds since 1970.
    matches: (name of the leaf, key) for each leaf that it matches; None has the detector ask its matcher.
    payload: what conditions and attributes are given; the detector never looks into it.
    start: (time, position) of the beginning of a composite event.
    span: its beginning and its end as points, where the end is not the moment at which it came.
    told: what a neighbour has detected, as it travels; its matches name sub-expressions instead of leaves.
    """

    position: int
    time: Optional[int]
    type: str
    payload: Any = None
    id: Optional[int] = None
    origin: Optional[str] = None
    transaction: Optional[int] = None
    start: Optional[tuple[int, int]] = None
    matches: Optional[list[tuple[str, Any]]] = None
    span: Optional[tuple[int, int]] = None
    told: Optional[list[Any]] = None


class Idle(NamedTuple):
    """Say in the stream that a source had been silent for too long at a time: it holds up nothing now."""

    origin: Optional[str]
    type: str
    time: int


def point_of(time: int, position: int, rank: int = EVENT) -> int:
    """Return the point of an event."""
    return time << TIME_BITS | position << 2 | rank


def tick_point(time: int) -> int:
    """Return the point of the ticks of a time."""
    return time << TIME_BITS | TICK


def undone(point: int) -> int:
    """Return the first time whose ticks are still to come at a point."""
    return (point >> TIME_BITS) + (1 if point & TICK else 0)


def time_of(point: int) -> int:
    """Return the microseconds of a point."""
    return point >> TIME_BITS


def position_of(point: int) -> int:
    """Return the position of the event at a point."""
    return point >> 2 & POSITION


def events_of(occurrence: Occurrence) -> Iterator[Occurrence]:
    """Return the events and ticks that an occurrence is made of, not in order of time."""
    stack = [occurrence]
    while stack:
        found = stack.pop()
        if found[NODE] is None or len(found) == 7:
            yield found
        else:
            for group in found[GROUPS]:
                stack.extend(group)


def identities(occurrence: Occurrence) -> set[Any]:
    """Return what tells the events of an occurrence from others; ticks of a window belong to it alone."""
    return {identity(event) for event in events_of(occurrence) if event[NODE] is not None}


def identity(event: Occurrence) -> Any:
    """Return what tells one event or tick from others: composite events may end at the same point."""
    if event[NODE].op == "leaf":
        # Outside a broker the events of each type may have numbers of their own.
        return event[END] >> 2 if event[GROUPS] is None else (event[GROUPS], event[ORIGIN], event[NODE].expression.type)
    return event[END], event[NODE].name


def shares(one: Occurrence, other: Occurrence) -> bool:
    """Tell whether two occurrences have an event in common."""
    if len(one) == 7 and len(other) == 7:
        return identities(one) == identities(other)
    return not identities(one).isdisjoint(identities(other))


def span(groups: Iterable[Iterable[Occurrence]]) -> tuple[int, int]:
    """Return the least beginning and the last end in groups of occurrences."""
    members = [member for group in groups for member in group]
    return min(member[START] for member in members), max(member[END] for member in members)


def tick_times(ticks: Occurrence) -> range:
    """Return the times of a run of ticks."""
    first, last, period = time_of(ticks[START]), time_of(ticks[END]), ticks[GROUPS]
    return range(first, last + 1, period or 1)
