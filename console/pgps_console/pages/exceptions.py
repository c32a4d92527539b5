"""Exceptions: what failed, why, and what to do with it."""

from __future__ import annotations

import datetime as dt
from typing import Any

from psycopg.sql import SQL, Identifier

from pgps_console.actions import quoted
from pgps_console.database import Reader, Row
from pgps_console.pages.base import ROWS, Look, NotThere, Page, shorten

__all__ = ["PAGES"]

# An error that next to nothing has would be searched for in all of them; so a page looks at so many, and says so.
_MOST_LOOKS, _EACH = 2, 1000

_FIND = """
    select * from pgps.find_exceptions(event_type => %(event_type)s, subscription => %(subscription)s,
        before => %(before)s, before_event => %(before_event)s, before_subscription => %(before_subscription)s,
        max_rows => %(most)s)
"""
_ONE = """
    select * from pgps.exceptions
    where event_type = %s and event_id = %s and subscription = %s
"""
_MAY_SEE = "select true as yes from pgps.event_types where name = %s and can_subscribe"
_COUNTS = "select * from pgps.count_exceptions(after => %s, max_rows => %s)"


async def _exceptions(look: Look) -> dict[str, Any]:
    event_type, subscription = look.given("event_type"), look.given("subscription")
    sqlstate, containing = look.given("sqlstate"), look.given("containing")
    by_link = subscription.startswith("link ")
    given = {
        "event_type": quoted(event_type) if event_type else None,
        "subscription": (subscription if by_link else quoted(subscription)) if subscription else None,
        "before": _moment(look.given("before")),
        "before_event": look.number("before_event"),
        "before_subscription": look.given("before_subscription") or None,
    }
    async with look.access.ask() as reader:
        if sqlstate or containing:
            found = await _search(reader, given, sqlstate, containing)
        else:
            rows = await reader.rows(_FIND, {**given, "most": ROWS + 1})
            more = shorten(rows)
            found = {"rows": rows, "next": rows[-1] if more else None, "looked": None}
    shown = {"event_type": event_type, "subscription": subscription, "sqlstate": sqlstate, "containing": containing}
    return {**found, **shown}


async def _search(reader: Reader, given: dict[str, Any], sqlstate: str, containing: str) -> dict[str, Any]:
    """Return those with such an error, where the next page begins, and how many were looked at when there are more."""
    rows: list[Row] = []
    at, looked = given, 0
    for _ in range(_MOST_LOOKS):
        page = await reader.rows(_FIND, {**at, "most": _EACH})
        looked += len(page)
        rows += [
            row
            for row in page
            if (not sqlstate or row["sqlstate"] == sqlstate) and containing.lower() in (row["error"] or "").lower()
        ]
        if len(rows) > ROWS:
            shorten(rows)
            return {"rows": rows, "next": rows[-1], "looked": None}
        if len(page) < _EACH:
            return {"rows": rows, "next": None, "looked": None}
        at = {**given, "before": page[-1]["failed_at"]}
        at |= {"before_event": page[-1]["event_id"], "before_subscription": page[-1]["subscription"]}
    return {"rows": rows, "next": page[-1], "looked": looked}


def _moment(text: str) -> dt.datetime | None:
    try:
        return dt.datetime.fromisoformat(text) if text else None
    except ValueError:
        raise NotThere(f'"{text}" is not a time') from None


async def _counts(look: Look) -> dict[str, Any]:
    """Count by subscription, up to a limit for each: counting a million takes longer than a page should."""
    async with look.access.ask() as reader:
        rows = await reader.rows(_COUNTS, [look.given("after") or None, ROWS + 1])
    return {"more": shorten(rows), "counts": rows}


async def _exception(look: Look) -> dict[str, Any]:
    event_type, event_id, subscription = look.given("event_type"), look.number("event_id"), look.given("subscription")
    async with look.access.read() as reader:
        found = await reader.first(_ONE, [event_type, event_id, subscription])
        if found is None:
            raise NotThere(f'there is no exception of event {event_id} of subscription "{subscription}"')
        payload = found["payload"]
        if payload is None and await reader.first(_MAY_SEE, [event_type]):
            view = Identifier(f"{event_type}_exception")
            query = SQL("select to_jsonb(q) as row from pgps_queue.{} q where event_id = %s and subscription = %s")
            row = await reader.first(query.format(view), [event_id, subscription])
            known = set(found) | {"pgps_origin_event"}
            payload = {key: value for key, value in row["row"].items() if key not in known} if row else None
    steps = []
    if found["state"] != "gap" and not subscription.startswith("link "):
        async with look.access.ask() as reader:
            steps = await reader.rows("select * from pgps.explain(%s, %s)", [quoted(subscription), event_id])
    return {"exception": found, "payload": payload, "steps": steps}


PAGES = (
    Page("/exceptions", "exceptions.html", _exceptions, "Exceptions", live=False),
    Page("/exceptions/counts", "exception_counts.html", _counts),
    Page("/exceptions/one", "exception.html", _exception, live=False),
)
