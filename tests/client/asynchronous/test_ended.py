"""What ends where it should not: handlers that raise what is no Exception, checkpoints and connects that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgps.client import AsyncClient, AsyncOccurrence, _names
from pgps.client._async import runtime, seat
from pgps.client._async.session import AnyConnection, fetch
from tests.client.asynchronous.rig import dispatch, until
from tests.fix_broker import call, make_type, publish, rows, value

pytestmark = pytest.mark.anyio
Name = Callable[..., str]
ENDS: set[type[BaseException]] = {SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError}
HERE = sorted(ENDS - set(runtime.ENDS_PROGRAM) - set(runtime.STOPPED), key=str)


async def numbers(occurrence: AsyncOccurrence | None) -> list[int]:
    return [] if occurrence is None else [payload["n"] async for payload in occurrence]


async def test_a_session_that_was_begun_by_an_interrupted_connect_is_over(
    dsn: str, admin: psycopg.Connection, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)

    async def interrupted(connection: AnyConnection, query: str, params: Any = None, **more: Any) -> list[Any]:
        found = await fetch(connection, query, params, **more)
        if query == _names.CONNECT:
            raise asyncio.CancelledError
        return found

    async with AsyncClient(dsn, poll=60.0) as client, AsyncClient(dsn) as other:
        async with client.subscribe(name("s"), kind, temporary=True) as subscription:
            monkeypatch.setattr(seat, "fetch", interrupted)
            with pytest.raises(asyncio.CancelledError):
                await client.identify(who).connect()
            monkeypatch.undo()
            is_connected = "select connected from pgps.clients where name = %s"
            await until(lambda: value(admin, is_connected, [who]) is False)
            async with other.identify(who) as me:
                assert me.is_connected
            publish(admin, kind, 1)
            dispatch(admin)
            assert len(await subscription.receive(timeout=30.0)) == 1
    call(admin, "drop_client", who)


def outcome(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.ERROR]


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("kind_of", HERE)
async def test_a_queued_handler_that_wants_to_end_the_program_is_called_no_more_and_that_is_told(
    dsn: str,
    admin: psycopg.Connection,
    name: Name,
    caplog: pytest.LogCaptureFixture,
    kind_of: type[BaseException],
    transactional: bool,
) -> None:
    kind, other, who, table = name(), name(), name("c"), name("t")
    make_type(admin, kind)
    make_type(admin, other)
    rows(admin, f"create table {table} (n integer)")
    seen: list[int] = []

    async def leave(_: AsyncOccurrence, *connections: psycopg.AsyncConnection) -> None:
        for connection in connections:
            await connection.execute(f"insert into {table} values (1)".encode())
        raise kind_of("enough")

    async def note(occurrence: AsyncOccurrence) -> None:
        seen.extend(await numbers(occurrence))

    async with AsyncClient(dsn) as client, client.identify(who) as me:
        registration = await me.register(kind, handler=leave, transactional=transactional)
        await me.register(other, handler=note)
        await me.start()
        publish(admin, kind, 1)
        dispatch(admin)
        await until(lambda: registration.error is not None, timeout=20.0)
        assert isinstance(registration.error, kind_of)
        await until(lambda: any(f"{kind} failed with {kind_of.__name__} at event" in one for one in outcome(caplog)))
        publish(admin, other, 2)
        dispatch(admin)
        await until(lambda: seen == [2])
        assert registration.failed == 1
        me.unset_handler(kind)
        assert await numbers(await me.get_event(kind, timeout=60.0)) == [1]
    assert rows(admin, f"select n from {table}") == []
    rows(admin, f"drop table {table}")
    call(admin, "drop_client", who)


@pytest.mark.parametrize("kind_of", HERE)
async def test_a_direct_handler_that_wants_to_end_the_program_is_called_no_more_and_that_is_told(
    dsn: str, admin: psycopg.Connection, name: Name, caplog: pytest.LogCaptureFixture, kind_of: type[BaseException]
) -> None:
    kind, other, who = name(), name(), name("c")
    make_type(admin, kind, visibility="immediate")
    make_type(admin, other, visibility="immediate")
    seen: list[int] = []

    async def leave(_: AsyncOccurrence) -> None:
        raise kind_of("enough")

    async def note(occurrence: AsyncOccurrence) -> None:
        seen.extend(await numbers(occurrence))

    async with AsyncClient(dsn) as client, client.identify(who) as me:
        registration = await me.register(kind, mode="direct", handler=leave)
        await me.register(other, mode="direct", handler=note)
        await me.start()
        publish(admin, kind, 1)
        await until(lambda: registration.error is not None, timeout=20.0)
        assert isinstance(registration.error, kind_of)
        await until(lambda: any(f"{kind} failed with {kind_of.__name__} at event" in one for one in outcome(caplog)))
        publish(admin, other, 2)
        await until(lambda: seen == [2])
        publish(admin, kind, 3)
        assert await numbers(await me.get_event(timeout=60.0)) == [3]
        assert registration.failed == 1
        registration.handler = None
    call(admin, "drop_client", who)


@pytest.mark.parametrize("kind_of", [ArithmeticError, *HERE])
async def test_a_checkpoint_that_cannot_be_had_is_told_and_asked_for_again(
    dsn: str, admin: psycopg.Connection, name: Name, caplog: pytest.LogCaptureFixture, kind_of: type[BaseException]
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    seen: list[int] = []
    asked: list[int] = []

    def save() -> bytes:
        asked.append(1)
        if len(asked) == 1:
            raise kind_of("not now")
        return b"here"

    async def note(occurrence: AsyncOccurrence) -> None:
        seen.extend(await numbers(occurrence))

    async with AsyncClient(dsn) as client, client.identify(who) as me:
        me.set_event_state(save)
        await me.register(kind, handler=note)
        await me.start()
        publish(admin, kind, 1)
        dispatch(admin)
        await until(lambda: seen == [1])
        assert any(f"{who}: {kind_of.__name__}: not now" in one for one in outcome(caplog))
    call(admin, "drop_client", who)
