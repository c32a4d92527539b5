"""How eagerly the dispatcher looks for events: pure arithmetic, measured in docs/decisions.

Asleep, it is told of every commit, at the cost of a NOTIFY in each. Awake, it
looks by itself and commits cost nothing more. It is better to be told while
commits are few: latency is lowest and idle time is free. When they are many,
NOTIFY's database-wide lock would hold up the publishers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["ALL_ENDED_POLLS", "CONFIRM", "SAFETY", "Pace"]

SAFETY = 1.0
"""Seconds between looks while asleep, should a notification be lost."""
CONFIRM = 0.005
"""Seconds until a look that makes sure a batch left nothing behind."""
ALL_ENDED_POLLS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1)
"""Seconds between looks for those who were committing when the dispatcher fell asleep."""

_ROUNDS = 8
_BUSY_SPAN = 0.020
_BUSY_EVENTS = 256
_LINGER = 0.0005
_CALM = 0.010


@dataclass(slots=True)
class Pace:
    """Decides when to stay awake, from the batches dispatched so far; times are of one monotonic clock."""

    _rounds: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_ROUNDS))

    def note(self, events: int, now: float) -> None:
        """Record a look and what it found."""
        if events:
            self._rounds.append((now, events))

    def is_busy(self, now: float) -> bool:
        """Return whether commits come so fast that publishers should be spared the NOTIFY."""
        if not self._rounds:
            return False
        first = self._rounds[0][0]
        recent = sum(events for at, events in self._rounds if now - at < _BUSY_SPAN)
        return (len(self._rounds) == _ROUNDS and now - first < _BUSY_SPAN) or recent >= _BUSY_EVENTS

    def is_calm(self, now: float) -> bool:
        """Return whether nothing has come for long enough to fall asleep."""
        return not self._rounds or now - self._rounds[-1][0] > _CALM

    def linger(self, events: int) -> float:
        """Return how long to let events gather before the next look while awake, in seconds."""
        return _LINGER if events else 2 * _LINGER
