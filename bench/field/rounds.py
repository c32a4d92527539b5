"""Run contenders in turn, round by round; compare the events that arrived with those that had to arrive."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.field.crew import Crew, Published, Records
from bench.figures import percentile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.field.plan import Plan
    from bench.field.systems.base import Session, System
    from bench.house import House

__all__ = ["Contender", "Outcome", "Standing", "calibrate", "compete", "noting", "verify"]

_TIMEOUT = 60.0
_SMALLEST = 20
_FEWEST = 3
_CAP = 60_000
_MOST_DELIVERIES = 400_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """One round of one contender: deliveries, and seconds from the first publication to the last of them."""

    events: int
    deliveries: int
    seconds: float
    publishing: float
    latencies: list[float] = field(default_factory=list)
    repeats: int = 0
    disordered: int = 0

    @property
    def rate(self) -> float:
        """Deliveries a second."""
        return self.deliveries / self.seconds

    @property
    def median(self) -> float:
        """Milliseconds from just before the publication to the consumer."""
        return percentile(self.latencies, 0.5)

    @property
    def tail(self) -> float:
        """The 99th percentile of these."""
        return percentile(self.latencies, 0.99)

    @property
    def produced(self) -> float:
        """Events published a second."""
        return self.events / self.publishing

    def record(self) -> dict[str, Any]:
        """Return it as raw results keep it: latencies as percentiles."""
        kept = {**dataclasses.asdict(self), "rate": self.rate, "produced": self.produced}
        latencies = kept.pop("latencies")
        if latencies:
            kept["latency_ms"] = {str(part): percentile(latencies, part) for part in (0.5, 0.9, 0.99, 1.0)}
        return kept


@dataclass(slots=True)
class Standing:
    """The results of a contender; `error` is set when it failed before its end."""

    outcomes: list[Outcome] = field(default_factory=list)
    error: str | None = None

    def median(self, what: str) -> float:
        """Return the median of an attribute over the rounds."""
        return float(statistics.median(getattr(one, what) for one in self.outcomes))

    def record(self) -> dict[str, Any]:
        """Return it as raw results keep it."""
        return {"error": self.error, "rounds": [one.record() for one in self.outcomes]}


@dataclass(slots=True, eq=False)
class Contender:
    """A system with a plan; running from entry to exit."""

    label: str
    system: System
    plan: Plan
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _next: int = 0
    session: Session = field(init=False)
    crew: Crew = field(init=False)

    def open(self, house: House) -> None:
        """Start its servers and clients."""
        house.say(f"{self.label}: starting")
        self.session = self._stack.enter_context(self.system.open(house, self.plan))
        subscribing = self.session.clients and not self.plan.produce
        self.crew = self._stack.enter_context(Crew(self.session.program, self.plan.record(), subscribing=subscribing))

    def close(self) -> None:
        """End them."""
        self._stack.close()

    def round(self, count: int, rate: float | None = None) -> Outcome:
        """Publish so many events, wait until all have arrived, compare; raises RuntimeError for a difference."""
        published = self.crew.publish(self._next, count, rate)
        self._next += count
        if self.plan.produce:
            seconds = published.ended - published.began
            return Outcome(count, 0, seconds, seconds)
        outcome = verify(
            self.plan, published, self._arrived(published.numbers), once=self.system.once, label=self.label
        )
        if self.system.ordered and outcome.disordered and not self.plan.fail_first:
            raise RuntimeError(f"{self.label}: {outcome.disordered} events came out of their publishers' order")
        return outcome

    def _arrived(self, numbers: range) -> dict[int, Records]:
        expect = [_wanted(self.plan, k, numbers) for k in range(self.plan.subscribers)]
        seen: dict[int, Records] = {}
        if self.session.clients:
            seen = self.crew.collect(expect, _TIMEOUT)
        else:
            deadline = time.monotonic() + _TIMEOUT
            while self.session.handled_count() < sum(expect) and time.monotonic() < deadline:
                time.sleep(0.1)
        if self.plan.consume != "receive":
            # The rows of the application's table count.
            seen = self.session.handled()
            self.session.clear()
        return seen


def _wanted(plan: Plan, subscriber: int, numbers: range) -> int:
    if plan.filters != "symbol":
        return len(numbers)
    return sum(plan.wants(subscriber, number) for number in numbers)


def verify(plan: Plan, published: Published, seen: dict[int, Records], *, once: bool, label: str) -> Outcome:
    """Compare every subscriber's set of events; raises RuntimeError when one lacks an event or has a foreign one."""
    when = dict(zip(published.sent.numbers, published.sent.times, strict=True))
    deliveries = repeats = disordered = 0
    last = published.began
    latencies: list[float] = []
    for k in range(plan.subscribers):
        records = seen.get(k, Records())
        got = set(records.numbers)
        wanted = {n for n in published.numbers if plan.wants(k, n)}
        if got != wanted:
            lost, foreign = sorted(wanted - got), sorted(got - wanted)
            raise RuntimeError(
                f"{label}: subscriber {k} lacks {len(lost)} of {len(wanted)} events ({lost[:3]} …) "
                f"and has {len(foreign)} that it should not have ({foreign[:3]} …)"
            )
        deliveries += len(got)
        repeats += len(records.numbers) - len(got)
        disordered += _disordered(records, published.first, plan.publishers)
        last = max(last, *records.times, last)
        latencies += [(at - when[n]) * 1000 for n, at in zip(records.numbers, records.times, strict=True)]
    if once and repeats:
        raise RuntimeError(f"{label}: {repeats} events came again")
    began, ended = published.began, published.ended
    return Outcome(published.count, deliveries, last - began, ended - began, latencies, repeats, disordered)


