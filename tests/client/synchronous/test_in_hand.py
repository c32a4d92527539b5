# Made by tools/unasync_client.py from tests/client/asynchronous/test_in_hand.py: change that, then `make generate`.
"""Several registrations of one named client, each with an occurrence of its own in hand; and answers that are lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pgps.client import Client, Occurrence
from pgps.client._sync import runtime
from tests.client.synchronous.rig import dispatch, until, until_away
from tests.fix_broker import call, make_type, publish, rows, value

pytestmark = pytest.mark.anyio
Name = Callable[..., str]

COMMITTED = "select last_committed_event from pgps.registrations where client = %s and event_name = %s"


class InterruptedHereError(BaseException):
    """As Ctrl-C, or a timeout around a call."""


def payloads(occurrence: Occurrence | None) -> list[int]:
    assert occurrence is not None
    return [payload["n"] for payload in occurrence]


@pytest.fixture
def kinds(admin: psycopg.Connection, name: Name) -> tuple[str, str]:
    made = name("x"), name("y")
    for kind in made:
        make_type(admin, kind)
    return made


def test_a_handler_that_is_called_no_more_keeps_its_occurrence_and_others_go_on(
    dsn: str, admin: psycopg.Connection, name: Name, kinds: tuple[str, str]
) -> None:
    who, seen = name("c"), []
    x, y = kinds

    def fails(_occurrence: Occurrence) -> None:
        raise ValueError("no")

    def handle(occurrence: Occurrence) -> None:
        seen.extend(payloads(occurrence))

    with Client(dsn) as client, client.identify(who) as me:
        failing = me.register(x, handler=fails)
        failing.retry_in, failing.max_attempts = 0.01, 2
        me.register(y, handler=handle)
        me.start()
        publish(admin, x, 1)
        dispatch(admin)
        until(lambda: failing.error is not None)
        publish(admin, y, 2)
        dispatch(admin)
        until(lambda: seen == [2])
        until(lambda: value(admin, COMMITTED, [who, y]) is not None)
        assert value(admin, COMMITTED, [who, x]) is None
        me.set_handler(x, handle)
        until(lambda: len(seen) > 1)
        assert seen == [2, 1]
        until(lambda: value(admin, COMMITTED, [who, x]) is not None)
        me.disconnect()
    call(admin, "drop_client", who)


def test_who_polls_completes_nothing_that_a_handler_has_in_hand(
    dsn: str, admin: psycopg.Connection, name: Name, kinds: tuple[str, str]
) -> None:
    who = name("c")
    x, y = kinds
    begun, goes_on, seen = runtime.Signal(), runtime.Signal(), []

    def handle(occurrence: Occurrence) -> None:
        begun.set()
        goes_on.wait(60.0)
        seen.append(payloads(occurrence))

    with Client(dsn) as client, client.identify(who) as me:
        me.register(x, handler=handle)
        me.register(y)
        me.start()
        for kind, n in ((x, 1), (y, 2), (y, 3)):
            publish(admin, kind, n)
        dispatch(admin)
        assert begun.wait(60.0)
        polled = me.get_event(timeout=60.0)
        assert payloads(polled) == [2]
        second = me.receive_event()
        assert second is not None
        assert payloads(second) == [3]
        assert value(admin, COMMITTED, [who, x]) is None, "its handler runs"
        goes_on.set()
        until(lambda: seen == [[1]])
        until(lambda: value(admin, COMMITTED, [who, x]) is not None)
        assert second.is_completed() is False
        assert me.commit_event() == second.event_id
        assert second.is_completed()
        me.disconnect()
    call(admin, "drop_client", who)


def test_a_handler_gets_what_the_session_before_had_in_hand(
    dsn: str, admin: psycopg.Connection, name: Name, kinds: tuple[str, str]
) -> None:
    who, seen = name("c"), []
    x, y = kinds

    def handle(occurrence: Occurrence) -> None:
        seen.append((payloads(occurrence), occurrence.attempt))

    with Client(dsn) as client, client.identify(who) as me:
        me.register(x)
        publish(admin, x, 1)
        publish(admin, x, 2)
        dispatch(admin)
        assert payloads(me.receive_event()) == [1]
    until_away(admin, who)
    with Client(dsn) as client, client.identify(who) as me:
        me.register(y, handler=handle)
        me.register(x, handler=handle)
        me.start()
        until(lambda: len(seen) == 2)
    assert seen == [([1], 2), ([2], 1)]
    call(admin, "drop_client", who)


def test_a_commit_whose_answer_was_lost_is_not_handled_again(
    dsn: str, admin: psycopg.Connection, name: Name, kinds: tuple[str, str]
) -> None:
    who, table = name("c"), name("t")
    x, y = kinds
    rows(admin, f"create table {table} (kind text, n integer)")

    def handle(occurrence: Occurrence, connection: psycopg.Connection) -> None:
        for n in payloads(occurrence):
            connection.execute(f"insert into {table} values (%s, %s)".encode(), [occurrence.event_type, n])

    with Client(dsn) as client, client.identify(who) as me:
        transaction, cut = client._core.transaction, [True, False, True]

        @contextlib.contextmanager
        def cut_off() -> Iterator[psycopg.Connection[Any]]:
            with transaction() as connection:
                yield connection
            if cut and cut.pop():
                raise psycopg.OperationalError("the answer was lost")

        client._core.transaction = cut_off  # type: ignore[method-assign]
        for kind in kinds:
            me.register(kind, handler=handle, transactional=True)
        for n in (1, 2):
            for kind in kinds:
                publish(admin, kind, n)
        dispatch(admin)
        me.start()
        until(lambda: value(admin, "select pending_events from pgps.clients where name = %s", [who]) == 0)
        until(lambda: not cut)
        me.disconnect()
    assert rows(admin, f"select kind, n from {table} order by 1, 2") == [(x, 1), (x, 2), (y, 1), (y, 2)]
    rows(admin, f"drop table {table}")
    call(admin, "drop_client", who)


def test_who_was_interrupted_while_he_received_misses_nothing(
    dsn: str, admin: psycopg.Connection, name: Name, kinds: tuple[str, str]
) -> None:
    who = name("c")
    x, _ = kinds
    with Client(dsn) as client, client.identify(who) as me:
        me.register(x)
        for n in (1, 2, 3):
            publish(admin, x, n)
        for number in (1, 2):
            me.send(f"select {number} as n")
            (claimed,) = rows(admin, "select request_no from pgps.claim_request()")
            rows(admin, "select pgps.run_request(%s)", claimed)
        dispatch(admin)
        rows_of = client._core.session.rows

        def answered_and_interrupted(query: str, *args: Any, **named: Any) -> list[Any]:
            client._core.session.rows = rows_of  # type: ignore[method-assign]
            rows_of(query, *args, **named)
            raise InterruptedHereError

        found: list[object] = []
        for _ in range(2):
            client._core.session.rows = answered_and_interrupted  # type: ignore[method-assign]
            with pytest.raises(InterruptedHereError):
                me.get_event(timeout=60.0)
            found += payloads(me.get_event(timeout=60.0))
            client._core.session.rows = answered_and_interrupted  # type: ignore[method-assign]
            with pytest.raises(InterruptedHereError):
                me.receive_reply(timeout=60.0)
            reply = me.receive_reply(timeout=60.0)
            assert reply is not None
            found += [row for row in reply]
        assert found == [1, {"n": 1}, 2, {"n": 2}]
        assert payloads(me.get_event()) == [3]
    call(admin, "drop_client", who)
