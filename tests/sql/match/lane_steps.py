"""What tests of lanes do: a filter that reads more than the event, batches, lanes that are run, and what came."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.fix_broker import column, rows, value


def make_filter(broker: psycopg.Connection, body: str = "null") -> None:
    rows(
        broker,
        "create or replace function public.good(n integer) returns boolean language plpgsql as "
        f"$$ begin {body}; return true; end $$",
    )


def cut(broker: psycopg.Connection) -> None:
    """Dispatch as a worker does: without the lanes."""
    rows(broker, "select pgps.dispatch_batch(100000)")


def take_only(broker: psycopg.Connection, who: str, many: int = 1000) -> list[int]:
    """Take what is delivered, and dispatch nothing."""
    return column(broker, "select (payload->>'n')::integer from pgps.take(%s, %s)", [who, many])


def run_lanes(broker: psycopg.Connection) -> None:
    rows(broker, "call pgps.run_lanes()")


def lane(broker: psycopg.Connection, column_name: str) -> Any:
    return value(broker, f"select {column_name} from pgps.lanes")
