"""What a stream reads between two positions: ids of events by batch and type, cut into parts for tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

__all__ = ["TOGETHER", "Merged", "Slice", "cut", "gathered", "merged"]

# Fewer events than this are not worth a second task.
_WORTH = 2_000
# If at least this share of the ids between the first and the last is wanted, all are read and the others left out.
_DENSE = 0.2
_MOST_IDS = 50_000
TOGETHER = 2_000
"""So many events are read at once when their slices are small, and put in order in memory."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Events of one type in one batch: ranges of ids, from the first to below the second, in order."""

    batch: int
    event_type: str
    ranges: list[tuple[int, int]]

    @property
    def events(self) -> int:
        """How many."""
        return sum(hi - lo for lo, hi in self.ranges)

    def taken(self, most: int) -> tuple[Slice, Slice | None]:
        """Return the first `most` events, and the others."""
        head: list[tuple[int, int]] = []
        for place, (lo, hi) in enumerate(self.ranges):
            if hi - lo > most:
                tail = [(lo + most, hi), *self.ranges[place + 1 :]]
                if most:
                    head.append((lo, lo + most))
                return Slice(self.batch, self.event_type, head), Slice(self.batch, self.event_type, tail)
            head.append((lo, hi))
            most -= hi - lo
            if most == 0 and place + 1 < len(self.ranges):
                return Slice(self.batch, self.event_type, head), Slice(
                    self.batch, self.event_type, self.ranges[place + 1 :]
                )
        return self, None

    def conditions(self) -> Iterator[sql.Composable]:
        """Return conditions that find the events by their ids, one query each, in order."""
        lo, hi = self.ranges[0][0], self.ranges[-1][1]
        if len(self.ranges) == 1:
            yield sql.SQL("event_id >= {} and event_id < {}").format(sql.Literal(lo), sql.Literal(hi))
        elif self.events >= _DENSE * (hi - lo) and len(self.ranges) <= _MOST_IDS:
            text = "{" + ",".join(f"[{a},{b})" for a, b in self.ranges) + "}"
            yield sql.SQL("event_id >= {} and event_id < {} and event_id <@ {}::int8multirange").format(
                sql.Literal(lo), sql.Literal(hi), sql.Literal(text)
            )
        else:
            ids = [number for a, b in self.ranges for number in range(a, b)]
            for start in range(0, len(ids), _MOST_IDS):
                yield sql.SQL("event_id = any ({}::bigint[])").format(sql.Literal(ids[start : start + _MOST_IDS]))


@dataclass(frozen=True, slots=True)
class Merged:
    """Several slices of one type as one; an event is of slice `numbers[n]` whose range begins at `starts[n]`."""

    whole: Slice
    starts: list[int]
    numbers: list[int]


def merged(group: list[Slice]) -> Iterator[Merged]:
    """Put slices of one type together; what was put back (batch 0) stays apart."""
    kinds: dict[tuple[str, bool], list[tuple[int, int, int]]] = {}
    for number, each in enumerate(group):
        found = kinds.setdefault((each.event_type, each.batch == 0), [])
        found += [(lo, hi, number) for lo, hi in each.ranges]
    for (event_type, _), ranges in kinds.items():
        ranges.sort()
        joined: list[tuple[int, int]] = []
        for lo, hi, _ in ranges:
            if joined and joined[-1][1] == lo:
                joined[-1] = (joined[-1][0], hi)
            else:
                joined.append((lo, hi))
        whole = Slice(group[ranges[0][2]].batch, event_type, joined)
        yield Merged(whole, [lo for lo, _, _ in ranges], [number for _, _, number in ranges])


def gathered(slices: list[Slice]) -> Iterator[list[Slice]]:
    """Put small slices that follow one another together; a large one stays alone."""
    group: list[Slice] = []
    events = 0
    for each in slices:
        if group and events + each.events > TOGETHER:
            yield group
            group, events = [], 0
        group.append(each)
        events += each.events
    if group:
        yield group


def cut(slices: list[Slice], parts: int) -> list[list[Slice]]:
    """Cut slices into at most `parts` of about the same number of events, keeping the order."""
    events = sum(each.events for each in slices)
    most = max(-(-events // parts), _WORTH)
    found: list[list[Slice]] = []
    room = 0
    for each in slices:
        rest: Slice | None = each
        while rest is not None:
            if room == 0:
                found.append([])
                room = most
            head, tail = rest.taken(room)
            found[-1].append(head)
            room -= head.events
            rest = tail
    return found
