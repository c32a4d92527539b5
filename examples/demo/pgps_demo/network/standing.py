"""The state of a network: how many events have arrived and how many are on their way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from pgps_demo.network.site import Site, wait_for

__all__ = ["Counter", "in_force", "settle"]

_WAITING: LiteralString = """
    select (select coalesce(sum(waiting), 0) from pgps.activity)::bigint
        + (select coalesce(sum(depth), 0) from pgps.subscriptions)::bigint
        + (select coalesce(sum(lag_events), 0) from pgps.links)::bigint
        + (select coalesce(sum(lag), 0) from pgps.composite_events)::bigint as waiting,
        (select count(*) from pgps.links where state not in ('up', 'elsewhere')) as down
"""
_IN_FORCE: LiteralString = """
    select coalesce(sum(cardinality(filters_in_force)), 0)::integer as filters
    from pgps.routes where origin = %s and is_parent
"""
# If nothing has been on its way for so many seconds, events that are missing will not come any more.
_LONG = 8.0


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts the rows of a subscriber's table; while its broker is away, the last count stands."""

    site: Site
    role: str | None
    query: str
    last: list[int]

    def look(self) -> int:
        """Return the number of rows."""
        try:
            with psycopg.connect(self.site.dsn(self.role)) as connection:
                row = connection.execute(f"select count(*) from ({self.query}) t".encode()).fetchone()
        except psycopg.OperationalError:
            return self.last[0]
        assert row is not None
        self.last[0] = row[0]
        return self.last[0]


def in_force(site: Site, origin: str) -> int:
    """Return how many filters of a broker are in force at another."""
    return int(site.rows(_IN_FORCE, [origin])[0]["filters"])


def settle(
    sites: Sequence[Site], counters: Mapping[str, Counter], wanted: Mapping[str, int], watch: Callable[[], None]
) -> None:
    """Return when all has arrived and nothing is on its way.

    It also returns when nothing is on its way although something is missing; the proof then reports it.
    """
    quiet_since: list[float] = []

    def look() -> Any:
        watch()
        standing = [site.rows(_WAITING)[0] for site in sites]
        quiet = not any(each["waiting"] or each["down"] for each in standing)
        counts = {name: counter.last[0] for name, counter in counters.items()}
        if not quiet:
            quiet_since.clear()
        elif not quiet_since:
            quiet_since.append(time.monotonic())
        complete = all(counts[name] >= wanted[name] for name in wanted)
        if quiet and (complete or time.monotonic() - quiet_since[0] > _LONG):
            return True
        return [*counts.values(), *(tuple(each.values()) for each in standing)]

    wait_for(look, sites, "events to arrive")
