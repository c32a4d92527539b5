"""Which subscription runs next, and with how many events.

This is bookkeeping inside one event loop: it uses no database, and the caller passes in the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pgps_worker.calls import Pending

__all__ = ["Agenda", "Outcome", "Result", "Turn"]

# While a suspect's batches take less than this share of their time limit, the number of events that it may have in a
# batch doubles; at the ceiling the limit is lifted.
_EASY = 0.25
_CEILING = 1024
# What a turn of the one runner more may handle when the subscription's last turn took longer than a slice.
_FEW = 5
# How many slices it has there while only such subscriptions wait.
_MANY = 10
# A session may end for reasons of its own. If it ends again while it handles the same single event, that event is to
# blame.
_DEATHS_TO_BLAME = 2
_PUT_OFF_FIRST, _PUT_OFF_MOST = 0.25, 30.0


class Outcome(enum.Enum):
    """How a turn ended."""

    HANDLED = enum.auto()
    """Some events were handled, their failures included."""
    NOTHING = enum.auto()
    """No event was waiting, or another worker has the subscription."""
    HUNG = enum.auto()
    """The callback ran out of time."""
    DIED = enum.auto()
    """The session ended while the callback ran."""
    FILED = enum.auto()
    """The one event that hangs or kills was filed as failed."""
    OUSTED = enum.auto()
    """It was rolled back, since another owner waited for its runner."""
    UNTOUCHED = enum.auto()
    """The turn never began: the session had ended before."""
    UNSERVED = enum.auto()
    """The turn failed outside of the callback, such as in a session that was lost; it is tried again after a while."""
    REFUSED = enum.auto()
    """Anything else went wrong; the turn is tried again after a while."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a turn came to.

    `more` says that further events may wait, of which nobody will send another
    notification. `share` is the part of its time limit that the turn took. The
    other fields say why it hung or died, and with which event if it had only one.
    """

    outcome: Outcome
    more: bool = True
    share: float = 0.0
    sqlstate: str = ""
    error: str = ""
    event: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One batch to run: at most `limit` events, None for the broker's own limit.

    A turn with a `verdict` runs nothing: it files the event that hung or killed
    the last turn, whose session did not live long enough to do so itself.
    """

    subscription: str
    priority: int
    limit: int | None
    deaths: int = 0
    verdict: Result | None = None
    owner: str = ""
    began: float = 0.0

    @property
    def alone(self) -> bool:
        """True when a failure of this turn can only be that of a single event."""
        return self.limit == 1

    def is_to_blame(self, outcome: Outcome) -> bool:
        """Return whether the event this turn ran must be filed as failed."""
        if not self.alone:
            return False
        deaths = self.deaths + (self.verdict is None)
        return outcome is Outcome.HUNG or (outcome is Outcome.DIED and deaths >= _DEATHS_TO_BLAME)


@dataclass(slots=True)
class _Waiting:
    priority: int
    since: float
    place: int
    owner: str


