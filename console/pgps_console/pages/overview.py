"""The overview: how much goes through the broker, and what an administrator should do."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pgps import _catalogue
from pgps.cli import doctor
from pgps.cli._session import Options, Session
from pgps_console.database import STATEMENT_TIMEOUT, Access
from pgps_console.pages.base import Look, Page

__all__ = ["PAGES"]

_MOST_TYPES = 12
# Of findings of one kind some are shown, so that what else there is remains in sight.
_MOST_ALIKE = 3
# Threads of their own: the others look names up for whoever connects, and must not wait for a lock in the database.
_EXAMINERS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="pgps-console-findings")

# Sums of what the views show for each event type; those with the most to do are listed.
_TYPES = f"""
    select a.event_type, a.rate, a.published, a.waiting, a.last_batch_at,
           extract(epoch from pgps._clock() - a.oldest_waiting)::float8 as lag,
           count(*) over () as types, sum(a.rate) over () as all_rate, sum(a.waiting) over ()::bigint as all_waiting,
           min(a.oldest_waiting) over () as all_oldest, sum(a.published) over ()::bigint as all_published
    from pgps.activity a order by a.rate desc, a.waiting desc, a.event_type limit {_MOST_TYPES}
"""


async def _overview(look: Look) -> dict[str, Any]:
    async with look.access.read() as reader:
        return {
            "types": await reader.rows(_TYPES),
            "workers": await reader.rows(_catalogue.workers()),
            "links": await reader.rows(_catalogue.links()),
        }


async def _totals(look: Look) -> dict[str, Any]:
    """Sum up all subscriptions: of many, what waits is estimated from a thousand."""
    async with look.access.ask() as reader:
        return {"totals": await reader.first("select * from pgps.totals()")}


async def _findings(look: Look) -> dict[str, Any]:
    """Return what `pgps doctor` finds; whoever asks again meanwhile is told the same."""
    access = look.access
    if access.examination is None:
        access.examination = asyncio.create_task(_examine(access), name="pgps-console-findings")
        access.examination.add_done_callback(lambda _: access.forget_examination())
    found: list[doctor.Finding] = await asyncio.shield(access.examination)
    order = ["problem", "warning", "note", "ok"]
    kinds: dict[tuple[str, str], list[doctor.Finding]] = {}
    for one in sorted(found, key=lambda one: order.index(one.level)):
        if one.level != "ok":
            kinds.setdefault((one.level, one.check), []).append(one)
    return {"looked": len(found), "kinds": list(kinds.values()), "most": _MOST_ALIKE}


async def _examine(access: Access) -> list[doctor.Finding]:
    """Examine the broker in a thread, with a connection of its own, as the command line does."""

    def examine() -> list[doctor.Finding]:
        session = Session(Options(dsn=access.conninfo))
        try:
            return doctor.examine(session, statement_timeout=STATEMENT_TIMEOUT)
        finally:
            session.close()

    async with access.place():
        return await asyncio.get_running_loop().run_in_executor(_EXAMINERS, examine)


PAGES = (
    Page("/", "overview.html", _overview, "Overview"),
    Page("/totals", "totals.html", _totals),
    Page("/findings", "findings.html", _findings),
)
