"""How often the dispatcher looks for events; this is arithmetic, without a database.

While it is asleep, each commit notifies it, which costs the publisher a NOTIFY.
While it is awake, it looks by itself, and commits cost nothing more. Notifications
are better while commits are few: latency is lowest, and nothing is done while there
are no events. When commits are many, the lock that NOTIFY takes for the whole
database would hold up the publishers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["ALL_ENDED_POLLS", "CONFIRM", "RUNG_POLLS", "SAFETY", "Pace", "confirm"]

SAFETY = 1.0
"""Seconds between looks while asleep, should a notification be lost."""
CONFIRM = 0.005
"""Seconds until the look that makes sure that a large batch left nothing behind: it may have reached its limit."""
_CONFIRM_FEW = 0.1
"""The same after a small batch, which ends early only where the ids of a transaction span a wide range."""
_FEW = 100
ALL_ENDED_POLLS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, *[0.1] * 300)
"""Seconds between looks for the events of those who were publishing when the dispatcher fell asleep, since they will
commit without a NOTIFY. After half a minute the looks of a sleeping dispatcher have to suffice."""

RUNG_POLLS = (0.001, 0.001, 0.002, 0.004, 0.008, *[0.016] * 125, *[0.1] * 280)
"""The same where publishers ring before they commit, and the dispatcher waits for each event in this way."""

# Busy: so many commits in so short a time (400 a second), or hardly a pause between the batches they came in, however
# long: also with few events, since what then fills the machine is better done for several events at once, and without
# NOTIFY. Commits are counted by their notifications: publishers that notify wait for each other's flush, the dispatcher
# among them, and 20 of them had it find itself busy after half a second when it counted its batches.
_COMMITS = 8
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
# And while still more come, for so long for each event a second, divided by the processors: on two, 40 ms at 10,000.
# There the processors are full, and a batch costs much the same for few events as for many: 20 publishers of single
# events came to 1.11 times as much with 50 ms as with 10 (decision 35). Not after larger batches than single events
# make: these are of few transactions, and may have left something behind.
_LINGER_RATE, _LINGER_FULL, _SINGLE = 0.000008, 0.050, 2_000
# And so long, divided by the processors, for each subscription beyond the first that a batch wakes: waking one, and
# having it receive what little there is, takes 1.5 ms of a processor, so that an eighth of them goes into that. Without
# it 10 consumers of a tenth each received 1,773 events a second on two cores, with it 2,589; 100 of them 3,445 and
# 7,569, after no longer a time, since who is woken less often finds more.
_LINGER_WOKEN, _LINGER_WOKEN_MOST = 0.012, 0.250


def confirm(events: int) -> float:
    """Return how long to wait, asleep, for the next look after one that found so many events."""
    if not events:
        return SAFETY
    return CONFIRM if events > _FEW else _CONFIRM_FEW


@dataclass(frozen=True, slots=True)
class Round:
    """A look that took from `began` to `ended`: events it found, subscriptions it woke, commits known to be in it."""

    began: float
    ended: float
    events: int
    woken: int = 1
    commits: int = 1


@dataclass(slots=True)
class Pace:
    """Decides when to stay awake, from the batches dispatched so far; times are of one monotonic clock."""

    cores: int = 2
    """The processors that server and clients share."""
    _rounds: deque[Round] = field(default_factory=lambda: deque(maxlen=_ROUNDS))

    def note(self, batch: Round) -> None:
        """Record a look that found something."""
        self._rounds.append(batch)

    def is_busy(self, now: float) -> bool:
        """Return whether commits come so fast that publishers should be spared the NOTIFY."""
        if self.is_calm(now):
            return False
        commits, working = 0, 0.0
        for batch in reversed(self._rounds):
            commits += batch.commits
            working += batch.ended - batch.began
            if commits >= _COMMITS:
                span = now - batch.began
                return span < _BUSY_SPAN or working > _BUSY_SHARE * span
        return False

    def is_calm(self, now: float) -> bool:
        """Return whether nothing has come for long enough to fall asleep."""
        if not self._rounds:
            return True
        return now - self._rounds[-1].ended > max(_CALM, 2 * self._average())

    def linger(self) -> float:
        """Return how long to let events gather before the next look while awake, in seconds."""
        rounds = max(1, len(self._rounds))
        events = sum(one.events for one in self._rounds) / rounds
        woken = sum(one.woken for one in self._rounds) / rounds
        most = _LINGER_MOST
        if events <= _SINGLE:
            most = min(max(most, self._rate() * _LINGER_RATE / self.cores), _LINGER_FULL)
        pause = min(max(_LINGER_LEAST, self._average(), _LINGER_EVENT * events), most)
        return max(pause, min(max(0.0, woken - 1) * _LINGER_WOKEN / self.cores, _LINGER_WOKEN_MOST))

    def _rate(self) -> float:
        """Return the events a second between the first batch and the last."""
        if len(self._rounds) < _ROUNDS or self._rounds[-1].ended <= self._rounds[0].ended:
            return 0.0
        events = sum(one.events for one in self._rounds) - self._rounds[0].events
        return events / (self._rounds[-1].ended - self._rounds[0].ended)

    def _average(self) -> float:
        return self._working() / max(1, len(self._rounds))

    def _working(self) -> float:
        return sum(one.ended - one.began for one in self._rounds)
