"""Composite events: their expression, what is open, and what became of an event in one of them."""

from __future__ import annotations

from typing import Any

from pgps_console.actions import quoted
from pgps_console.database import Row
from pgps_console.pages.base import ROWS, Look, NotThere, Page, shorten

__all__ = ["PAGES"]

_OPEN = "select * from pgps.open_occurrences where name = %s order by since desc nulls last limit %s"
_BY_NODE = """
    select node, role, count(*) as open, min(since) as oldest from pgps.open_occurrences where name = %s
    group by node, role order by node, role
"""


async def _composites(look: Look) -> dict[str, Any]:
    after = look.given("after")
    async with look.access.read() as reader:
        rows = await reader.rows(
            "select * from pgps.composite_events where name > %s order by name limit %s", [after, ROWS + 1]
        )
    return {"rows": rows, "more": shorten(rows)}


async def _composite(look: Look) -> dict[str, Any]:
    name, event = look.part("name"), look.number("event_id")
    async with look.access.read() as reader:
        found = await reader.first("select * from pgps.composite_events where name = %s", [name])
        if found is None:
            raise NotThere(f'composite event "{name}" does not exist, or you may not see it')
        nodes = await reader.rows(_BY_NODE, [name])
        rows = await reader.rows(_OPEN, [name, ROWS + 1])
        late = await reader.rows(
            "select * from pgps.late_events where name = %s order by noted_at desc limit 20", [name]
        )
    steps = None
    async with look.access.ask() as reader:
        plan = await reader.rows("select * from pgps.plan_composite_event(%s)", [quoted(name)])
        if event is not None:
            steps = await reader.rows("select * from pgps.explain_composite_event(%s, %s)", [quoted(name), event])
    # Nodes have names that only the broker understands.
    expressions = {row["node"]: row["expression"] for row in plan}
    for row in (*nodes, *rows):
        row["node"] = expressions.get(row["node"], row["node"])
    return {
        "composite": found,
        "graph": _graph(plan),
        "nodes": nodes,
        "rows": rows,
        "more": shorten(rows),
        "late": late,
        "event_id": event,
        "steps": steps,
    }


def _graph(plan: list[Row]) -> list[dict[str, Any]]:
    """Return the event graph as lines of a tree; a node that is a part of several stands below each."""
    rows: dict[str, list[Row]] = {}
    for row in plan:
        rows.setdefault(row["node"], []).append(row)
    lines, to_do = [], [(plan[0]["node"], 0)] if plan else []
    while to_do:
        name, depth = to_do.pop()
        row, brokers = rows[name][0], [row["broker"] for row in rows[name]]
        leaf = not row["parts"]
        lines.append({"text": row["expression"], "depth": depth, "leaf": leaf, "brokers": brokers, "open": row["open"]})
        to_do += [(part, depth + 1) for part in reversed(row["parts"])]
    return lines


PAGES = (
    Page("/composites", "composites.html", _composites, "Composite events"),
    Page("/composites/{name}", "composite.html", _composite),
)
