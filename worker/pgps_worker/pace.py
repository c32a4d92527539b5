"""How eagerly the dispatcher looks for events: pure arithmetic.

Asleep, it is told of every commit, at the cost of a NOTIFY in each. Awake, it
looks by itself and commits cost nothing more. It is better to be told while
commits are few: latency is lowest and idle time is free. When they are many,
NOTIFY's database-wide lock would hold up the publishers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["ALL_ENDED_POLLS", "CONFIRM", "SAFETY", "Pace", "confirm"]

SAFETY = 1.0
"""Seconds between looks while asleep, should a notification be lost."""
CONFIRM = 0.005
"""Seconds until a look that makes sure a batch left nothing behind, if it is large: it may have been cut off."""
_CONFIRM_FEW = 0.1
"""The same after a small batch: only transactions whose ids reach far can have made it one that was cut off."""
_FEW = 100
ALL_ENDED_POLLS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, *[0.1] * 300)
"""Seconds between looks for those who were publishing when the dispatcher fell asleep: they will commit without a
NOTIFY. After half a minute the looks of a sleeping dispatcher have to do."""

# Busy: so many batches in so short a time (400 a second), or hardly a pause between as many batches, however long: also
# with few events, since what then fills the machine is better done for several events at once, and without NOTIFY.
_ROUNDS = 8
_BUSY_SPAN = 0.020
_BUSY_SHARE = 0.5
# Calm: nothing for this long, or for as long as two batches take.
_CALM = 0.010
# A pause as long as a batch takes leaves the processor to those who receive. At 1,000 events a second on two cores,
# where a batch took 1.2 ms: no pause, median 7.4 ms and 29 % of a core for the worker alone; 2 ms, 5.2 ms and 9 %.
_LINGER_LEAST, _LINGER_MOST = 0.0005, 0.010
# And so long for each event of a batch: at 1,000 a second it comes to less than that, from 2,500 on to the most. There
# the publishers need the processor: 20 of them, on two cores, published 5,182 events a second, 7,521 without a worker.
_LINGER_EVENT = 0.0004


def confirm(events: int) -> float:
    """Return how long to wait, asleep, for the next look after one that found so many events."""
    if not events:
        return SAFETY
    return CONFIRM if events > _FEW else _CONFIRM_FEW


@dataclass(slots=True)
class Pace:
    """Decides when to stay awake, from the batches dispatched so far; times are of one monotonic clock."""

    _rounds: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=_ROUNDS))

    def note(self, events: int, *, began: float, ended: float) -> None:
        """Record a look that took from `began` to `ended`, and what it found."""
        if events:
            self._rounds.append((began, ended, events))

    def is_busy(self, now: float) -> bool:
        """Return whether commits come so fast that publishers should be spared the NOTIFY."""
        if len(self._rounds) < _ROUNDS or self.is_calm(now):
            return False
        span = now - self._rounds[0][0]
        return span < _BUSY_SPAN or self._working() > _BUSY_SHARE * span

    def is_calm(self, now: float) -> bool:
        """Return whether nothing has come for long enough to fall asleep."""
        if not self._rounds:
            return True
        return now - self._rounds[-1][1] > max(_CALM, 2 * self._average())

    def linger(self) -> float:
        """Return how long to let events gather before the next look while awake, in seconds."""
        events = sum(events for _, _, events in self._rounds) / max(1, len(self._rounds))
        return min(max(_LINGER_LEAST, self._average(), _LINGER_EVENT * events), _LINGER_MOST)

    def _average(self) -> float:
        return self._working() / max(1, len(self._rounds))

    def _working(self) -> float:
        return sum(ended - began for began, ended, _ in self._rounds)
