"""The overview: how much goes through the broker, and what an administrator should do."""

from __future__ import annotations

import asyncio
from typing import Any

from pgps import _catalogue
from pgps.cli import doctor
from pgps.cli._session import Options, Session
from pgps_console.pages.base import Look, Page

__all__ = ["PAGES"]

_MOST_TYPES = 12

# Sums of what the views show for each event type; those with the most to do are listed.
_TYPES = f"""
    select a.event_type, a.rate, a.published, a.waiting, a.last_batch_at,
           extract(epoch from pgps._clock() - a.oldest_waiting)::float8 as lag,
           count(*) over () as types, sum(a.rate) over () as all_rate, sum(a.waiting) over ()::bigint as all_waiting,
           min(a.oldest_waiting) over () as all_oldest, sum(a.published) over ()::bigint as all_published
    from pgps.activity a order by a.rate desc, a.waiting desc, a.event_type limit {_MOST_TYPES}
"""
_SUBSCRIPTIONS = """
    select count(*) as subscriptions, count(*) filter (where state = 'suspended') as suspended,
           count(*) filter (where state = 'paused') as paused, count(*) filter (where state = 'dead') as dead,
           count(*) filter (where state = 'slow') as slow, coalesce(sum(depth), 0)::bigint as depth,
           max(lag_seconds) as lag, coalesce(sum(rate), 0) as rate
    from pgps.subscriptions
"""
# Counted by itself: one way through all failures, not one for each subscription.
_FAILED = """
    select count(*) filter (where state = 'failed') as failed,
           count(*) filter (where state in ('retrying', 'leased')) as retrying
    from pgps.exceptions
"""


async def _overview(look: Look) -> dict[str, Any]:
    async with look.access.read() as reader:
        return {
            "types": await reader.rows(_TYPES),
            "workers": await reader.rows(_catalogue.workers()),
            "links": await reader.rows(_catalogue.links()),
        }


async def _totals(look: Look) -> dict[str, Any]:
    """Sum up all subscriptions, which with many takes longer than a page should: it is sent when it is known."""
    async with look.access.read() as reader:
        totals, failed = await reader.first(_SUBSCRIPTIONS), await reader.first(_FAILED)
    return {"totals": {**(totals or {}), **(failed or {})}}


async def _findings(look: Look) -> dict[str, Any]:
    """Return what `pgps doctor` finds; in a thread with a connection of its own, as the command line has it."""

    def examine() -> list[doctor.Finding]:
        session = Session(Options(dsn=look.access.conninfo))
        try:
            return doctor.examine(session)
        finally:
            session.close()

    found = await asyncio.to_thread(examine)
    order = ["problem", "warning", "note", "ok"]
    return {"findings": sorted(found, key=lambda one: order.index(one.level))}


PAGES = (
    Page("/", "overview.html", _overview, "Overview"),
    Page("/totals", "totals.html", _totals),
    Page("/findings", "findings.html", _findings),
)
