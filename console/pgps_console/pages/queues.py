"""Pages of queues: places in them first, by key, then the events of these places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from pgps_console.actions import quoted
from pgps_console.database import Row
from pgps_console.pages.base import ROWS, Look, NotThere, shorten

__all__ = ["OPERATORS", "Queue", "by_key", "condition", "newest", "whole"]

OPERATORS = {"=": SQL("="), "<": SQL("<"), ">": SQL(">"), "contains": SQL("~")}

# With a filter a page looks at so many events, and says how far it came.
_MOST_LOOKS, _EACH = 2, 1000
_PLACES = """
    select * from pgps.find_queued(%s,
        before_batch => %s, before_event => %s, before_subscription => %s, max_rows => %s)
"""
# The queue's own columns, which stand behind the attributes, as places have them.
_OWN = {
    "out": {"matched_at": "at"},
    "exception": {"failed_at": "at"},
}
_OWN_COLUMNS = {
    "out": ("event_id", "subscription", "matched_at", "attempts", "state"),
    "exception": ("event_id", "subscription", "failed_at", "attempts", "sqlstate", "error", "state"),
}


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of an event type: the columns of its view and of the type's log, and the visitor's filter."""

    event_type: str
    kind: str
    columns: list[str]
    logged: list[str]
    where: Composed

    @property
    def name(self) -> str:
        """The name of the queue and of its view."""
        return f"{self.event_type}_{self.kind}"

    def events(self, places: list[Row]) -> Composed:
        """Return the query of the events of some places, in their order, as the view of the queue has them."""
        if self.kind == "in":
            rows: Composable = SQL(
                "select q.*, p.place as pgps_place from pgps_queue.{} q join unnest({}::bigint[]) with ordinality"
                " p(event_id, place) using (event_id) where q.event_id = any ({}::bigint[])"
            ).format(Identifier(self.name), *[Literal([place["event_id"] for place in places])] * 2)
        else:
            rows = self._joined(places)
        return SQL("select * from ({}) q{} order by pgps_place").format(rows, self.where)

    def _joined(self, places: list[Row]) -> Composed:
        own = _OWN_COLUMNS[self.kind]
        # Attributes stand first in both views, in the same order, but not always under the same name.
        attributes = list(zip(self.columns[: -len(own)], self.logged, strict=False))
        chosen = [SQL("l.{} as {}").format(Identifier(there), Identifier(here)) for here, there in attributes]
        chosen += [SQL("p.{}").format(Identifier(column)) for column in own]
        values = SQL(", ").join(
            SQL("({}, {}::bigint, {}, {}::timestamptz, {}::integer, {}, {}, {})").format(
                Literal(number),
                *(Literal(place[key]) for key in ("event_id", "subscription", "at", "attempts", "state", "sqlstate")),
                Literal(place["error"]),
            )
            for number, place in enumerate(places)
        )
        at = next(iter(_OWN[self.kind]))
        return SQL(
            "select {}, p.place as pgps_place from (values {}) p(place, event_id, subscription, {}, attempts, state,"
            " sqlstate, error) join pgps_queue.{} l using (event_id) where l.event_id = any ({}::bigint[])"
        ).format(
            SQL(", ").join(chosen),
            values,
            Identifier(at),
            Identifier(f"{self.event_type}_log"),
            Literal(sorted({place["event_id"] for place in places})),
        )


async def by_key(look: Look, queue: Queue) -> dict[str, Any]:
    """Return a page: rows, where the next one begins (None at the end), and how many events were looked at."""
    filtered = bool(queue.where.as_string(None))
    most = _EACH if filtered else ROWS
    at: Row = {
        "batch": look.number("batch"),
        "event_id": look.number("before"),
        "subscription": look.given("subscription") or None,
    }
    rows: list[Row] = []
    places: list[Row] = []
    looked = 0
    for _ in range(_MOST_LOOKS if filtered else 1):
        # One more than a page has, to know whether there are more.
        places = await _places(look, queue, at, most + (0 if filtered else 1))
        if not places:
            break
        at, looked = places[-1], looked + len(places)
        async with look.access.read() as reader:
            rows += [
                {**row, "at": places[row["pgps_place"] - (queue.kind == "in")]}
                for row in await reader.rows(queue.events(places))
            ]
        if len(places) < most or len(rows) > ROWS:
            break
    more = shorten(rows)
    if not more and (len(places) < most or not filtered):
        return {"rows": rows, "next": None, "looked": None}
    return {"rows": rows, "next": rows[-1]["at"] if more else at, "looked": None if more else looked}


async def newest(look: Look, event_type: str, most: int) -> list[Row]:
    """Return the newest events of an in queue."""
    queue = Queue(event_type, "in", [], [], Composed([]))
    places = await _places(look, queue, {"batch": None, "event_id": None, "subscription": None}, most)
    if not places:
        return []
    async with look.access.read() as reader:
        return [
            {key: value for key, value in row.items() if key != "pgps_place"}
            for row in await reader.rows(queue.events(places))
        ]


async def _places(look: Look, queue: Queue, at: Row, most: int) -> list[Row]:
    async with look.access.ask() as reader:
        return await reader.rows(_PLACES, [quoted(queue.name), at["batch"], at["event_id"], at["subscription"], most])


async def whole(look: Look, queue: Queue) -> dict[str, Any]:
    """Return a page of a queue that is kept for an audit, from its view, which is sorted for it."""
    before, subscription = look.number("before"), look.given("subscription")
    where = queue.where
    if before is not None:
        where += SQL(" and " if where.as_string(None) else " where ") + SQL(
            "event_id <= {0} and (event_id, subscription) < ({0}, {1})"
        ).format(Literal(before), Literal(subscription))
    query = SQL("select * from pgps_queue.{} q{} order by event_id desc, subscription desc limit {}")
    async with look.access.read() as reader:
        rows = await reader.rows(query.format(Identifier(queue.name), where, Literal(ROWS + 1)))
    more = shorten(rows)
    return {"rows": rows, "next": {"batch": None, **rows[-1]} if more else None, "looked": None}


def condition(look: Look, columns: list[str]) -> Composed:
    """Return the WHERE clause that the visitor's filter makes, "" for none."""
    column, operator, value = look.given("column"), look.given("operator", "="), look.given("value")
    if not column or not value:
        return Composed([])
    if column not in columns or operator not in OPERATORS:
        raise NotThere(f'the queue has no column "{column}", or there is no operator "{operator}"')
    if operator == "contains":
        return SQL(" where strpos(lower({}::text), lower({})) > 0").format(Identifier(column), Literal(value))
    # The value has no type of its own, so that PostgreSQL takes it for the column's.
    return SQL(" where {} {} {}").format(Identifier(column), OPERATORS[operator], Literal(value))
