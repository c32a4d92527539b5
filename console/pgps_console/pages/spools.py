"""Spools: how full they are, who reads them, and their messages."""

from __future__ import annotations

from typing import Any

from pgps_console.pages.base import ROWS, Look, NotThere, Page, shorten

__all__ = ["PAGES"]

_MESSAGES = """
    select * from pgps.spooled_messages
    where spool = %s and (%s::bigint is null or seqn < %s) order by seqn desc limit %s
"""
_GAPS = "select * from pgps.spool_gaps where spool = %s order by first_seqn desc limit 20"
_NETWORKS = "select * from pgps.networks order by name limit 200"


async def _spools(look: Look) -> dict[str, Any]:
    async with look.access.read() as reader:
        rows = await reader.rows(
            "select * from pgps.spools where name > %s order by name limit %s", [look.given("after"), ROWS + 1]
        )
        networks = await reader.rows(_NETWORKS)
    return {"rows": rows, "more": shorten(rows), "networks": networks}


async def _spool(look: Look) -> dict[str, Any]:
    name, before = look.part("name"), look.number("before")
    async with look.access.read() as reader:
        found = await reader.first("select * from pgps.spools where name = %s", [name])
        if found is None:
            raise NotThere(f'spool "{name}" does not exist, or you may not see it')
        rows = await reader.rows(_MESSAGES, [name, before, before, ROWS + 1])
        return {
            "spool": found,
            "members": await reader.rows("select * from pgps.group_members where group_name = %s order by 2", [name]),
            "gaps": await reader.rows(_GAPS, [name]),
            "more": shorten(rows),
            "rows": rows,
        }


PAGES = (
    Page("/spools", "spools.html", _spools, "Spools"),
    Page("/spools/{name}", "spool.html", _spool),
)
