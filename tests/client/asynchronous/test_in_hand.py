"""Several registrations of one named client, each with an occurrence of its own in hand; and answers that are lost."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from pgps.client import AsyncClient, AsyncOccurrence
from pgps.client._async import runtime
from tests.client.asynchronous.rig import dispatch, until, until_away
from tests.fix_broker import call, make_type, publish, rows, value

pytestmark = pytest.mark.anyio
Name = Callable[..., str]

COMMITTED = "select last_committed_event from pgps.registrations where client = %s and event_name = %s"


class InterruptedHereError(BaseException):
    """As Ctrl-C, or a timeout around a call."""


async def payloads(occurrence: AsyncOccurrence | None) -> list[int]:
    assert occurrence is not None
    return [payload["n"] async for payload in occurrence]


@pytest.fixture
def kinds(admin: psycopg.Connection, name: Name) -> tuple[str, str]:
    made = name("x"), name("y")
    for kind in made:
        make_type(admin, kind)
    return made


async def test_a_handler_that_is_called_no_more_keeps_its_occurrence_and_others_go_on(
    dsn: str, admin: psycopg.Connection, name: Name, kinds: tuple[str, str]
) -> None:
    who, seen = name("c"), []
    x, y = kinds

    async def fails(_occurrence: AsyncOccurrence) -> None:
        raise ValueError("no")

    async def handle(occurrence: AsyncOccurrence) -> None:
        seen.extend(await payloads(occurrence))

    async with AsyncClient(dsn) as client, client.identify(who) as me:
        failing = await me.register(x, handler=fails)
        failing.retry_in, failing.max_attempts = 0.01, 2
        await me.register(y, handler=handle)
        await me.start()
        publish(admin, x, 1)
        dispatch(admin)
        await until(lambda: failing.error is not None)
        publish(admin, y, 2)
        dispatch(admin)
        await until(lambda: seen == [2])
        await until(lambda: value(admin, COMMITTED, [who, y]) is not None)
        assert value(admin, COMMITTED, [who, x]) is None
        me.set_handler(x, handle)
        await until(lambda: len(seen) > 1)
        assert seen == [2, 1]
        await until(lambda: value(admin, COMMITTED, [who, x]) is not None)
        await me.disconnect()
    call(admin, "drop_client", who)


async def test_who_polls_completes_nothing_that_a_handler_has_in_hand(
    dsn: str, admin: psycopg.Connection, name: Name, kinds: tuple[str, str]
) -> None:
    who = name("c")
    x, y = kinds
    begun, goes_on, seen = runtime.Signal(), runtime.Signal(), []

    async def handle(occurrence: AsyncOccurrence) -> None:
        begun.set()
        await goes_on.wait(60.0)
        seen.append(await payloads(occurrence))

    async with AsyncClient(dsn) as client, client.identify(who) as me:
        await me.register(x, handler=handle)
        await me.register(y)
        await me.start()
        for kind, n in ((x, 1), (y, 2), (y, 3)):
            publish(admin, kind, n)
        dispatch(admin)
        assert await begun.wait(60.0)
        polled = await me.get_event(timeout=60.0)
        assert await payloads(polled) == [2]
        second = await me.receive_event()
        assert second is not None
        assert await payloads(second) == [3]
        assert value(admin, COMMITTED, [who, x]) is None, "its handler runs"
        goes_on.set()
        await until(lambda: seen == [[1]])
        await until(lambda: value(admin, COMMITTED, [who, x]) is not None)
        assert await second.is_completed() is False
        assert await me.commit_event() == second.event_id
        assert await second.is_completed()
        await me.disconnect()
    call(admin, "drop_client", who)


async def test_a_handler_gets_what_the_session_before_had_in_hand(
    dsn: str, admin: psycopg.Connection, name: Name, kinds: tuple[str, str]
) -> None:
    who, seen = name("c"), []
    x, y = kinds

    async def handle(occurrence: AsyncOccurrence) -> None:
        seen.append((await payloads(occurrence), occurrence.attempt))

    async with AsyncClient(dsn) as client, client.identify(who) as me:
        await me.register(x)
        publish(admin, x, 1)
        publish(admin, x, 2)
        dispatch(admin)
        assert await payloads(await me.receive_event()) == [1]
    await until_away(admin, who)
    async with AsyncClient(dsn) as client, client.identify(who) as me:
        await me.register(y, handler=handle)
        await me.register(x, handler=handle)
        await me.start()
        await until(lambda: len(seen) == 2)
    assert seen == [([1], 2), ([2], 1)]
    call(admin, "drop_client", who)


async def test_a_commit_whose_answer_was_lost_is_not_handled_again(
    dsn: str, admin: psycopg.Connection, name: Name, kinds: tuple[str, str]
) -> None:
    who, table = name("c"), name("t")
    x, y = kinds
    rows(admin, f"create table {table} (kind text, n integer)")

    async def handle(occurrence: AsyncOccurrence, connection: psycopg.AsyncConnection) -> None:
        for n in await payloads(occurrence):
            await connection.execute(f"insert into {table} values (%s, %s)".encode(), [occurrence.event_type, n])

    async with AsyncClient(dsn) as client, client.identify(who) as me:
        transaction, cut = client._core.transaction, [True, False, True]

        @contextlib.asynccontextmanager
        async def cut_off() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
            async with transaction() as connection:
                yield connection
            if cut and cut.pop():
                raise psycopg.OperationalError("the answer was lost")

        client._core.transaction = cut_off  # type: ignore[method-assign]
        for kind in kinds:
            await me.register(kind, handler=handle, transactional=True)
        for n in (1, 2):
            for kind in kinds:
                publish(admin, kind, n)
        dispatch(admin)
        await me.start()
        await until(lambda: value(admin, "select pending_events from pgps.clients where name = %s", [who]) == 0)
        await until(lambda: not cut)
        await me.disconnect()
    assert rows(admin, f"select kind, n from {table} order by 1, 2") == [(x, 1), (x, 2), (y, 1), (y, 2)]
    rows(admin, f"drop table {table}")
    call(admin, "drop_client", who)


async def test_who_was_interrupted_while_he_received_misses_nothing(
    dsn: str, admin: psycopg.Connection, name: Name, kinds: tuple[str, str]
) -> None:
    who = name("c")
    x, _ = kinds
    async with AsyncClient(dsn) as client, client.identify(who) as me:
        await me.register(x)
        for n in (1, 2, 3):
            publish(admin, x, n)
        for number in (1, 2):
            await me.send(f"select {number} as n")
            (claimed,) = rows(admin, "select request_no from pgps.claim_request()")
            rows(admin, "select pgps.run_request(%s)", claimed)
        dispatch(admin)
        rows_of = client._core.session.rows

        async def answered_and_interrupted(query: str, *args: Any, **named: Any) -> list[Any]:
            client._core.session.rows = rows_of  # type: ignore[method-assign]
            await rows_of(query, *args, **named)
            raise InterruptedHereError

        found: list[object] = []
        for _ in range(2):
            client._core.session.rows = answered_and_interrupted  # type: ignore[method-assign]
            with pytest.raises(InterruptedHereError):
                await me.get_event(timeout=60.0)
            found += await payloads(await me.get_event(timeout=60.0))
            client._core.session.rows = answered_and_interrupted  # type: ignore[method-assign]
            with pytest.raises(InterruptedHereError):
                await me.receive_reply(timeout=60.0)
            reply = await me.receive_reply(timeout=60.0)
            assert reply is not None
            found += [row async for row in reply]
        assert found == [1, {"n": 1}, 2, {"n": 2}]
        assert await payloads(await me.get_event()) == [3]
    call(admin, "drop_client", who)
