"""Consumers that name themselves: what was received belongs to the name, whatever session it comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, queue, refused, rows, value
from tests.fix_db import Connect

Name = Callable[..., str]


@pytest.fixture
def shared(admin: psycopg.Connection, name: Name) -> str:
    """A shared subscription for which six events wait."""
    return _ready(admin, name("shared"), "any")


@pytest.fixture
def single(admin: psycopg.Connection, name: Name) -> str:
    """A subscription with one consumer for which six events wait."""
    return _ready(admin, name("single"), "all")


def _ready(admin: psycopg.Connection, made: str, handler: str) -> str:
    make_type(admin, made)
    call(admin, "subscribe", made, made, handler=handler, max_attempts=2)
    publish(admin, made, *range(6))
    rows(admin, "select pgps.dispatch()")
    return made


def _receive(connection: psycopg.Connection, name: str, most: int, consumer: str | None = None) -> list[int]:
    query = "select event_id from pgps.receive(%s, %s, %s)"
    return column(connection, query, [name, most, consumer])


def test_who_shares_a_session_acknowledges_only_what_is_its_own(admin: psycopg.Connection, shared: str) -> None:
    mine, other = _receive(admin, shared, 3, "a"), _receive(admin, shared, 3, "b")
    assert len({*mine, *other}) == 6
    with refused("55000", str(mine[0]), "consumer"):
        call(admin, "ack", shared, mine[0], consumer="b")
    with refused("55000", str(mine[0])):
        call(admin, "nack", shared, mine[0], consumer="b")
    with refused("55000", str(mine[0])):
        call(admin, "ack", shared, mine[0])
    assert call(admin, "ack", shared) == 0
    assert call(admin, "ack", shared, consumer="b") == 3
    call(admin, "nack", shared, mine[2], "no", consumer="a")
    assert call(admin, "ack", shared, mine[0], consumer="a") == 1
    assert value(admin, "select acked from pgps.ack_each(array[%s], consumer => 'a')", [shared]) == 1
    query = "select event_id from pgps.take(%s, consumer => 'c')"
    assert column(admin, query, [shared]) == [mine[2]]


def test_a_name_may_come_in_another_session(admin: psycopg.Connection, connect: Connect, shared: str) -> None:
    _receive(admin, shared, 2, "a")
    _receive(admin, shared, 2, "a")
    assert call(connect(), "ack", shared, consumer="a") == 4


def test_without_a_name_it_is_said_when_several_transactions_received(
    admin: psycopg.Connection, connect: Connect, shared: str
) -> None:
    """Through a transaction pooler two clients may have received in one server process."""
    said: list[str] = []
    admin.add_notice_handler(lambda notice: said.append(f"{notice.severity}: {notice.message_primary}"))
    _receive(admin, shared, 1)
    assert call(admin, "ack", shared) == 1
    with admin.transaction():
        _receive(admin, shared, 1)
        _receive(admin, shared, 1)
    for _ in range(2):
        _receive(admin, shared, 1, "a")
    assert (call(admin, "ack", shared), call(admin, "ack", shared, consumer="a")) == (2, 2)
    assert said == []
    publish(admin, shared, 6)
    rows(admin, "select pgps.dispatch()")
    for _ in range(2):
        _receive(admin, shared, 1)
    assert call(admin, "ack", shared) == 2
    (warning,) = said
    assert warning.startswith("WARNING: these were events of 2 transactions")


def test_another_application_on_the_same_session_is_not_taken_for_the_first(
    admin: psycopg.Connection, shared: str
) -> None:
    rows(admin, "set application_name = 'first'")
    (mine,) = _receive(admin, shared, 1)
    rows(admin, "set application_name = 'second'")
    for up_to in (None, mine):
        with refused("55000", "application_name", "second"):
            call(admin, "ack", shared, up_to)
    rows(admin, "set application_name = 'first'")
    assert call(admin, "ack", shared) == 1


def test_names_can_be_made_a_duty(own_database: str, connect: Connect) -> None:
    admin = connect(dsn=own_database)
    made = _ready(admin, "tick", "any")
    call(admin, "configure", "named_consumers", "true")
    with refused("55000", "has to name itself", "consumer =>"):
        _receive(admin, made, 1)
    assert len(_receive(admin, made, 1, "a")) == 1
    assert len(column(admin, "select event_id from pgps.take(%s, 1)", [made])) == 1


@pytest.mark.parametrize("rows_function", [False, True])
def test_a_single_consumer_is_told_that_there_are_two(
    admin: psycopg.Connection, single: str, rows_function: bool
) -> None:
    def received(most: int, consumer: str | None) -> list[int]:
        if not rows_function:
            return _receive(admin, single, most, consumer)
        query = f"select pgps_event_id from {queue(single, 'receive')}(array[%s], %s, %s)"
        return column(admin, query, [single, most, consumer])

    mine = received(2, "a")
    assert received(4, "b")[:2] == mine
    for consumer in ("a", None):
        for verb, args in (("ack", ()), ("ack", (mine[0],)), ("nack", (mine[0],))):
            with refused("55000", 'by consumer "b"', "handler => 'any'"):
                call(admin, verb, single, *args, consumer=consumer)
        with refused("55000", 'by consumer "b"'):
            rows(admin, "select pgps.ack_each(array[%s], %s)", [single, consumer])
    call(admin, "nack", single, mine[1], "no", "0", consumer="b")
    assert call(admin, "ack", single, mine[0], consumer="b") == 1
    # What was put back alone, by another one.
    assert received(1, "a") == [mine[1]]
    with refused("55000", 'by consumer "a"'):
        call(admin, "ack", single, consumer="b")
    assert call(admin, "ack", single, consumer="a") == 1
    assert call(admin, "ack", single, consumer="c") == 0
    assert len(received(9, None)) == 4
    with refused("55000", "without the name"):
        call(admin, "ack", single, consumer="a")
    assert value(admin, "select acked from pgps.ack_each(array[%s])", [single]) == 4


def test_a_name_gives_no_rights(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], shared: str
) -> None:
    (mine,) = _receive(admin, shared, 1, "a")
    stranger = connect(role("stranger"))
    attempts: list[tuple[str, list[Any]]] = [
        ("select pgps.receive(%s, 1, 'a')", [shared]),
        ("select pgps.ack(%s, %s, 'a')", [shared, mine]),
        ("select pgps.nack(%s, %s, consumer => 'a')", [shared, mine]),
        ("select pgps.ack_each(array[%s], 'a')", [shared]),
    ]
    for query, params in attempts:
        with refused("42501", shared):
            rows(stranger, query, params)
    assert call(admin, "ack", shared, consumer="a") == 1


@pytest.mark.parametrize("consumer", ["", "x" * 201])
def test_a_name_is_a_name(admin: psycopg.Connection, shared: str, single: str, consumer: str) -> None:
    for made in (shared, single):
        with refused("22023", "invalid consumer"):
            _receive(admin, made, 1, consumer)
    with refused("22023", "invalid consumer"):
        rows(admin, f"select * from {queue(single, 'receive')}(array[%s], 1, %s)", [single, consumer])