@dataclass(slots=True)
class _Record:
    """Why a subscription is treated differently from others; the record is removed when it behaves again."""

    limit: int | None = None
    deaths: int = 0
    verdict: Result | None = None
    failures: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class Agenda:
    """The subscriptions that wait, in the order in which they are served, and those that misbehave.

    Owners share the time that callbacks take: the owner whose turns have taken
    the least time is next, and the one of its subscriptions that has the highest
    priority. An owner that had nothing to do gets no credit for the time it did
    not use, so that nobody waits for longer than one turn of each owner.

    A suspect is a subscription whose callback hung or killed its process. It
    waits behind the others, and suspects never have all slots, so that callbacks
    that loop for ever hold up nobody else. A suspect that has waited for
    `patience` seconds is served by priority again.

    There is a runner more than slots: when all slots are taken, it serves owners
    of whom nothing runs. Who has it keeps it for a `time_slice` when others wait
    for it, then the turn is rolled back, and comes again in a slot. So however
    long the callbacks of some owners take, and however many these are, those of
    another one wait for no longer than that. A subscription whose last turn took
    longer than a slice waits for ten of them, comes there behind the others, and
    with few events.
    """

    slots: int
    patience: float
    clock: Callable[[], float]
    time_slice: float = 1.0
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _running: dict[str, bool] = field(default_factory=dict)
    _again: dict[str, int] = field(default_factory=dict)
    _used: dict[str, float] = field(default_factory=dict)
    _turns: dict[str, Turn] = field(default_factory=dict)
    _present: Counter[str] = field(default_factory=Counter)
    _records: dict[str, _Record] = field(default_factory=dict)
    _long: set[str] = field(default_factory=set)
    _watchers: deque[asyncio.Future[None]] = field(default_factory=deque)
    _places: int = 0
    _closed: bool = False

    @property
    def closed(self) -> bool:
        """True when no more turns are handed out."""
        return self._closed

    @property
    def idle(self) -> bool:
        """True when nothing waits and nothing runs."""
        return not self._waiting and not self._running

    def offer(self, pending: Iterable[Pending]) -> None:
        """Add subscriptions that have work, except for those that are put off until a time that has not come."""
        now = self.clock()
        for each in pending:
            name = each.subscription
            if name in self._running:
                self._again[name] = each.priority
            elif name in self._waiting:
                self._waiting[name].priority = each.priority
            elif name not in self._records or self._records[name].not_before <= now:
                self._enter(name, each.priority, each.owner)
        self._changed()

    async def take(self) -> Turn | None:
        """Return the next turn when there is one; None when the agenda is closed."""
        while not self._closed:
            turn = self._pick()
            if turn is not None:
                return turn
            await self._change()
        return None

    async def wanted(self, turn: Turn) -> None:
        """Return when another owner waits for the runner of a turn that has had its slice."""
        while not self._must_leave(turn):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._change(), self.time_slice)

    async def settled(self) -> None:
        """Return when nothing waits and nothing runs."""
        while not self.idle and not self._closed:
            await self._change()

    def done(self, turn: Turn, result: Result) -> None:
        """Record how a turn ended, and enter the subscription again if it may have more."""
        name = turn.subscription
        self._running.pop(name, None)
        if self._turns.pop(name, None) is not None:
            took = self.clock() - turn.began
            self._used[turn.owner] = self._used.get(turn.owner, 0.0) + took
            self._present[turn.owner] -= 1
            if result.outcome is Outcome.OUSTED or took > self.time_slice:
                self._long.add(name)
            elif turn.limit is None or result.outcome is Outcome.NOTHING:
                self._long.discard(name)
        again = self._again.pop(name, None)
        more = self._judge(turn, result)
        if more or (again is not None and self._may_run(name)):
            self._enter(name, turn.priority if again is None else again, turn.owner)
        self._changed()

    def close(self) -> None:
        """Hand out no more turns."""
        self._closed = True
        self._changed()

    def _judge(self, turn: Turn, result: Result) -> bool:
        """Update the subscription's record; return whether to run it again at once."""
        name, outcome = turn.subscription, result.outcome
        if outcome is Outcome.HANDLED:
            self._grow(name, result.share)
            return result.more
        if outcome in {Outcome.NOTHING, Outcome.UNTOUCHED, Outcome.OUSTED}:
            return outcome is not Outcome.NOTHING
        record = self._records.setdefault(name, _Record())
        if outcome is Outcome.UNSERVED:
            self._put_off(record)
            return False
        # As long as the event of a verdict is not filed, no turn may run into it again. A verdict that was refused is
        # out of date: another worker is handling this event.
        record.verdict = result if turn.is_to_blame(outcome) else None
        record.deaths = turn.deaths + 1 if outcome is Outcome.DIED and turn.alone else 0
        if outcome is not Outcome.REFUSED:
            record.limit = 1
        # A session that has ended keeps its locks for another moment, and the next turn would be refused because of
        # them.
        if outcome in {Outcome.REFUSED, Outcome.DIED} or record.verdict:
            self._put_off(record)
            return False
        return True

    def _put_off(self, record: _Record) -> None:
        record.not_before = self.clock() + min(_PUT_OFF_FIRST * 2**record.failures, _PUT_OFF_MOST)
        record.failures += 1

    def _grow(self, name: str, share: float) -> None:
        record = self._records.get(name)
        if record is None:
            return
        record.deaths = record.failures = 0
        record.verdict = None
        if record.limit is not None and share < _EASY:
            record.limit *= 2
        if record.limit is None or record.limit > _CEILING:
            del self._records[name]

    def _may_run(self, name: str) -> bool:
        return name not in self._records or self._records[name].not_before <= self.clock()

    def _enter(self, name: str, priority: int, owner: str) -> None:
        self._places += 1
        if not self._present[owner]:
            # An owner that joins begins with the time that the others have, without credit for earlier. Idle owners are
            # removed.
            busy = [other for other, entries in self._present.items() if entries]
            least = min((self._time(other) for other in busy), default=0.0)
            mine = self._used.get(owner, 0.0) if busy else 0.0
            self._used = {other: self._used.get(other, 0.0) for other in busy} | {owner: max(least, mine)}
            self._present = Counter({other: self._present[other] for other in busy})
        self._present[owner] += 1
        self._waiting[name] = _Waiting(priority, self.clock(), self._places, owner)

    def _time(self, owner: str) -> float:
        """Return how long an owner's turns have taken, including those that are running."""
        now = self.clock()
        running = sum(now - turn.began for turn in self._turns.values() if turn.owner == owner)
        return self._used.get(owner, 0.0) + running

    def _is_suspect(self, name: str) -> bool:
        return name in self._records and self._records[name].limit is not None

    def _eligible(self) -> list[str]:
        """Return what waits and may run now; beyond the slots, only what owners have of whom nothing runs."""
        full = sum(self._running.values()) >= max(1, self.slots - 1)
        busy = {turn.owner for turn in self._turns.values()} if self._is_full() else set()
        return [
            name
            for name, entry in self._waiting.items()
            if entry.owner not in busy and not (full and self._is_suspect(name))
        ]

    def _is_full(self) -> bool:
        return len(self._running) >= self.slots

    def _must_leave(self, turn: Turn) -> bool:
        """Return whether the turn is the newest of more than slots, and another owner waits for it.

        Who takes long turns itself waits for ten slices, lest they end each other's turns.
        """
        is_newest = next(reversed(self._turns), None) == turn.subscription
        if len(self._running) <= self.slots or not is_newest:
            return False
        had_much = self.clock() - turn.began > _MANY * self.time_slice
        return any(had_much or name not in self._long for name in self._eligible())

    def _pick(self) -> Turn | None:
        times = {owner: self._time(owner) for owner, entries in self._present.items() if entries}
        name = min(self._eligible(), key=lambda name: self._rank(name, times), default=None)
        if name is None:
            return None
        entry = self._waiting.pop(name)
        record = self._records.get(name, _Record())
        limit = record.limit
        if limit is None and name in self._long and self._is_full():
            limit = _FEW
        self._running[name] = record.limit is not None
        turn = Turn(name, entry.priority, limit, record.deaths, record.verdict, entry.owner, self.clock())
        self._turns[name] = turn
        return turn

    def _rank(self, name: str, times: dict[str, float]) -> tuple[bool, bool, float, int, int]:
        entry = self._waiting[name]
        demoted = self._is_suspect(name) and self.clock() - entry.since < self.patience
        takes_long = name in self._long and self._is_full()
        return demoted, takes_long, times[entry.owner], -entry.priority, entry.place

    async def _change(self) -> None:
        watcher = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        await watcher

    def _changed(self) -> None:
        """Wake everybody who waits: each looks for a turn, and waits again if there is none for it."""
        while self._watchers:
            watcher = self._watchers.popleft()
            if not watcher.done():
                watcher.set_result(None)
