"""Event types: their attributes and activity, a live sample, and their three queues."""

from __future__ import annotations

from typing import Any

from psycopg.sql import SQL, Composed, Identifier, Literal

from pgps import _catalogue
from pgps_console.database import Reader, Row
from pgps_console.pages.base import ROWS, Look, NotThere, Page, shorten

__all__ = ["PAGES"]

_KINDS = ("in", "out", "exception")
_SAMPLE = 10
_OPERATORS = {"=": SQL("="), "<": SQL("<"), ">": SQL(">"), "contains": SQL("~")}

_TYPES = """
    select t.name, t.owner, t.state, t.visibility, t.reliability, t.subscriptions, t.published, t.last_published_at,
           t.can_publish, t.can_subscribe, a.rate, a.waiting,
           extract(epoch from clock_timestamp() - a.oldest_waiting)::float8 as lag
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
        sample = await reader.rows(_newest(f"{name}_in", _SAMPLE)) if found["can_subscribe"] else []
        return {
            "type": found,
            "activity": await reader.first(_ACTIVITY, [name]),
            "privileges": await reader.rows(_catalogue.privileges(f'"{name}"')),
            "policies": await reader.rows("select * from pgps.policies where event_type = %s order by name", [name]),
            "rules": await reader.rows("select * from pgps.rules where event_type = %s order by name", [name]),
            "advertisements": await reader.rows(
                "select * from pgps.advertisements where event_type = %s order by role, origin limit 50", [name]
            ),
            "sample": sample,
        }


async def _depths(look: Look) -> dict[str, Any]:
    """Count what is in the queues of a type: with very many events that takes longer than a page should."""
    name = look.part("name")
    async with look.access.read() as reader:
        rows = await reader.rows("select * from pgps.queues where event_type = %s", [name])
    return {"name": name, "queues": {row["kind"]: row for row in rows}, "kinds": _KINDS}


def _newest(view: str, most: int) -> Composed:
    return SQL("select * from pgps_queue.{} order by event_id desc limit {}").format(Identifier(view), Literal(most))


async def _queue(look: Look) -> dict[str, Any]:
    name, kind = look.part("name"), look.part("kind")
    if kind not in _KINDS:
        raise NotThere(f'there is no queue "{kind}"', "The queues are: in, out and exception.")
    view = f"{name}_{kind}"
    async with look.access.read() as reader:
        found = await _find(reader, name)
        columns = await reader.rows(_COLUMNS, [view])
        where = _condition(look, [column["name"] for column in columns])
        # The same event is in the out and the exception queue once for each subscription.
        order = SQL("event_id desc") if kind == "in" else SQL("event_id desc, subscription desc")
        query = SQL("select * from pgps_queue.{} q{} order by {} limit {}").format(
            Identifier(view), where, order, Literal(ROWS + 1)
        )
        rows = await reader.rows(query)
    return {
        "type": found,
        "kind": kind,
        "kinds": _KINDS,
        "columns": columns,
        "operators": list(_OPERATORS),
        "rows": rows,
        "more": shorten(rows),
        "column": look.given("column"),
        "operator": look.given("operator", "="),
        "value": look.given("value"),
    }


def _condition(look: Look, columns: list[str]) -> Composed:
    """Return the WHERE clause that the filter and the place in the pages make, "" for none."""
    tests: list[Composed] = []
    before, subscription = look.number("before"), look.given("subscription")
    if before is not None and "subscription" in columns and subscription:
        # The first test is the one that an index can help with.
        tests.append(
            SQL("event_id <= {0} and (event_id, subscription) < ({0}, {1})").format(
                Literal(before), Literal(subscription)
            )
        )
    elif before is not None:
        tests.append(SQL("event_id < {}").format(Literal(before)))
    column, operator, value = look.given("column"), look.given("operator", "="), look.given("value")
    if column and value:
        if column not in columns or operator not in _OPERATORS:
            raise NotThere(f'the queue has no column "{column}", or there is no operator "{operator}"')
        if operator == "contains":
            tests.append(SQL("strpos(lower({}::text), lower({})) > 0").format(Identifier(column), Literal(value)))
        else:
            # The value has no type of its own, so that PostgreSQL takes it for the column's.
            tests.append(SQL("{} {} {}").format(Identifier(column), _OPERATORS[operator], Literal(value)))
    if not tests:
        return Composed([])
    return SQL(" where ") + SQL(" and ").join(tests)


PAGES = (
    Page("/types", "types.html", _types, "Event types"),
    Page("/types/{name}", "type.html", _type),
    Page("/depths/{name}", "depths.html", _depths),
    Page("/types/{name}/{kind}", "queue.html", _queue, live=False),
)
