"""Filters over stored data: the paper's figure 8.

20 publishers publish StockQuotes as fast as they can; each subscriber has a filter over a table of 100 portfolios, each
of which holds all 100 symbols, so that every event goes to every subscriber. Portfolios are random; then 10, 20, 30 %
of the subscribers have the same one. With ActiveMQ, whose selectors see no tables, every event is delivered and the
client looks into PostgreSQL, with a prepared statement, per event; its strongest rival has the publisher look up which
portfolios hold the symbol and add them as a property that selectors match. Subscriptions are durable, events
persistent; consumers take and acknowledge 100 at a time. What counts is events received by all subscribers a second,
from the first publication to the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.field.plan import Plan
from bench.figures import Target

if TYPE_CHECKING:
    from bench.field.field import Field, Result

TITLE = "Filters on stored data (figure 8)"
NEEDS = ("pgps", "activemq")
PLOT = "curves"
MINUTES = 10.0
_POINTS = (100, 10, 1, 50, 20)
_SHARED = (0, 10, 20, 30)
_RANDOM, _SAME = "pgps, random portfolios", "pgps, {} % on the same portfolio"
_LOOKUP, _PROPERTY = "ActiveMQ, client asks PostgreSQL", "ActiveMQ, publisher adds portfolios"


def steps(field: Field) -> int:
    """Return how many rounds there are."""
    return len(field.points(_POINTS, (10,))) * field.house.runs


def run(field: Field, result: Result) -> None:
    """Measure it."""
    pgps, activemq = field.systems.get("pgps"), field.systems.get("activemq")
    points = field.points(_POINTS, (10,))
    for subscribers in field.paced(points, result):
        plan = {"subscribers": subscribers, "filters": "portfolio", "symbols": 100}
        # With few subscribers the shares are all the same.
        shared = _SHARED if subscribers >= 10 else (0,)
        entries = [(_SAME.format(part) if part else _RANDOM, pgps, Plan(**plan, shared=part)) for part in shared]  # type: ignore[arg-type]
        entries += [
            (_LOOKUP, activemq, Plan(**plan, rival="lookup")),  # type: ignore[arg-type]
            (_PROPERTY, activemq, Plan(**plan, rival="property")),  # type: ignore[arg-type]
        ]
        standings = field.compete(entries, seconds=field.seconds(1.5))
        result.add("deliveries a second", subscribers, standings)
        if subscribers == points[0] and activemq and pgps:
            mine, shares = standings[_RANDOM], standings[_SAME.format(30)]
            at = f"{subscribers} subscribers, filters on stored data"
            goal = Target("at least", 5) if subscribers == 100 else None
            result.against(f"{at}, against {_LOOKUP}", mine, standings[_LOOKUP], goal)
            result.against(f"{at}, against {_PROPERTY}", mine, standings[_PROPERTY], None)
            result.against(f"{at}, 30 % share one, against {_LOOKUP}", shares, standings[_LOOKUP], goal)
