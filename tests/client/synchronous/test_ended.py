# Made by tools/unasync_client.py from tests/client/asynchronous/test_ended.py: change that, then `make generate`.
"""What ends where it should not: handlers that raise what is no Exception, checkpoints and connects that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgps.client import Client, Occurrence, _names
from pgps.client._sync import runtime, seat
from pgps.client._sync.session import AnyConnection, fetch
from tests.client.synchronous.rig import dispatch, until
from tests.fix_broker import call, make_type, publish, rows, value

pytestmark = pytest.mark.anyio
Name = Callable[..., str]
ENDS: set[type[BaseException]] = {SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError}
HERE = sorted(ENDS - set(runtime.ENDS_PROGRAM) - set(runtime.STOPPED), key=str)


def numbers(occurrence: Occurrence | None) -> list[int]:
    return [] if occurrence is None else [payload["n"] for payload in occurrence]


def test_a_session_that_was_begun_by_an_interrupted_connect_is_over(
    dsn: str, admin: psycopg.Connection, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)

    def interrupted(connection: AnyConnection, query: str, params: Any = None, **more: Any) -> list[Any]:
        found = fetch(connection, query, params, **more)
        if query == _names.CONNECT:
            raise asyncio.CancelledError
        return found

    with Client(dsn, poll=60.0) as client, Client(dsn) as other:
        with client.subscribe(name("s"), kind, temporary=True) as subscription:
            monkeypatch.setattr(seat, "fetch", interrupted)
            with pytest.raises(asyncio.CancelledError):
                client.identify(who).connect()
            monkeypatch.undo()
            is_connected = "select connected from pgps.clients where name = %s"
            until(lambda: value(admin, is_connected, [who]) is False)
            with other.identify(who) as me:
                assert me.is_connected
            publish(admin, kind, 1)
            dispatch(admin)
            assert len(subscription.receive(timeout=30.0)) == 1
    call(admin, "drop_client", who)


def outcome(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.ERROR]


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("kind_of", HERE)
def test_a_queued_handler_that_wants_to_end_the_program_is_called_no_more_and_that_is_told(
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

    def leave(_: Occurrence, *connections: psycopg.Connection) -> None:
        for connection in connections:
            connection.execute(f"insert into {table} values (1)".encode())
        raise kind_of("enough")

    def note(occurrence: Occurrence) -> None:
        seen.extend(numbers(occurrence))

    with Client(dsn) as client, client.identify(who) as me:
        registration = me.register(kind, handler=leave, transactional=transactional)
        me.register(other, handler=note)
        me.start()
        publish(admin, kind, 1)
        dispatch(admin)
        until(lambda: registration.error is not None, timeout=20.0)
        assert isinstance(registration.error, kind_of)
        until(lambda: any(f"{kind} failed with {kind_of.__name__} at event" in one for one in outcome(caplog)))
        publish(admin, other, 2)
        dispatch(admin)
        until(lambda: seen == [2])
        assert registration.failed == 1
        me.unset_handler(kind)
        assert numbers(me.get_event(kind, timeout=60.0)) == [1]
    assert rows(admin, f"select n from {table}") == []
    rows(admin, f"drop table {table}")
    call(admin, "drop_client", who)


@pytest.mark.parametrize("kind_of", HERE)
def test_a_direct_handler_that_wants_to_end_the_program_is_called_no_more_and_that_is_told(
    dsn: str, admin: psycopg.Connection, name: Name, caplog: pytest.LogCaptureFixture, kind_of: type[BaseException]
) -> None:
    kind, other, who = name(), name(), name("c")
    make_type(admin, kind, visibility="immediate")
    make_type(admin, other, visibility="immediate")
    seen: list[int] = []

    def leave(_: Occurrence) -> None:
        raise kind_of("enough")

    def note(occurrence: Occurrence) -> None:
        seen.extend(numbers(occurrence))

    with Client(dsn) as client, client.identify(who) as me:
        registration = me.register(kind, mode="direct", handler=leave)
        me.register(other, mode="direct", handler=note)
        me.start()
        publish(admin, kind, 1)
        until(lambda: registration.error is not None, timeout=20.0)
        assert isinstance(registration.error, kind_of)
        until(lambda: any(f"{kind} failed with {kind_of.__name__} at event" in one for one in outcome(caplog)))
        publish(admin, other, 2)
        until(lambda: seen == [2])
        publish(admin, kind, 3)
        assert numbers(me.get_event(timeout=60.0)) == [3]
        assert registration.failed == 1
        registration.handler = None
    call(admin, "drop_client", who)


@pytest.mark.parametrize("kind_of", [ArithmeticError, *HERE])
def test_a_checkpoint_that_cannot_be_had_is_told_and_asked_for_again(
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

    def note(occurrence: Occurrence) -> None:
        seen.extend(numbers(occurrence))

    with Client(dsn) as client, client.identify(who) as me:
        me.set_event_state(save)
        me.register(kind, handler=note)
        me.start()
        publish(admin, kind, 1)
        dispatch(admin)
        until(lambda: seen == [1])
        assert any(f"{who}: {kind_of.__name__}: not now" in one for one in outcome(caplog))
    call(admin, "drop_client", who)
