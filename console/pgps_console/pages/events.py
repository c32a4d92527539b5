"""Event types: their attributes and activity, a live sample, and their three queues."""

from __future__ import annotations

from typing import Any

from pgps import _catalogue
from pgps_console.database import Reader, Row
from pgps_console.pages import queues
from pgps_console.pages.base import ROWS, Look, NotThere, Page, shorten

__all__ = ["PAGES"]

_KINDS = ("in", "out", "exception")
_SAMPLE = 10

_TYPES = """
    select t.name, t.owner, t.state, t.visibility, t.reliability, t.subscriptions, t.published, t.last_published_at,
           t.can_publish, t.can_subscribe, a.rate, a.waiting,
           extract(epoch from pgps._clock() - a.oldest_waiting)::float8 as lag
    from (select * from pgps.event_types where (%s = '' or strpos(name, %s) > 0) and name > %s order by name limit %s) t
    left join pgps.activity a on a.event_type = t.name
    order by t.name
"""
_ACTIVITY = "select * from pgps.activity where event_type = %s"
_COLUMNS = """
    select a.attname::text as name, format_type(a.atttypid, a.atttypmod) as type
    from pg_attribute a
    where a.attrelid = to_regclass(format('pgps_queue.%%I', %s::text)) and a.attnum > 0 and not a.attisdropped
    order by a.attnum
"""


async def _types(look: Look) -> dict[str, Any]:
    name, after = look.given("name"), look.given("after")
    async with look.access.read() as reader:
        rows = await reader.rows(_TYPES, [name, name, after, ROWS + 1])
    return {"rows": rows, "more": shorten(rows), "name": name}


async def _find(reader: Reader, name: str) -> Row:
    found = await reader.first("select * from pgps.event_types where name = %s", [name])
    if found is None:
        raise NotThere(f'event type "{name}" does not exist, or you may not see it')
    return found


async def _type(look: Look) -> dict[str, Any]:
    name = look.part("name")
    async with look.access.read() as reader:
        found = await _find(reader, name)
        details = {
            "type": found,
            "activity": await reader.first(_ACTIVITY, [name]),
            "privileges": await reader.rows(_catalogue.privileges(f'"{name}"')),
            "policies": await reader.rows("select * from pgps.policies where event_type = %s order by name", [name]),
            "rules": await reader.rows("select * from pgps.rules where event_type = %s order by name", [name]),
            "advertisements": await reader.rows(
                "select * from pgps.advertisements where event_type = %s order by role, origin limit 50", [name]
            ),
        }
    return {**details, "sample": await queues.newest(look, name, _SAMPLE) if found["can_subscribe"] else []}


async def _depths(look: Look) -> dict[str, Any]:
    """Count what is in the queues of a type: with very many events that takes longer than a page should."""
    name = look.part("name")
    async with look.access.read() as reader:
        rows = await reader.rows("select * from pgps.queues where event_type = %s", [name])
    return {"name": name, "queues": {row["kind"]: row for row in rows}, "kinds": _KINDS}


async def _queue(look: Look) -> dict[str, Any]:
    name, kind = look.part("name"), look.part("kind")
    if kind not in _KINDS:
        raise NotThere(f'there is no queue "{kind}"', "The queues are: in, out and exception.")
    view = f"{name}_{kind}"
    async with look.access.read() as reader:
        found = await _find(reader, name)
        columns = await reader.rows(_COLUMNS, [view])
        logged = await reader.rows(_COLUMNS, [f"{name}_log"])
        audited = await reader.first("select auditable from pgps.queues where queue = %s", [view])
    names = [column["name"] for column in columns]
    page = queues.Queue(name, kind, names, [column["name"] for column in logged], queues.condition(look, names))
    # What is kept for an audit is in the views alone.
    kept = kind != "in" and audited is not None and audited["auditable"]
    return {
        "type": found,
        "kind": kind,
        "kinds": _KINDS,
        "columns": columns,
        "operators": list(queues.OPERATORS),
        "column": look.given("column"),
        "operator": look.given("operator", "="),
        "value": look.given("value"),
        **await (queues.whole(look, page) if kept else queues.by_key(look, page)),
    }


PAGES = (
    Page("/types", "types.html", _types, "Event types"),
    Page("/types/{name}", "type.html", _type),
    Page("/depths/{name}", "depths.html", _depths),
    Page("/types/{name}/{kind}", "queue.html", _queue, live=False),
)
