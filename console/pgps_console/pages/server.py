"""Workers and clients, settings, and the audit."""

from __future__ import annotations

from typing import Any

from pgps import _catalogue
from pgps_console.pages.base import Look, Page

__all__ = ["PAGES"]

_WORKERS = """
    select worker, role, min(started_at) as started_at, host(min(client_addr)) as address, bool_or(leader) as leader,
           count(*) as connections, count(*) filter (where state = 'active') as busy,
           string_agg(distinct service, ', ' order by service) as services
    from pgps.workers group by worker, role order by worker
"""
_CLIENTS = """
    select name, owner, connected, host(address) as address, connected_at, pending_events, pending_requests,
           pending_replies
    from pgps.clients order by connected desc, name limit 200
"""


async def _workers(look: Look) -> dict[str, Any]:
    async with look.access.read() as reader:
        return {"workers": await reader.rows(_WORKERS), "clients": await reader.rows(_CLIENTS)}


async def _settings(look: Look) -> dict[str, Any]:
    async with look.access.read() as reader:
        settings = await reader.rows(_catalogue.settings())
        # All that who is no administrator sees.
        limits = all(row["name"] == "tick_interval" or row["name"].endswith("_per_role") for row in settings)
        return {"settings": settings, "limits": limits}


async def _audit(look: Look) -> dict[str, Any]:
    async with look.access.read() as reader:
        findings = await reader.rows("select * from pgps.audit_findings order by last_found_at desc limit 200")
    async with look.access.ask() as reader:
        return {"findings": findings, "rows": await reader.rows(_catalogue.AUDIT)}


PAGES = (
    Page("/workers", "workers.html", _workers, "Workers"),
    Page("/settings", "settings.html", _settings, "Settings", live=False),
    Page("/audit", "audit.html", _audit, "Audit", live=False),
)
