"""Transactional consumption into an application table: the paper's figure 10.

Every subscriber handles each event by inserting it into a table of the application. In pgps as in the paper: the
subscriber is a stored function, called for each event or for a batch, in one transaction with the acknowledgement; and
a client that receives, inserts and acknowledges in one transaction. With ActiveMQ: acknowledgement after the commit
(which repeats events after a crash), the same into a table whose key makes repeats harmless, and a distributed (XA)
transaction of broker and database, whose coordinator is in the client and forces its decision to disk. One event a
transaction, and up to 100. What counts is rows of the application table a second; the table is what is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.field.plan import Plan
from bench.figures import Target

if TYPE_CHECKING:
    from bench.field.field import Field, Result
    from bench.field.plan import Consume

TITLE = "Transactional consumption (figure 10)"
NEEDS = ("pgps", "activemq")
PLOT = "curves"
MINUTES = 18.0
_POINTS = (100, 10, 1, 50, 20)
_CALLBACK, _XA = "pgps, stored function, a batch", "ActiveMQ, XA, one at a time"
_SERIES: dict[str, tuple[str, Consume, int]] = {
    _CALLBACK: ("pgps", "callback", 100),
    "pgps, stored function, each event": ("pgps", "callback", 1),
    "pgps, client, up to 100": ("pgps", "transaction", 100),
    "pgps, client, one at a time": ("pgps", "transaction", 1),
    "ActiveMQ, ack after commit, one at a time": ("activemq", "ack-after-commit", 1),
    "ActiveMQ, idempotent, one at a time": ("activemq", "idempotent", 1),
    "ActiveMQ, idempotent, up to 100": ("activemq", "idempotent", 100),
    _XA: ("activemq", "xa", 1),
    "ActiveMQ, XA, up to 100": ("activemq", "xa", 100),
}


def steps(field: Field) -> int:
    """Return how many rounds there are."""
    return len(field.points(_POINTS, (5,))) * field.house.runs


def run(field: Field, result: Result) -> None:
    """Measure it."""
    points = field.points(_POINTS, (5,))
    for subscribers in field.paced(points, result):
        entries = [
            (label, field.systems.get(name), Plan(subscribers=subscribers, consume=consume, batch=batch))
            for label, (name, consume, batch) in _SERIES.items()
        ]
        standings = field.compete(entries, seconds=field.seconds(1.5))
        result.add("rows a second", subscribers, standings)
        if subscribers == points[0] and len(field.these(*NEEDS)) == 2:
            at = f"{subscribers} subscribers, transactional consumption, against"
            for label in _SERIES:
                if label.startswith("ActiveMQ"):
                    goal = Target("at least", 10) if label == _XA and subscribers >= 20 else None
                    result.against(f"{at} {label}", standings[_CALLBACK], standings[label], goal)
