"""Latency at 1, 100 and 1,000 events a second, each system with its default settings.

One consumer; four producers publish at even intervals, one event a transaction, for 5 seconds at one event a second,
2.5 at 100, 2 at 1,000. A latency is the time from just before the producer's call to the moment the consumer has the
event, by the machine's clock. Polling intervals, ticks and wake-ups are the systems' defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.field.plan import Plan
from bench.figures import Figure, Target, ratios

if TYPE_CHECKING:
    from bench.field.field import Field, Result
    from bench.field.rounds import Standing

TITLE = "Latency with default settings"
NEEDS = ("pgps", "pgq", "rabbitmq", "activemq", "pgqueuer", "procrastinate", "pgboss", "graphile")
PLOT = "bars"
MINUTES = 15.0
RATES = (100, 1, 1000)
_SECONDS = {1: 5.0, 100: 2.5, 1000: 2.0}


def steps(field: Field) -> int:
    """Return how many rounds there are."""
    return len(field.points(RATES, (100,))) * field.house.runs


def run(field: Field, result: Result) -> None:
    """Measure it."""
    for rate in field.paced(field.points(RATES, (100,)), result):
        seconds = 1.0 if field.house.quick else _SECONDS[rate]
        entries = [(system.title, system, Plan(publishers=4, eager=False)) for system in field.these(*NEEDS)]
        standings = field.compete(entries, seconds=seconds, rate=rate)
        result.add("median, ms, by events a second", f"{rate:,}", standings, "median")
        result.add("99th percentile, ms, by events a second", f"{rate:,}", standings, "tail")
        for label, standing in standings.items():
            if standing.outcomes and standing.median("produced") < 0.9 * rate and seconds * rate >= 100:
                result.notes.append(f"{label} published only {standing.median('produced'):,.0f} of {rate:,} a second.")
            if label != "pgps" and "pgps" in standings:
                _compare(result, f"median latency at {rate:,}/s: {label} against pgps", standings["pgps"], standing)


def _compare(result: Result, what: str, mine: Standing, theirs: Standing) -> None:
    pgps, other = ([one.median for one in standing.outcomes] for standing in (mine, theirs))
    if mine.error is None and theirs.error is None and pgps:
        # The target compares with the queues in a database only.
        goal = None if what.partition(": ")[2].startswith(("RabbitMQ", "ActiveMQ")) else Target("at least", 1)
        result.figures.append(Figure(what, ratios(other, pgps), goal, pgps, other, "ms"))
