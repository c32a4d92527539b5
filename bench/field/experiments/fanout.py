"""Fan-out to 1, 10 and 100 independent consumers, without and with a content filter.

20 producers, one event a transaction. Without a filter every consumer gets every event; with one, those of one symbol
of ten, which is a tenth. How a system does that is up to its means: pgps and ActiveMQ by the subscription's filter,
RabbitMQ by a direct exchange on the symbol, PgQ by the condition that its batch cursor takes, pg-boss by a topic of its
publish/subscribe for each symbol, pgqueuer, procrastinate and graphile-worker by a producer that knows the consumers
and makes a job for each that wants the event. Consumers take up to 1,000 at a time; in PgQ, what came between two
ticks; workers of procrastinate and graphile-worker run ten jobs at a time, which they take one by one; these two are
not measured with 100 workers. Here and in the other measurements of throughput PgQ ticks every 100 ms and pg-boss polls
every 500, the least it allows. What counts is events received by all consumers a second, from the first publication to
the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.field.plan import Plan
from bench.figures import Target

if TYPE_CHECKING:
    from bench.field.field import Field, Result
    from bench.field.plan import Filters

TITLE = "Fan-out"
NEEDS = ("pgps", "pgq", "rabbitmq", "activemq", "pgqueuer", "procrastinate", "pgboss", "graphile")
_ONE_BY_ONE = ("procrastinate", "graphile")
PLOT = "bars"
MINUTES = 17.0
_POINTS = (10, 100, 1)
_TABLES: dict[Filters, str] = {
    "symbol": "deliveries a second, a tenth of the events to each consumer",
    "none": "deliveries a second, every event to every consumer",
}


def steps(field: Field) -> int:
    """Return how many rounds there are."""
    return 2 * len(field.points(_POINTS, (10,))) * field.house.runs


def run(field: Field, result: Result) -> None:
    """Measure it."""
    points = [(consumers, filters) for consumers in field.points(_POINTS, (10,)) for filters in _TABLES]
    for consumers, filters in field.paced(points, result):
        plan = Plan(subscribers=consumers, filters=filters, batch=1000)
        names = [name for name in NEEDS if consumers <= 10 or name not in _ONE_BY_ONE]
        entries = [(system.title, system, plan) for system in field.these(*names)]
        standings = field.compete(entries, seconds=field.seconds(1))
        result.add(_TABLES[filters], consumers, standings)
        for peer, standing in standings.items():
            if peer == "pgps" or "pgps" not in standings:
                continue
            if filters == "symbol" and consumers >= 10:
                what = f"fan-out to {consumers} consumers with a filter: against {peer}"
                result.against(what, standings["pgps"], standing, Target("at least", 1))
            elif filters == "none" and peer == "PgQ":
                what = f"fan-out to {consumers} consumer{'s' if consumers > 1 else ''} without a filter: against {peer}"
                result.against(what, standings["pgps"], standing, Target("at least", 1))
