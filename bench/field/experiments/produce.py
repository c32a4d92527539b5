"""Produce: 20 producers, nobody receives.

Each system's own client publishes StockQuotes as fast as it can, 1, 10 and 100 in a transaction, with
synchronous_commit on and off: several are one call where the client library has one, and one statement over arrays in
pgps, PgQ and the outbox; with ActiveMQ a session that commits. One durable subscription exists; workers, relays and
tickers run. With RabbitMQ, producing is inserting into the outbox; ActiveMQ's store obeys the database's setting of
synchronous_commit, too. What counts is events a second. `make bench` has the same for pgps and PgQ without a client
library: pgbench, line "single".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.field.plan import Plan
from bench.figures import Target

if TYPE_CHECKING:
    from bench.field.field import Field, Result

TITLE = "Produce"
NEEDS = ("pgps", "pgq", "rabbitmq", "activemq", "pgqueuer", "procrastinate", "pgboss", "graphile")
PLOT = "bars"
MINUTES = 8.5
_POINTS = (1, 100, 10)
_LEAST = {"PgQ": 1, "RabbitMQ + outbox": 0.75}


def steps(field: Field) -> int:
    """Return how many rounds there are."""
    return 2 * len(field.points(_POINTS, (10,))) * field.house.runs


def run(field: Field, result: Result) -> None:
    """Measure it."""
    points = field.points(_POINTS, (10,))
    for together, setting in field.paced([(point, setting) for point in points for setting in ("on", "off")], result):
        plan = Plan(together=together, synchronous=setting == "on", produce=True)
        entries = [(system.title, system, plan) for system in field.these(*NEEDS)]
        standings = field.compete(entries, seconds=field.seconds(1))
        table = f"events a second, synchronous_commit {setting}, by events in a transaction"
        result.add(table, together, standings, "produced")
        for peer, least in _LEAST.items():
            if peer in standings and "pgps" in standings:
                goal = Target("at least", least) if peer == "PgQ" or together == 1 else None
                what = f"produce, {together} a transaction, synchronous_commit {setting}: against {peer}"
                result.against(what, standings["pgps"], standings[peer], goal, "produced")
