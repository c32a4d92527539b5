"""The order of a history: by arrival, or by the events' own times once the watermark has passed them."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Optional, Union

from composite.points import BEFORE, Event, Idle, point_of

Source = tuple[Optional[str], str]  # origin and event type


class Late(NamedTuple):
    """Hold an event that came too late, and why it could not be taken."""

    event: Event
    reason: str


class Ordering:
    """Say where each event of a stream belongs, and how far the history is complete.

    frontier: all before it has come. sources: the latest time of each; idle: when one had been silent for too long.
    """

    def __init__(self, time_basis: str, lateness: int) -> None:
        self.time_basis = time_basis
        self.lateness = lateness
        self.frontier: Optional[int] = None
        self.sources: dict[Source, int] = {}
        self.idle: dict[Source, int] = {}

    def take(self, batch: Iterable[Union[Event, Idle]]) -> tuple[list[tuple[int, Event]], list[Late]]:
        """Return the events with their points, in the order in which they came, and those that are too late."""
        if self.time_basis == "arrival":
            return self.take_arrivals(batch), []
        placed: list[tuple[int, Event]] = []
        late: list[Late] = []
        for item in batch:
            if isinstance(item, Idle):
                self.idle[item.origin, item.type] = item.time
                self.sources.setdefault((item.origin, item.type), item.time)
                self.advance()
            elif item.time is None:
                late.append(Late(item, "its time is null"))
            elif self.frontier is not None and item.time < self.frontier:
                late.append(Late(item, "the watermark had passed its time"))
            else:
                source = (item.origin, item.type)
                self.idle.pop(source, None)
                self.sources[source] = max(self.sources.get(source, item.time), item.time)
                placed.append((point_of(item.time, item.position), item))
                self.advance()
        return placed, late

    def take_arrivals(self, batch: Iterable[Union[Event, Idle]]) -> list[tuple[int, Event]]:
        """Return events with points along which time never goes back."""
        placed: list[tuple[int, Event]] = []
        clock = self.frontier
        for item in batch:
            if isinstance(item, Idle):
                continue
            time = item.time
            if time is None:
                raise ValueError(f"event {item.position} has no time")
            if clock is None or time > clock:
                clock = time
            placed.append((point_of(clock, item.position), item))
        self.frontier = clock
        return placed

    def advance(self) -> None:
        """Move the frontier to the least time of the sources that are not idle, less the lateness."""
        active = [time for source, time in self.sources.items() if source not in self.idle]
        reached = min(active) if active else max(self.idle.values())
        self.reach(reached - self.lateness)

    def reach(self, frontier: int) -> None:
        """Move the frontier on; it never goes back."""
        if self.frontier is None or frontier > self.frontier:
            self.frontier = frontier

    def held_back(self, point: int) -> bool:
        """Tell whether something may still come before a point.

        With a lateness an event of the frontier's own time may still come; without one ties stand as they came.
        """
        if self.frontier is None:
            return True
        return point >= point_of(self.frontier + (self.lateness == 0), 0, BEFORE)

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {
            "frontier": self.frontier,
            "sources": [[*source, time] for source, time in self.sources.items()],
            "idle": [[*source, time] for source, time in self.idle.items()],
        }

    def load(self, dumped: dict[str, Any]) -> None:
        """Take over a state."""
        self.frontier = dumped["frontier"]
        self.sources = {(origin, kind): time for origin, kind, time in dumped["sources"]}
        self.idle = {(origin, kind): time for origin, kind, time in dumped["idle"]}
