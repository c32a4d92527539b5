"""Subscriptions: how far they are, what is wrong with them, and why an event did or did not reach one."""

from __future__ import annotations

from typing import Any

from pgps_console.actions import quoted
from pgps_console.pages.base import ROWS, Look, NotThere, Page, shorten

__all__ = ["PAGES"]

_STATES = ("active", "slow", "paused", "suspended", "dead")

_NAMES = "select name from pgps.find_subscriptions(%s, %s, %s, %s, %s)"
# Without what counts all failures of a subscription, of which there may be a million.
_FIGURES = "name, owner, event_type, filter, state, depth, lag_seconds, rate"
_LIST = f"select {_FIGURES} from pgps.subscriptions where name = any (%s) order by name"
_MOST_FAILED = 1000
_FAILED = f"""
    select n.name, (select count(*) from (select from pgps.exceptions e
        where e.subscription = n.name and e.state = 'failed' limit {_MOST_FAILED + 1}) e) as failed
    from unnest(%s::text[]) n(name)
"""
# Both are found out by the view, for those only that can be so: who has set dead_after, and who owns a slow lane.
_BY_STATE = f"""
    select {_FIGURES} from pgps.subscriptions
    where state = %(state)s and strpos(name, %(name)s) > 0 and name > coalesce(%(after)s, '')
        and (%(type)s = '' or event_type = %(type)s) and {{can_be}}
    order by name limit {ROWS + 1}
"""
_CAN_BE = {
    "dead": "dead_after is not null",
    "slow": "owner = any (array(select role from pgps.lanes where state = 'slow'))",
}
_LANES = "select * from pgps.lanes where state <> 'idle' order by role limit 50"
_LANE = "select l.* from pgps.lanes l where l.role = %s"
_CLASSES = f"select * from pgps.classes where subscription = %s order by event_type limit {ROWS}"
_REGISTERED = "select client, mode, style, state, reason from pgps.registrations where subscription = %s"


async def _subscriptions(look: Look) -> dict[str, Any]:
    name, event_type, state = look.given("name"), look.given("type"), look.given("state")
    given = [name or None, event_type or None, state or None, look.given("after") or None, ROWS + 1]
    async with look.access.ask() as reader:
        if state in _CAN_BE:
            query = _BY_STATE.format(can_be=_CAN_BE[state])
            rows = await reader.rows(query, {"state": state, "name": name, "type": event_type, "after": given[3]})
        else:
            # Names first: figures are computed for those on the page only.
            names = [row["name"] for row in await reader.rows(_NAMES, given)]
            rows = await reader.rows(_LIST, [names])
        more = shorten(rows)
        failed = await reader.rows(_FAILED, [[row["name"] for row in rows]]) if rows else []
        lanes = await reader.rows(_LANES)
    counts = {one["name"]: one["failed"] for one in failed}
    for row in rows:
        row["failed"] = counts[row["name"]]
    found = {"rows": rows, "more": more, "lanes": lanes, "states": _STATES, "most_failed": _MOST_FAILED}
    return {**found, "name": name, "type": event_type, "state": state}


async def _subscription(look: Look) -> dict[str, Any]:
    name = look.part("name")
    async with look.access.read() as reader:
        found = await reader.first("select * from pgps.subscriptions where name = %s", [name])
        if found is None:
            raise NotThere(f'subscription "{name}" does not exist, or you may not see it')
        lane = await reader.first(_LANE, [found["owner"]])
        registered = await reader.rows(_REGISTERED, [name])
        classes = await reader.rows(_CLASSES, [name])
    event = look.number("event_id")
    steps = None
    if event is not None:
        async with look.access.ask() as reader:
            steps = await reader.rows("select * from pgps.explain(%s, %s)", [quoted(name), event])
    said = {"subscription": found, "lane": lane, "registered": registered, "classes": classes}
    return {**said, "event_id": event, "steps": steps}


PAGES = (
    Page("/subscriptions", "subscriptions.html", _subscriptions, "Subscriptions"),
    Page("/subscriptions/{name}", "subscription.html", _subscription),
)
