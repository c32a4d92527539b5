"""What tests of the broker do often: make a type, publish, dispatch, receive; and queries as plain strings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.fix_db import wait_until

Rows = list[tuple[Any, ...]]
Params = Sequence[Any] | Mapping[str, Any]


def rows(connection: psycopg.Connection, query: str, params: Params = ()) -> Rows:
    """Run a query and return its rows; [] for a statement that has none."""
    cursor = connection.execute(query.encode(), params or None)
    return cursor.fetchall() if cursor.description is not None else []


def value(connection: psycopg.Connection, query: str, params: Params = ()) -> Any:
    """Return the first column of the only row."""
    found = rows(connection, query, params)
    assert len(found) == 1, f"{query}: {len(found)} rows"
    return found[0][0]


def column(connection: psycopg.Connection, query: str, params: Params = ()) -> list[Any]:
    """Return the first column of all rows."""
    return [row[0] for row in rows(connection, query, params)]


def call(connection: psycopg.Connection, function: str, *args: Any, **named: Any) -> Any:
    """Call a function of pgps with positional and named arguments and return its value."""
    places = ["%s"] * len(args) + [f"{key} => %s" for key in named]
    return value(connection, f"select pgps.{function}({', '.join(places)})", [*args, *named.values()])


def quoted(identifier: str) -> str:
    return sql.Identifier(identifier).as_string(None)


def endpoint(name: str) -> str:
    """Return where events of a type are inserted."""
    return f"pgps_event.{quoted(name)}"


def queue(name: str, kind: str) -> str:
    """Return the view of a queue of a type."""
    return f"pgps_queue.{quoted(f'{name}_{kind}')}"


def make_type(connection: psycopg.Connection, name: str, attributes: str = "n integer", **options: Any) -> str:
    """Create an event type that everybody may use, advertised by the connection's role; return its endpoint."""
    call(connection, "create_event_type", quoted(name), attributes, **options)
    rows(connection, f"grant insert, select on {endpoint(name)} to public")
    call(connection, "advertise", quoted(name))
    return endpoint(name)


def publish(connection: psycopg.Connection, name: str, *numbers: int | None) -> None:
    """Publish events of a type whose attribute is n, as one statement."""
    rows(connection, f"insert into {endpoint(name)} (n) select unnest(%s::integer[])", [list(numbers)])


def receive(connection: psycopg.Connection, subscription: str, max_events: int = 1000) -> list[Any]:
    """Return the payloads of the next events."""
    return column(connection, "select payload from pgps.receive(%s, %s)", [subscription, max_events])


def numbers(connection: psycopg.Connection, subscription: str, max_events: int = 1000) -> list[int]:
    """Return attribute n of the next events, which stay to be acknowledged."""
    return [payload["n"] for payload in receive(connection, subscription, max_events)]


WAYS = ("hand", "worker")


def dispatch(connection: psycopg.Connection, way: str = "hand") -> None:
    """Dispatch all that waits: by hand, or as a worker does, batch by batch and then the lanes."""
    if way == "hand":
        rows(connection, "select pgps.dispatch()")
        return
    while (events := value(connection, "select pgps.dispatch_batch()")) != 0:
        if events < 0:
            with connection.transaction():
                rows(connection, "select pgps.dispatch_large()")
                while value(connection, "select pgps.dispatch_next_part()") is not None:
                    pass
    rows(connection, "call pgps.run_lanes()")


def take(connection: psycopg.Connection, subscription: str, max_events: int = 1000, *, way: str = "hand") -> list[int]:
    """Dispatch, receive and acknowledge; return attribute n of the events."""
    dispatch(connection, way)
    found = numbers(connection, subscription, max_events)
    call(connection, "ack", subscription)
    return found


def take_as(admin: psycopg.Connection, session: psycopg.Connection, subscription: str) -> list[int]:
    """Return what a subscription gives to a session, dispatched before by an administrator."""
    rows(admin, "select pgps.dispatch()")
    found = numbers(session, subscription)
    call(session, "ack", subscription)
    return found


def ids(connection: psycopg.Connection, subscription: str, max_events: int = 1000) -> list[int]:
    """Return the ids of the next events."""
    return column(connection, "select event_id from pgps.receive(%s, %s)", [subscription, max_events])


def sink(connection: psycopg.Connection, name: str, *, body: str = "", batch: bool = False) -> str:
    """Make a callback that writes attribute n into a table of its own; return the table, named as the function."""
    made = quoted(f"{name}_sink")
    rows(connection, f"create table public.{made} (place bigint generated always as identity, n integer)")
    argument = f"{endpoint(name)}[]" if batch else endpoint(name)
    insert = "select e.n from unnest($1) e" if batch else "select ($1).n"
    rows(
        connection,
        f"create function public.{made}(event {argument}) returns void language plpgsql as "
        f"$$ begin {body} insert into public.{made} (n) {insert}; end $$",
    )
    return f"public.{made}"


def sunk(connection: psycopg.Connection, table: str) -> list[int]:
    """Return what a callback has written, in order."""
    return column(connection, f"select n from {table} order by place")


@contextmanager
def refused(sqlstate: str, *said: str) -> Iterator[pytest.ExceptionInfo[psycopg.Error]]:
    """Expect an error of pgps: its SQLSTATE, what it says, and a hint (PostgreSQL's own errors may have none)."""
    with pytest.raises(psycopg.Error) as caught:
        yield caught
    error = caught.value
    assert error.sqlstate == sqlstate, f"{error.sqlstate}: {error}"
    text = " ".join(filter(None, [error.diag.message_primary, error.diag.message_hint, error.diag.message_detail]))
    for word in said:
        assert word in text, text


@contextmanager
def meanwhile(watcher: psycopg.Connection, session: psycopg.Connection, step: Callable[[], object]) -> Iterator[None]:
    """Begin a step of another session, wait until it waits for a lock, do the block, and then wait for the step.

    What the step raises is raised.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            step()
        except psycopg.Error as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        # Whoever waits to make a file longer waits for no test; of a shared catalogue, for sessions of any database.
        query = "select wait_event_type = 'Lock' and wait_event <> 'extend' from pg_stat_activity where pid = %s"
        wait_until(lambda: not thread.is_alive() or value(watcher, query, [session.info.backend_pid]))
        yield
    finally:
        thread.join()
    if raised:
        raise raised[0]
