"""A sliding window over one key's values, kept from micro-batch to micro-batch."""

from __future__ import annotations

import json
import math
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Figures", "SlidingWindow"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a window has: how many events, their mean, standard deviation (of the sample), smallest and largest."""

    events: int
    mean: float
    deviation: float
    lowest: float
    highest: float


@dataclass(slots=True)
class SlidingWindow:
    """The values of the last `seconds`, by the events' own time; an event that comes late is compared, and not kept."""

    seconds: float
    values: deque[tuple[float, float]] = field(default_factory=deque)
    # The end of the span whose figures were given last.
    slid: float | None = None

    def figures(self, at: float) -> Figures | None:
        """Return the figures of what lies within the window before `at`; None for less than two events."""
        while self.values and self.values[0][0] < at - self.seconds:
            self.values.popleft()
        known = [value for time, value in self.values if time < at]
        if len(known) < 2:
            return None
        mean = math.fsum(known) / len(known)
        variance = math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)
        return Figures(len(known), mean, math.sqrt(variance), min(known), max(known))

    def add(self, at: float, value: float) -> None:
        """Keep a value."""
        if not self.values or at >= self.values[-1][0]:
            self.values.append((at, value))

    def slides(self, at: float, slide: float) -> list[float]:
        """Return the ends of spans of length `slide` that have passed by `at`; at most one, the newest."""
        end = math.floor(at / slide) * slide
        if self.slid is None or end <= self.slid:
            self.slid = end if self.slid is None else self.slid
            return []
        self.slid = end
        return [end]

    def dumps(self) -> str:
        """Return it as text, for Spark's state."""
        return json.dumps({"values": list(self.values), "slid": self.slid})

    @classmethod
    def loads(cls, seconds: float, text: str) -> SlidingWindow:
        """Return what `dumps` wrote."""
        kept = json.loads(text)
        return cls(seconds, deque((at, value) for at, value in kept["values"]), kept["slid"])
