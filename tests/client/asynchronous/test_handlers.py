"""Callbacks, and what happens when they raise, hang or outlive the server."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from pgps import errors
from pgps.client import AsyncClient, AsyncSubscription, Event, Handling
from pgps.client._async import runtime
from pgps.embedded import EmbeddedCluster
from tests.client.asynchronous.rig import dispatch, until
from tests.fix_broker import column, make_type, publish, rows
from tests.fix_clock import Clock

pytestmark = pytest.mark.anyio
Name = Callable[..., str]
ENDS: set[type[BaseException]] = {SystemExit, KeyboardInterrupt, GeneratorExit}


async def test_a_handler_is_called_as_soon_as_an_event_is_delivered(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    seen: list[int] = []
    async with AsyncClient(dsn, poll=60.0) as client:
        async with client.subscribe(name("s"), kind, temporary=True) as subscription:
            await subscription.start(lambda event: seen.append(event.payload["n"]))
            for n in range(3):
                publish(admin, kind, n)
                dispatch(admin)
                await until(lambda n=n: len(seen) > n)  # type: ignore[misc]
    assert seen == [0, 1, 2]


async def test_a_handler_that_raises_puts_its_event_back_and_the_others_go_on(
    dsn: str, admin: psycopg.Connection, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    kind = name()
    make_type(admin, kind)
    seen: list[int] = []

    async def handle(event: Event[dict[str, int]]) -> None:
        if event.payload["n"] == 2 and event.attempt < 3:
            raise ValueError("not yet")
        seen.append(event.payload["n"])

    async with AsyncClient(dsn, poll=0.02) as client:
        async with client.subscribe(name("s"), kind, temporary=True) as subscription:
            await subscription.start(handle, how=Handling(retry_in=0.01))
            publish(admin, kind, 1, 2, 3)
            dispatch(admin)
            await until(lambda: len(seen) > 2)
    assert seen == [1, 3, 2]
    # The log of the client tells where in the handler it was raised, and by fields of which event.
    logged = [record for record in caplog.records if record.name == "pgps.client" and record.exc_info]
    assert len(logged) == 2
    assert 'raise ValueError("not yet")' in caplog.text
    event = column(admin, f"select event_id from pgps_queue.{kind}_log where n = 2")[0]
    assert {(record.__dict__["subscription"], record.__dict__["event_id"]) for record in logged} == {
        (subscription.name, event)
    }


async def test_effects_of_a_transactional_handler_happen_once_and_those_of_a_failed_one_never(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, table = name(), name("t")
    make_type(admin, kind)
    rows(admin, f"create table {table} (n integer, attempt integer)")

    async def handle(event: Event[dict[str, int]], connection: psycopg.AsyncConnection) -> None:
        n = event.payload["n"]
        await connection.execute(f"insert into {table} values (%s, %s)".encode(), [n, event.attempt])
        if n == 2:
            await connection.execute(b"select 1 / 0")

    async with AsyncClient(dsn) as client:
        watching = client.subscribe(name("s"), kind, temporary=True, max_attempts=1)
        async with watching:
            publish(admin, kind, 1, 2, 3)
            dispatch(admin)
            await watching.run(handle, how=Handling(transactional=True), timeout=0.01)
            assert sorted(column(admin, f"select n from {table}")) == [1, 3]
            told = column(admin, "select error from pgps.exceptions where event_type = %s", [kind])
            assert told == ["DivisionByZero: division by zero"]
            publish(admin, kind, 4, 5)
            dispatch(admin)
            sizes: list[int] = []
            await watching.run(
                lambda events, _connection: sizes.append(len(events)),
                how=Handling(transactional=True, batch=True),
                timeout=0.01,
            )
            assert sizes == [2]
            assert await watching.receive() == []
    rows(admin, f"drop table {table}")


async def test_a_slow_consumer_holds_no_more_than_it_asked_for(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name()
    make_type(admin, kind)
    async with AsyncClient(dsn) as client:
        async with client.subscribe(name("s"), kind, temporary=True, prefetch=3) as subscription:
            publish(admin, kind, *range(20))
            dispatch(admin)
            held: list[int] = []
            await subscription.run(lambda events: held.append(len(events)), how=Handling(batch=True), timeout=0.01)
            assert sum(held) == 20
            assert max(held) == 3


async def test_closing_lets_a_handler_finish_and_keeps_the_rest(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, watching = name(), name("s")
    make_type(admin, kind)
    seen: list[int] = []
    async with AsyncClient(dsn) as client:
        subscription = client.subscribe(watching, kind)

        async def handle(event: Event[dict[str, int]]) -> None:
            seen.append(event.payload["n"])
            subscription._receiver.is_stopping = True  # as close() says while a handler runs

        await subscription.start(handle)
        publish(admin, kind, 1, 2, 3)
        dispatch(admin)
        await until(lambda: seen)
        await subscription.join()
        await subscription.close()
        assert seen == [1]
        async with client.subscribe(watching) as again:
            assert [event.payload["n"] for event in await again.receive()] == [2, 3]
        await client.unsubscribe(watching)


async def test_a_handler_ends_with_the_error_that_ended_it(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind, watching = name(), name("s")
    make_type(admin, kind)
    async with AsyncClient(dsn, poll=0.02) as client, client.subscribe(watching, kind) as subscription:
        await subscription.start(lambda _: None)
        await client.unsubscribe(watching)
        with pytest.raises(errors.UnknownName):
            await subscription.join()


async def test_nothing_is_lost_or_done_twice_when_the_server_restarts_and_connections_die(
    own_cluster: EmbeddedCluster,
) -> None:
    dsn = own_cluster.dsn()
    with psycopg.connect(dsn, autocommit=True) as admin:
        make_type(admin, "tick")
        rows(admin, "create table seen (n integer)")

    async def handle(event: Event[dict[str, int]], connection: psycopg.AsyncConnection) -> None:
        await connection.execute("insert into seen values (%s)", [event.payload["n"]])

    def seen() -> list[int]:
        with psycopg.connect(dsn, autocommit=True) as admin:
            dispatch(admin)
            return column(admin, "select n from seen order by 1")

    async with AsyncClient(dsn, producer="p", poll=0.05, reconnect_timeout=120.0) as client:
        subscription = client.subscribe("s", "tick", prefetch=2)
        await subscription.start(handle, how=Handling(transactional=True))
        await client.publish("tick", [{"n": n} for n in range(5)])
        await until(lambda: seen() == list(range(5)))
        own_cluster.kill9()
        own_cluster.start()
        await client.publish("tick", [{"n": n} for n in range(5, 10)])
        await until(lambda: seen() == list(range(10)))
        with psycopg.connect(dsn, autocommit=True) as admin:
            rows(
                admin,
                "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity"
                " where application_name like 'pgps-client%%'",
            )
        await client.publish("tick", {"n": 10})
        await until(lambda: seen() == list(range(11)))
        assert subscription.error is None


async def test_what_the_commit_refuses_or_a_handler_hides_puts_the_event_back_and_the_others_go_on(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, table = name(), name("t")
    make_type(admin, kind)
    rows(admin, f"create table {table} (n integer primary key, above integer references {table} initially deferred)")

    async def handle(event: Event[dict[str, int]], connection: psycopg.AsyncConnection) -> None:
        n = event.payload["n"]
        above = 99 if n == 2 else n + 100
        await connection.execute(f"insert into {table} values (%s, %s)".encode(), [n, above])
        if n != 2:  # behind the row that refers to it
            await connection.execute(f"insert into {table} values (%s, null)".encode(), [above])
        if n == 3:
            with contextlib.suppress(psycopg.Error):
                await connection.execute(b"select 1 / 0")

    async with AsyncClient(dsn) as client:
        async with client.subscribe(name("s"), kind, temporary=True, max_attempts=1) as subscription:
            publish(admin, kind, 1, 2, 3, 4, 5)
            dispatch(admin)
            await subscription.run(handle, how=Handling(transactional=True), timeout=0.01)
            assert column(admin, f"select n from {table} where n < 100 order by n") == [1, 4, 5]
            told = column(admin, "select split_part(error, ':', 1) from pgps.exceptions where event_type = %s", [kind])
            assert sorted(told) == ["ForeignKeyViolation", "InFailedSqlTransaction"]
    rows(admin, f"drop table {table}")


async def test_an_error_may_say_what_postgresql_has_no_characters_for(
    dsn: str, admin: psycopg.Connection, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Reports of tests have no characters for it either.
    monkeypatch.setattr(logging.getLogger("pgps.client"), "disabled", True)
    kind = name()
    make_type(admin, kind)

    async def handle(_event: Event[dict[str, int]]) -> None:
        raise ValueError("a\0b \ud800")

    async with AsyncClient(dsn) as client:
        async with client.subscribe(name("s"), kind, temporary=True, max_attempts=1) as subscription:
            publish(admin, kind, 1)
            dispatch(admin)
            await subscription.run(handle, timeout=0.01)
            told = column(admin, "select error from pgps.exceptions where event_type = %s", [kind])
    assert told == ["ValueError: a\\0b \\ud800"]


async def test_a_handler_that_fails_when_its_lease_has_ended_ends_nothing(
    dsn: str, admin: psycopg.Connection, name: Name, clock: Clock
) -> None:
    kind, shared = name(), name("s")
    make_type(admin, kind)
    seen: list[int] = []
    taken: list[int] = []
    async with AsyncClient(dsn) as client:
        for batch in (False, True):
            first = client.subscribe(shared, kind, handler="any")
            async with first, client.subscribe(shared) as second:

                async def handle(given: Any, second: AsyncSubscription[dict[str, int]] = second) -> None:
                    seen.append(given[0].payload["n"] if isinstance(given, list) else given.payload["n"])
                    if not taken:
                        clock.advance("2 hours")
                        taken.extend(event.payload["n"] for event in await second.receive(1))
                        raise ValueError("too late")

                publish(admin, kind, 1, 2, 3)
                dispatch(admin)
                await first.run(handle, how=Handling(batch=batch, retry_in=0.0), timeout=0.01)
                assert taken == [1]
                assert seen == ([1, 2] if batch else [1, 2, 3])
                assert await second.ack() == 1
            seen.clear()
            taken.clear()
        await client.unsubscribe(shared)


async def test_what_was_handled_is_acknowledged_although_the_last_one_was_put_back_when_it_ended(
    dsn: str, admin: psycopg.Connection, name: Name, clock: Clock
) -> None:
    kind, shared = name(), name("s")
    make_type(admin, kind)
    async with AsyncClient(dsn) as client:
        subscription = client.subscribe(shared, kind, handler="any")

        async def handle(event: Event[dict[str, int]]) -> None:
            if event.payload["n"] == 2:
                subscription._receiver.is_stopping = True  # as close() says while a handler runs
                raise ValueError("no")

        await subscription.open()
        publish(admin, kind, 1, 2, 3)
        dispatch(admin)
        await subscription.run(handle, how=Handling(retry_in=0.0))
        await subscription.close()
        clock.advance("2 hours")  # of what it was given and has not seen
        async with client.subscribe(shared) as again:
            assert sorted([event.payload["n"] for event in await again.receive()]) == [2, 3]
        await client.unsubscribe(shared)


@dataclass(frozen=True, slots=True)
class _Even:
    n: int

    def __post_init__(self) -> None:
        if self.n % 2:
            raise ValueError("odd")


async def test_an_event_that_the_payloads_class_refuses_is_put_back_and_the_others_go_on(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name("kind")
    make_type(admin, kind)
    said = "select subscription, error from pgps.exceptions where event_type = %s order by event_id"
    async with AsyncClient(dsn) as client:
        for of_type, transactional in ((kind, False), (f"{kind}*", False), (kind, True)):
            seen: list[int] = []
            watching = client.subscribe(name("s"), of_type, payload=_Even, temporary=True, max_attempts=1)
            async with watching:
                publish(admin, kind, 2, 3, 4, 5)
                dispatch(admin)
                with pytest.raises(ValueError, match="odd"):
                    await watching.receive()
                await watching.run(
                    lambda event, *_, seen=seen: seen.append(event.payload.n),
                    how=Handling(transactional=transactional),
                    timeout=0.01,
                )
                assert seen == [2, 4]
                assert rows(admin, said, [kind]) == [(watching.name, "ValueError: odd")] * 2
                assert await watching.receive() == []


async def test_whatever_ends_a_handler_is_told(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name()
    make_type(admin, kind)

    async def fail(*_: object, **__: object) -> None:
        raise ArithmeticError("of no kind that is known")

    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        subscription._receiver.receive = fail  # type: ignore[assignment, method-assign]
        await subscription.start(lambda _: None)
        with pytest.raises(ArithmeticError, match="of no kind"):
            await subscription.join()


@pytest.mark.parametrize("how", [Handling(), Handling(batch=True), Handling(transactional=True)])
@pytest.mark.parametrize("kind_of", sorted(ENDS - set(runtime.ENDS_PROGRAM), key=str))
async def test_a_handler_that_wants_to_end_the_program_does_not_end_in_silence(
    dsn: str, admin: psycopg.Connection, name: Name, kind_of: type[BaseException], how: Handling
) -> None:
    kind = name()
    make_type(admin, kind)

    async def leave(*_: object) -> None:
        raise kind_of("enough")

    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        await subscription.start(leave, how=how)
        publish(admin, kind, 1)
        dispatch(admin)
        with pytest.raises(kind_of, match="enough"):
            await subscription.join()
        assert isinstance(subscription.error, kind_of)
        assert [event.payload["n"] for event in await subscription.receive()] == [1]
