"""Sustained rate: the highest at which the lag stays bounded, with 1, 10 and 100 consumers.

20 producers publish at an even rate, one event a transaction, for 8 seconds; every consumer gets every event and takes
up to 1,000 at a time, in PgQ what came between two ticks, so that everything is published, delivered and received at
the same time and the processors are shared by all of it. A rate is held when at least 98 % of it is published and the
last consumer has the last event at most 0.4 seconds after the last publication: a system that can do 5 % less than what
is published of it is further behind by then. The rate is searched from what the system does when it is fed as fast as
it goes, for some seconds: halving what lies between the highest rate that was held and the lowest that was not, in
steps of their ratio, until they are within 8 % of each other or fourteen times one was tried, the systems in turns. A
rate that was not held is tried once more, since the machine may have stood still meanwhile; but while none was held,
half of one that was missed by more than two seconds comes next. What counts is the highest rate that was held, in
events a second; consumers get that many times as many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.field.plan import Plan
from bench.field.rounds import Contender, Standing, calibrate, noting
from bench.figures import Figure, Target, ratios

if TYPE_CHECKING:
    from bench.field.field import Field, Result
    from bench.field.rounds import Outcome

TITLE = "Sustained rate"
NEEDS = ("pgps", "pgq", "rabbitmq", "pgqueuer")
PLOT = "bars"
MINUTES = 42.0
_POINTS = (1, 100, 10)
_TABLE = "events a second with a bounded lag, by consumers"
_SECONDS = 8.0
_TRIALS = 14
_BEHIND = 0.4
_PUBLISHED = 0.98
_CLOSE = 1.08
_FIRST = 0.8
"""Of what it does when it is fed as fast as it goes, that much is tried first."""
_STEP, _LEAP = 1.4, 2.0
_CLEARLY = 2.0
"""Seconds behind after which a rate is not tried again while none was held."""
_FED, _MOST = 1.5, 20_000
"""It is fed for so many seconds at least, or with so many events."""


@dataclass(slots=True)
class _Search:
    """The highest rate that was held, and the lowest that was not."""

    rate: float
    held: float = 0.0
    missed: float = math.inf
    again: bool = False
    best: Outcome | None = None
    tried: list[dict[str, Any]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.held > 0 and self.missed / self.held <= _CLOSE

    def note(self, outcome: Outcome) -> None:
        """Take in how a rate went, and choose the next one."""
        behind = outcome.seconds - outcome.publishing
        held = behind <= _BEHIND and outcome.produced >= _PUBLISHED * self.rate
        self.tried.append({"rate": self.rate, "published": outcome.produced, "behind": behind, "held": held})
        clearly = behind > _CLEARLY and not self.held
        self.again = not held and not clearly and not self.again
        if held:
            self.held, self.best = self.rate, outcome
        elif self.again:
            return
        else:
            self.missed = self.rate
        if math.isinf(self.missed):
            self.rate = self.held * _STEP
        elif not self.held:
            self.rate = self.missed / (_LEAP if clearly else _STEP)
        else:
            self.rate = math.sqrt(self.held * self.missed)


def steps(field: Field) -> int:
    """Return how many rates are tried at most."""
    return len(field.points(_POINTS, (1,))) * len(field.these(*NEEDS)) * _trials(field)


def run(field: Field, result: Result) -> None:
    """Measure it."""
    for consumers in field.paced(field.points(_POINTS, (1,)), result):
        standings, searches = _compete(field, Plan(subscribers=consumers, batch=1000))
        result.add(_TABLE, consumers, standings, "produced")
        result.raw[str(consumers)] = {label: search.tried for label, search in searches.items()}
        for label, standing in standings.items():
            if label != "pgps" and "pgps" in standings:
                _compare(result, consumers, label, standings["pgps"], standing)


def _compete(field: Field, plan: Plan) -> tuple[dict[str, Standing], dict[str, _Search]]:
    contenders = {Contender(system.title, system, plan): Standing() for system in field.these(*NEEDS)}
    searches: dict[str, _Search] = {}
    seconds = field.seconds(_SECONDS)
    try:
        for contender, standing in contenders.items():
            with noting(field.house, contender, standing):
                contender.open(field.house)
                searches[contender.label] = _Search(_FIRST * _pace(field, contender))
        for _ in range(_trials(field)):
            for contender, standing in contenders.items():
                if standing.error is None and not searches[contender.label].over:
                    with noting(field.house, contender, standing):
                        _try(field, contender, searches[contender.label], seconds)
                field.house.progress.advance(field.house.task)
    finally:
        for contender in contenders:
            contender.close()
    for contender, standing in contenders.items():
        search = searches.get(contender.label)
        if standing.error is None and search is not None and search.best is not None:
            standing.outcomes.append(search.best)
        elif standing.error is None:
            standing.error = "no rate that was tried was held"
    return {contender.label: standing for contender, standing in contenders.items()}, searches


def _pace(field: Field, contender: Contender) -> float:
    """Return how many events a second come through as fast as it goes, once all connections are warm."""
    count = calibrate(field.house, contender, field.seconds(2))
    while True:
        outcome = contender.round(count)
        if outcome.seconds > field.seconds(_FED) or count >= _MOST:
            return outcome.events / outcome.seconds
        count = min(_MOST, 4 * count)


def _try(field: Field, contender: Contender, search: _Search, seconds: float) -> None:
    field.house.say(f"{contender.label}: {search.rate:,.0f}/s")
    field.house.checkpoint()
    publishers = contender.plan.publishers
    # As many for each publisher.
    events = max(1, round(search.rate * seconds / publishers)) * publishers
    search.note(contender.round(events, search.rate))


def _trials(field: Field) -> int:
    return 2 if field.house.quick else _TRIALS


def _compare(result: Result, consumers: int, peer: str, mine: Standing, theirs: Standing) -> None:
    if mine.error is None and theirs.error is None:
        pgps, other = ([one.produced for one in standing.outcomes] for standing in (mine, theirs))
        what = f"sustained with {consumers} consumer{'s' if consumers > 1 else ''}: against {peer}"
        result.figures.append(Figure(what, ratios(pgps, other), Target("at least", 1), pgps, other, "/s"))
