"""Units of work: services, conversations, and where each unit is."""

from __future__ import annotations

from typing import Any

from pgps_console.pages.base import ROWS, Look, Page, shorten

__all__ = ["PAGES"]

_STATUSES = ("RECEIVED", "ACCEPTED", "DELIVERED", "BACKEDOUT", "PROCESSED", "CANCELLED", "TIMEOUT", "DISCARDED")
_SERVICES = """
    select *, concat_ws('/', class, server, service) as name from pgps.services
    order by class, server, service limit 200
"""
_UNITS = """
    select u.*, concat_ws('/', class, server, service) as name from pgps.units_of_work u
    where (%(status)s = '' or u.status = %(status)s) and (%(before)s::timestamptz is null
        or (u.began_at, u.uow_id) < (%(before)s::timestamptz, %(uow)s))
    order by u.began_at desc, u.uow_id desc limit %(most)s
"""
_CONVERSATIONS = """
    select *, concat_ws('/', class, server, service) as name from pgps.conversations
    order by oldest nulls last, began_at desc limit 50
"""


async def _units(look: Look) -> dict[str, Any]:
    given = {"status": look.given("status"), "before": look.given("before") or None, "uow": look.given("uow")}
    async with look.access.read() as reader:
        rows = await reader.rows(_UNITS, {**given, "most": ROWS + 1})
        return {
            "services": await reader.rows(_SERVICES),
            "conversations": await reader.rows(_CONVERSATIONS),
            "more": shorten(rows),
            "rows": rows,
            "status": given["status"],
            "statuses": _STATUSES,
        }


PAGES = (Page("/units", "units.html", _units, "Units of work"),)
