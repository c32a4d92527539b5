"""Who lives and the time are known as of now, a unit of work as of the snapshot; together never what never was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.fix_broker import call, meanwhile, rows, value
from tests.fix_db import Connect, wait_until
from tests.fix_units import Party, make_service
from tests.sql.units.conftest import SERVICE

Parties = Callable[..., Party]
Look = Callable[[str, Callable[[], object]], list[Any]]

UNIT = "select status, attempts, receiver_token, status_ends from pgps.units_of_work where uow_id = '{}'"
DEPTH = "select depth, held, attempts from pgps.{} where class = 'shop' and depth > 0"
KEPT = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]


def is_lost(broker: psycopg.Connection, party: Party) -> None:
    pid = party.connection.info.backend_pid
    party.connection.close()
    gone = "select count(*) = 0 from pg_stat_activity where pid = %s"
    wait_until(lambda: value(broker, gone, [pid]), what="the end of the session")


def is_over(broker: psycopg.Connection, unit: str) -> None:
    over = "select status = 'TIMEOUT' from pgps.units_of_work where uow_id = %s"
    wait_until(lambda: value(broker, over, [unit]), what="the end of the lifetime")


@pytest.fixture(params=["a statement", "repeatable read", "serializable", "read only"])
def look(request: pytest.FixtureRequest, broker: psycopg.Connection, own_database: str, connect: Connect) -> Look:
    """Run a query whose snapshot was taken before a step, and return what it finds."""
    reader = connect(dsn=own_database)

    def in_one_statement(query: str, step: Callable[[], object]) -> list[Any]:
        found: list[Any] = []
        waits = "with w as materialized (select pg_advisory_lock(7)) select v.* from w cross join lateral "
        query = f"{waits} ({query} and w is not null offset 0) v"
        rows(broker, "select pg_advisory_lock(7)")
        with ExitStack() as stack:
            stack.enter_context(meanwhile(broker, reader, lambda: found.extend(rows(reader, query))))
            stack.callback(rows, broker, "select pg_advisory_unlock(7)")
            step()
        return found

    def in_one_transaction(query: str, step: Callable[[], object]) -> list[Any]:
        with reader.transaction():
            rows(reader, "select 1")
            step()
            found = rows(reader, query)
            assert rows(reader, query) == found
            return found

    if request.param == "a statement":
        return in_one_statement
    reader.isolation_level = KEPT[request.param == "serializable"]
    reader.read_only = request.param == "read only"
    return in_one_transaction


@pytest.mark.parametrize("option", ["commit", "cancel"])
def test_what_a_server_that_is_gone_had_done(
    broker: psycopg.Connection, party: Parties, look: Look, option: str
) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    unit = client.request(SERVICE, "pay", status_lifetime=5)["uow_id"]
    assert server.text() == "pay"

    def step() -> None:
        server.sync(option)
        is_lost(broker, server)

    assert look(UNIT.format(unit), step) == [("DELIVERED", 0, "s", None)]


@pytest.mark.parametrize("view", ["services", "conversations"])
def test_what_is_counted_of_it(broker: psycopg.Connection, party: Parties, look: Look, view: str) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    client.request(SERVICE, "pay")
    assert server.text() == "pay"

    def step() -> None:
        server.sync("commit")
        is_lost(broker, server)

    assert look(DEPTH.format(view), step) == [(1, 1, 0)]


def test_what_a_client_that_is_gone_had_committed(broker: psycopg.Connection, party: Parties, look: Look) -> None:
    client = party("c")
    unit = client.send("pay", to_service=SERVICE, status_lifetime=5)["uow_id"]

    def step() -> None:
        client.sync("commit")
        is_lost(broker, client)

    assert look(UNIT.format(unit), step) == [("RECEIVED", 0, None, None)]


def test_what_was_lost_is_given_back_whoever_has_it_since(
    broker: psycopg.Connection, party: Parties, look: Look
) -> None:
    client, server, other = party("c"), party("s").serve(SERVICE), party("o").serve(SERVICE)
    unit = client.request(SERVICE, "pay", status_lifetime=5)["uow_id"]
    assert server.text() == "pay"

    def step() -> None:
        is_lost(broker, server)
        assert other.text() == "pay"
        other.sync("commit")

    assert look(UNIT.format(unit), step) == [("ACCEPTED", 1, "s", None)]


def test_what_nobody_has_changed_stands_as_now(broker: psycopg.Connection, party: Parties, look: Look) -> None:
    client, server, sender = party("c"), party("s").serve(SERVICE), party("d")
    unit = client.request(SERVICE, "pay", status_lifetime=5)["uow_id"]
    half = sender.send("half", to_service=SERVICE, status_lifetime=5)["uow_id"]
    assert server.text() == "pay"
    both = "select status, attempts from pgps.units_of_work where uow_id in ('{}', '{}')"

    def step() -> None:
        is_lost(broker, server)
        is_lost(broker, sender)

    assert sorted(look(both.format(unit, half), step)) == [("ACCEPTED", 1), ("BACKEDOUT", 0)]


def test_what_ended_in_time_is_not_over(broker: psycopg.Connection, party: Parties, look: Look) -> None:
    """Processed, also by one who is gone; backed out; or discarded with its service."""
    dropped = make_service(broker, "shop/orders/dropped", deferred=True)
    client, server, lost = party("c"), party("s").serve(SERVICE), party("l").serve(SERVICE)
    late = client.request(SERVICE, "late", lifetime="5 seconds", status_lifetime=9)["uow_id"]
    done = client.request(SERVICE, "done", lifetime="4 seconds", status_lifetime=9)["uow_id"]
    gone = client.request(SERVICE, "gone", lifetime="4 seconds", status_lifetime=9)["uow_id"]
    here = client.request(dropped, "here", lifetime="4 seconds", status_lifetime=9)["uow_id"]
    assert [server.text(), server.text(), lost.text()] == ["late", "done", "gone"]
    half = client.send("half", to_service=SERVICE, lifetime="4 seconds", status_lifetime=9)["uow_id"]
    units = {late: "late", done: "done", gone: "gone", here: "here", half: "half"}
    listed = ", ".join(f"'{unit}'" for unit in units)

    def step() -> None:
        server.sync("commit", done)
        lost.sync("commit")
        client.sync("backout", half)
        call(broker, "drop_service", *dropped.split("/"))
        is_lost(broker, lost)
        is_over(broker, late)

    found = look(f"select uow_id, status, attempts from pgps.units_of_work where uow_id in ({listed})", step)
    assert {units[unit]: (status, attempts) for unit, status, attempts in found} == {
        "late": ("TIMEOUT", 0),
        "done": ("DELIVERED", 0),
        "gone": ("DELIVERED", 0),
        "here": ("ACCEPTED", 0),
        "half": ("RECEIVED", 0),
    }


def test_without_a_second_look_it_is_shown_as_it_was(
    broker: psycopg.Connection, party: Parties, own_database: str, connect: Connect
) -> None:
    """Who only looks is not refused because the loopback connection cannot be opened."""
    client, server, other = party("c"), party("s").serve(SERVICE), party("o").serve(SERVICE)
    units = [client.request(SERVICE, text, status_lifetime=5)["uow_id"] for text in "12"]
    assert [server.text(), other.text()] == ["1", "2"]
    reader = connect(dsn=own_database)
    reader.isolation_level = IsolationLevel.REPEATABLE_READ
    call(broker, "configure", "loopback", "host=/nowhere")
    with reader.transaction():
        rows(reader, "select 1")
        server.sync("commit")
        is_lost(broker, server)
        is_lost(broker, other)
        found = rows(reader, "select status, attempts from pgps.units_of_work order by began_at")
    # Nothing was written of the second one since, which is known without.
    assert found == [("DELIVERED", 0), ("ACCEPTED", 1)]
    assert client.status(units[0]) == "PROCESSED"
