"""Guaranteed delivery without filters: the paper's figure 9.

20 publishers publish persistent StockQuotes as fast as they can, one a transaction; every event goes to every
subscriber. Subscriptions are durable; consumers take and acknowledge up to 100 events at a time, and the same is
measured with one at a time. What counts is events received by all subscribers a second, from the first publication to
the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.field.plan import Plan
from bench.figures import Target

if TYPE_CHECKING:
    from bench.field.field import Field, Result

TITLE = "Guaranteed delivery (figure 9)"
NEEDS = ("pgps", "activemq")
PLOT = "curves"
MINUTES = 8.5
_POINTS = (100, 10, 1, 50, 20, 5)


def steps(field: Field) -> int:
    """Return how many rounds there are."""
    return len(field.points(_POINTS, (10,))) * field.house.runs


def run(field: Field, result: Result) -> None:
    """Measure it."""
    points = field.points(_POINTS, (10,))
    for subscribers in field.paced(points, result):
        entries = []
        for system in field.these("pgps", "activemq"):
            name = system.title.partition(",")[0]
            entries.append((f"{name}, acknowledging 100", system, Plan(subscribers=subscribers, batch=100)))
            entries.append((f"{name}, acknowledging each", system, Plan(subscribers=subscribers, batch=1)))
        standings = field.compete(entries, seconds=field.seconds(1.5))
        result.add("deliveries a second", subscribers, standings)
        if subscribers == points[0] and len(field.these(*NEEDS)) == 2:
            goal = Target("at least", 3) if subscribers == 100 else None
            for kind, target in (("acknowledging 100", goal), ("acknowledging each", None)):
                what = f"{subscribers} subscribers, guaranteed delivery, {kind}: against ActiveMQ"
                result.against(what, standings[f"pgps, {kind}"], standings[f"ActiveMQ, {kind}"], target)
