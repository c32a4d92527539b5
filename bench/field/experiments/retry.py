"""Retry drain: a consumer refuses every event once.

1,000 events, one consumer; each event's first delivery is refused as the system provides it (pgps.nack_events without a
delay, pgq.event_retry with 0 seconds, a retry request, a rejection that requeues, a handler that throws), its second is
handled. What counts is events handled a second, from the first publication to the last handled event. PgQ's ticker
looks for events to retry every second, not every 30 as by default. graphile-worker is not here: it waits 2.7 seconds
before a job comes again, and that is not to be set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.field.plan import Plan

if TYPE_CHECKING:
    from bench.field.field import Field, Result

TITLE = "Retry drain"
NEEDS = ("pgps", "pgq", "rabbitmq", "pgqueuer", "procrastinate", "pgboss")
PLOT = "bars"
MINUTES = 3.0


def steps(field: Field) -> int:
    """Return how many rounds there are."""
    return field.house.runs


def run(field: Field, result: Result) -> None:
    """Measure it."""
    entries = [(system.title, system, Plan(fail_first=True, together=10)) for system in field.these(*NEEDS)]
    standings = field.compete(entries, seconds=0, events=200 if field.house.quick else 1000)
    result.add("events handled a second", "1 consumer", standings)
    for peer, standing in standings.items():
        if peer != "pgps" and "pgps" in standings:
            result.against(f"retry drain: against {peer}", standings["pgps"], standing, None)