def _disordered(records: Records, first: int, publishers: int) -> int:
    """Count events that came after a later one of the same publisher."""
    latest: dict[int, int] = {}
    late = 0
    for number in records.numbers:
        publisher = (number - first) % publishers
        if number < latest.get(publisher, -1):
            late += 1
        latest[publisher] = max(number, latest.get(publisher, -1))
    return late


def compete(
    house: House, contenders: Sequence[Contender], *, seconds: float, rate: float | None = None,
    events: int | None = None, deadline: float = float("inf"),
) -> dict[str, Standing]:  # fmt: skip
    """Run all contenders in alternating order; each round lasts about `seconds` for each of them.

    The number of events that this takes is determined first, in rounds that
    do not count and also warm the system up. With `rate` or `events` given
    this is not needed. After `deadline` (of time.monotonic) there are no
    more than three rounds.
    """
    standings = {one.label: Standing() for one in contenders}
    sizes: dict[str, int] = {}
    try:
        for one in contenders:
            with noting(house, one, standings[one.label]):
                one.open(house)
                sizes[one.label] = events or _size(house, one, seconds, rate)
        for number in house.pairs():
            if number >= _FEWEST and time.monotonic() > deadline:
                break
            turn = number % max(1, len(contenders))
            for one in [*contenders[turn:], *contenders[:turn]]:
                standing = standings[one.label]
                if standing.error is None:
                    house.say(f"{one.label}: {sizes[one.label]} events")
                    with noting(house, one, standing):
                        house.checkpoint()
                        outcome = one.round(sizes[one.label], rate)
                        standing.outcomes.append(outcome)
                        if not rate and not events and outcome.seconds > 2 * seconds:
                            sizes[one.label] = _whole(one.plan, sizes[one.label] * seconds / outcome.seconds)
    finally:
        for one in contenders:
            with contextlib.suppress(Exception):
                one.close()
    return standings


def _size(house: House, contender: Contender, seconds: float, rate: float | None) -> int:
    if rate is None:
        return calibrate(house, contender, seconds)
    # The first events are slower: connections are opened, plans made and code compiled.
    contender.round(_SMALLEST, max(rate, 10.0))
    return max(1, round(rate * seconds))


def calibrate(house: House, contender: Contender, seconds: float) -> int:
    """Return how many events take about so many seconds; determining this also warms the system up."""
    plan = contender.plan
    share = 1.0 if plan.produce else max(1.0, plan.share())
    most = int(max(_SMALLEST, min(_CAP, _MOST_DELIVERIES / share)))
    size = max(_SMALLEST, min(most, round(400 / share)))
    house.say(f"{contender.label}: warming up")
    outcome = contender.round(size)
    if outcome.seconds < 3 * seconds:
        # The wait for a tick or a poll does not grow with the events, so the time of additional events counts.
        more = min(most, 3 * size)
        again = contender.round(more)
        marginal = (more - size) / max(again.seconds - outcome.seconds, 1e-3)
        pace = again.events / again.seconds if more == size else max(again.events / again.seconds, marginal)
        size = min(round(min(pace, again.produced) * seconds), 10 * more)
    else:
        size = round(size / outcome.seconds * seconds)
    return _whole(plan, min(most, size))


def _whole(plan: Plan, size: float) -> int:
    """Return the number of events, rounded up so that each publisher has the same number."""
    step = max(_SMALLEST, plan.publishers)
    return max(1, math.ceil(size / step)) * step


def _headlines(text: str) -> str:
    """Return an error's lines that are neither frames of a trace, Python's or JavaScript's, nor parts of an object."""
    lines = (
        line.removesuffix(" {").removesuffix(" Traceback (most recent call last):")
        for line in text.splitlines()
        if not line.startswith((" ", "}", "Traceback"))
    )
    return "; ".join(line for line in lines if line)


@contextlib.contextmanager
def noting(house: House, contender: Contender, standing: Standing) -> Iterator[None]:
    """Record a failure of one contender and stop it, so that the others go on undisturbed."""
    try:
        yield
    except Exception as error:
        # The log of a client may be a stack trace with paths, so it is printed and not kept in the results.
        standing.error = f"{type(error).__name__}: {_headlines(str(error))}"
        house.progress.console.print(traceback.format_exc(), markup=False)
        with contextlib.suppress(Exception):
            contender.close()
