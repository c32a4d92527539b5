"""The views that are read: a queue, or what a subscription's events are read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql
from pyspark.sql import types as t

from pgps.errors import BadArgument, UnknownName
from pgps_spark.columns import Column, columns_of
from pgps_spark.errors import database_errors

__all__ = ["ADDED", "Relation", "beside", "log_view", "queue_relation", "stream_relation"]

# What the reader of a stream knows of a slice, and no view has.
ADDED = (Column("batch_id", "int8", t.LongType()), Column("event_type", "text", t.StringType()))
_PATTERN = ("event_id", "payload", "published_at", "publisher", "origin", "xid")


@dataclass(frozen=True, slots=True)
class Relation:
    """A view, quoted; `names` are the columns it has for us, None for all; `left_out` are shown only when asked for."""

    view: str
    names: tuple[str, ...] | None = None
    left_out: frozenset[str] = frozenset()
    added: tuple[Column, ...] = ()

    def columns(self, connection: psycopg.Connection) -> list[Column]:
        """Return all columns that can be asked for."""
        return beside(columns_of(connection, self.view, self.names), self.added)


def beside(found: list[Column], added: Sequence[Column]) -> list[Column]:
    """Return columns with those that were added; an attribute named like one of these is shown as attribute_<name>."""
    own, there = {column.name for column in added}, {column.name for column in found}
    names = {
        name: f"attribute_{name}" if f"attribute_{name}" not in there else f"attribute_{name}_" for name in own & there
    }
    return [
        *(replace(each, name=names[each.name], source=each.name) if each.name in names else each for each in found),
        *added,
    ]


def queue_relation(queue: str) -> Relation:
    """Return the view of a queue; raises BadArgument when the name is none."""
    if not queue.endswith(("_in", "_out", "_exception")):
        raise BadArgument(
            f'"{queue}" is no queue', hint="Queues are named <event type>_in, _out and _exception; see pgps.queues."
        )
    return Relation(_view(queue))


def stream_relation(connection: psycopg.Connection, subscription: str) -> Relation:
    """Return what a subscription's events are read from: typed for one event type, as JSON for a pattern."""
    with database_errors():
        row = connection.execute(
            """
            select s.event_type, (select array_agg(e.name order by e.name) from pgps.event_types e
                where pgps._covers(s.event_type, e.name))
            from pgps.subscriptions s where s.name = %s or s.name = lower(%s)
            """,
            [subscription, subscription],
        ).fetchone()
    if row is None:
        raise UnknownName(
            f'subscription "{subscription}" does not exist', hint="See pgps.subscriptions.", sqlstate="42704"
        )
    event_type, types = row
    if not event_type.endswith("*"):
        return Relation(log_view(event_type), left_out=frozenset({"xid", "payload", "event_type"}), added=ADDED)
    if not types:
        raise UnknownName(
            f'no event type of "{event_type}" yet', hint="Its columns are known when there is one.", sqlstate="42704"
        )
    return Relation(log_view(types[0]), names=_PATTERN, left_out=frozenset({"xid"}), added=ADDED)


def log_view(event_type: str) -> str:
    """Return the view that has the events of a type by id."""
    return _view(f"{event_type}_log")


def _view(name: str) -> str:
    return sql.Identifier("pgps_queue", name).as_string(None)
