# Made by tools/unasync_client.py from tests/client/asynchronous/test_handlers.py: change that, then `make generate`.
"""Callbacks, and what happens when they raise, hang or outlive the server."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from pgps import errors
from pgps.client import Client, Event, Handling
from pgps.embedded import EmbeddedCluster
from tests.client.synchronous.rig import dispatch, until
from tests.fix_broker import column, make_type, publish, rows

pytestmark = pytest.mark.anyio
Name = Callable[..., str]


def test_a_handler_is_called_as_soon_as_an_event_is_delivered(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name()
    make_type(admin, kind)
    seen: list[int] = []
    with Client(dsn, poll=60.0) as client:
        with client.subscribe(name("s"), kind, temporary=True) as subscription:
            subscription.start(lambda event: seen.append(event.payload["n"]))
            for n in range(3):
                publish(admin, kind, n)
                dispatch(admin)
                until(lambda n=n: len(seen) > n)  # type: ignore[misc]
    assert seen == [0, 1, 2]


def test_a_handler_that_raises_puts_its_event_back_and_the_others_go_on(
    dsn: str, admin: psycopg.Connection, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    kind = name()
    make_type(admin, kind)
    seen: list[int] = []

    def handle(event: Event[dict[str, int]]) -> None:
        if event.payload["n"] == 2 and event.attempt < 3:
            raise ValueError("not yet")
        seen.append(event.payload["n"])

    with Client(dsn, poll=0.02) as client:
        with client.subscribe(name("s"), kind, temporary=True) as subscription:
            subscription.start(handle, how=Handling(retry_in=0.01))
            publish(admin, kind, 1, 2, 3)
            dispatch(admin)
            until(lambda: len(seen) > 2)
    assert seen == [1, 3, 2]
    # The log of the client tells where in the handler it was raised, and by fields of which event.
    logged = [record for record in caplog.records if record.name == "pgps.client" and record.exc_info]
    assert len(logged) == 2
    assert 'raise ValueError("not yet")' in caplog.text
    event = column(admin, f"select event_id from pgps_queue.{kind}_log where n = 2")[0]
    assert {(record.__dict__["subscription"], record.__dict__["event_id"]) for record in logged} == {
        (subscription.name, event)
    }


def test_effects_of_a_transactional_handler_happen_once_and_those_of_a_failed_one_never(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, table = name(), name("t")
    make_type(admin, kind)
    rows(admin, f"create table {table} (n integer, attempt integer)")

    def handle(event: Event[dict[str, int]], connection: psycopg.Connection) -> None:
        n = event.payload["n"]
        connection.execute(f"insert into {table} values (%s, %s)".encode(), [n, event.attempt])
        if n == 2:
            connection.execute(b"select 1 / 0")

    with Client(dsn) as client:
        watching = client.subscribe(name("s"), kind, temporary=True, max_attempts=1)
        with watching:
            publish(admin, kind, 1, 2, 3)
            dispatch(admin)
            watching.run(handle, how=Handling(transactional=True), timeout=0.01)
            assert sorted(column(admin, f"select n from {table}")) == [1, 3]
            told = column(admin, "select error from pgps.exceptions where event_type = %s", [kind])
            assert told == ["DivisionByZero: division by zero"]
            publish(admin, kind, 4, 5)
            dispatch(admin)
            sizes: list[int] = []
            watching.run(
                lambda events, _connection: sizes.append(len(events)),
                how=Handling(transactional=True, batch=True),
                timeout=0.01,
            )
            assert sizes == [2]
            assert watching.receive() == []
    rows(admin, f"drop table {table}")


def test_a_slow_consumer_holds_no_more_than_it_asked_for(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name()
    make_type(admin, kind)
    with Client(dsn) as client:
        with client.subscribe(name("s"), kind, temporary=True, prefetch=3) as subscription:
            publish(admin, kind, *range(20))
            dispatch(admin)
            held: list[int] = []
            subscription.run(lambda events: held.append(len(events)), how=Handling(batch=True), timeout=0.01)
            assert sum(held) == 20
            assert max(held) == 3


def test_closing_lets_a_handler_finish_and_keeps_the_rest(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind, watching = name(), name("s")
    make_type(admin, kind)
    seen: list[int] = []
    with Client(dsn) as client:
        subscription = client.subscribe(watching, kind)

        def handle(event: Event[dict[str, int]]) -> None:
            seen.append(event.payload["n"])
            subscription._receiver.is_stopping = True  # as close() says while a handler runs

        subscription.start(handle)
        publish(admin, kind, 1, 2, 3)
        dispatch(admin)
        until(lambda: seen)
        subscription.join()
        subscription.close()
        assert seen == [1]
        with client.subscribe(watching) as again:
            assert [event.payload["n"] for event in again.receive()] == [2, 3]
        client.unsubscribe(watching)


def test_a_handler_ends_with_the_error_that_ended_it(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind, watching = name(), name("s")
    make_type(admin, kind)
    with Client(dsn, poll=0.02) as client, client.subscribe(watching, kind) as subscription:
        subscription.start(lambda _: None)
        client.unsubscribe(watching)
        with pytest.raises(errors.UnknownName):
            subscription.join()


def test_nothing_is_lost_or_done_twice_when_the_server_restarts_and_connections_die(
    own_cluster: EmbeddedCluster,
) -> None:
    dsn = own_cluster.dsn()
    with psycopg.connect(dsn, autocommit=True) as admin:
        make_type(admin, "tick")
        rows(admin, "create table seen (n integer)")

    def handle(event: Event[dict[str, int]], connection: psycopg.Connection) -> None:
        connection.execute("insert into seen values (%s)", [event.payload["n"]])

    def seen() -> list[int]:
        with psycopg.connect(dsn, autocommit=True) as admin:
            dispatch(admin)
            return column(admin, "select n from seen order by 1")

    with Client(dsn, producer="p", poll=0.05, reconnect_timeout=120.0) as client:
        subscription = client.subscribe("s", "tick", prefetch=2)
        subscription.start(handle, how=Handling(transactional=True))
        client.publish("tick", [{"n": n} for n in range(5)])
        until(lambda: seen() == list(range(5)))
        own_cluster.kill9()
        own_cluster.start()
        client.publish("tick", [{"n": n} for n in range(5, 10)])
        until(lambda: seen() == list(range(10)))
        with psycopg.connect(dsn, autocommit=True) as admin:
            rows(
                admin,
                "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity"
                " where application_name like 'pgps-client%%'",
            )
        client.publish("tick", {"n": 10})
        until(lambda: seen() == list(range(11)))
        assert subscription.error is None
