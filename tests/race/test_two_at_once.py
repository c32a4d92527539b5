"""Two sessions in each other's way: dispatchers, consumers, those who define and those who run."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, meanwhile, numbers, publish, refused, rows, take, value
from tests.fix_db import Connect

Open = Callable[..., psycopg.Connection]


@pytest.fixture
def opened(connect: Connect, own_database: str) -> Open:
    return lambda autocommit=True: connect(autocommit=autocommit, dsn=own_database)


@pytest.fixture
def broker(opened: Open) -> psycopg.Connection:
    connection = opened()
    make_type(connection, "tick")
    call(connection, "subscribe", "s", "tick")
    return connection


def test_a_second_dispatcher_waits_and_repeats_nothing(broker: psycopg.Connection, opened: Open) -> None:
    first, second = opened(autocommit=False), opened()
    publish(broker, "tick", 1, 2)
    assert value(first, "select pgps.dispatch()") == 2
    publish(broker, "tick", 3)
    with meanwhile(broker, second, lambda: rows(second, "select pgps.dispatch()")):
        first.commit()
    assert take(broker, "s") == [1, 2, 3]


def test_a_dispatcher_that_rolls_back_leaves_all_to_the_next(broker: psycopg.Connection, opened: Open) -> None:
    first, second = opened(autocommit=False), opened()
    publish(broker, "tick", 1)
    assert value(first, "select pgps.dispatch()") == 1
    with meanwhile(broker, second, lambda: rows(second, "select pgps.dispatch()")):
        first.rollback()
    assert numbers(broker, "s") == [1]


def test_subscribing_during_a_dispatch(broker: psycopg.Connection, opened: Open) -> None:
    """From now on: what commits after the subscription did; from earliest: all of it, once."""
    dispatcher, session = opened(autocommit=False), opened(autocommit=False)
    publish(broker, "tick", 1)
    call(session, "subscribe", "before", "tick", filter="n > 0")
    rows(dispatcher, "select pgps.dispatch()")
    call(session, "subscribe", "same", "tick")
    session.commit()
    publish(broker, "tick", 2)
    with meanwhile(broker, session, lambda: call(session, "subscribe", "all", "tick", start="earliest")):
        dispatcher.commit()
    session.commit()
    publish(broker, "tick", 3)
    assert take(broker, "s") == [1, 2, 3]
    assert take(broker, "all") == [1, 2, 3]
    for name in ("before", "same"):
        assert take(broker, name) == [2, 3]


def test_unsubscribing_during_a_dispatch(broker: psycopg.Connection, opened: Open) -> None:
    dispatcher, session = opened(autocommit=False), opened(autocommit=False)
    call(broker, "subscribe", "other", "tick", filter="n > 0")
    publish(broker, "tick", 1)
    rows(dispatcher, "select pgps.dispatch()")
    call(broker, "unsubscribe", "other")
    dispatcher.commit()
    call(session, "unsubscribe", "s")
    publish(broker, "tick", 2)
    rows(dispatcher, "select pgps.dispatch()")
    session.rollback()
    dispatcher.commit()
    assert take(broker, "s") == [1, 2]


def test_a_type_that_somebody_creates_at_the_same_time_exists_already(broker: psycopg.Connection, opened: Open) -> None:
    first, second = opened(autocommit=False), opened()
    call(first, "create_event_type", "tock", "n integer")

    def create() -> None:
        call(second, "create_event_type", "tock", "n integer")

    with refused("42710", 'event type "tock" exists already'), meanwhile(broker, second, create):
        first.commit()


def test_dropping_a_type_during_a_dispatch(broker: psycopg.Connection, opened: Open) -> None:
    dispatcher, session = opened(autocommit=False), opened()
    make_type(broker, "tock")
    call(broker, "subscribe", "t", "tock")
    publish(broker, "tick", 1)
    publish(broker, "tock", 2)
    rows(dispatcher, "select pgps.dispatch()")
    publish(broker, "tick", 3)
    with meanwhile(broker, session, lambda: call(session, "drop_event_type", "tick", True)):
        dispatcher.commit()
    publish(broker, "tock", 4)
    assert take(broker, "t") == [2, 4]


def test_a_dispatch_that_waits_for_a_drop_goes_on(broker: psycopg.Connection, opened: Open) -> None:
    dispatcher, session = opened(), opened(autocommit=False)
    make_type(broker, "tock")
    call(broker, "subscribe", "t", "tock")
    publish(broker, "tick", 1)
    publish(broker, "tock", 2)
    call(session, "drop_event_type", "tick", True)

    def dispatch() -> None:
        try:
            rows(dispatcher, "select pgps.dispatch()")
        except psycopg.Error:
            # The type went while it was looked at; the worker tries again.
            rows(dispatcher, "select pgps.dispatch()")

    with meanwhile(broker, dispatcher, dispatch):
        session.commit()
    assert take(broker, "t") == [2]


def test_publishing_and_altering_at_once(broker: psycopg.Connection, opened: Open) -> None:
    publisher, session = opened(), opened(autocommit=False)
    publish(broker, "tick", 1)
    call(session, "alter_event_type", "tick", "b text default 'x'")
    with meanwhile(broker, publisher, lambda: publish(publisher, "tick", 2)):
        session.commit()
    assert take(broker, "s") == [1, 2]


def test_a_straggler_delays_only_its_own_events(broker: psycopg.Connection, opened: Open) -> None:
    late = [opened(autocommit=False) for _ in range(3)]
    for number, session in enumerate(late):
        publish(session, "tick", number)
    publish(broker, "tick", 10)
    assert take(broker, "s") == [10]
    late[2].commit()
    assert take(broker, "s") == [2]
    publish(late[0], "tick", 3)
    late[0].commit()
    publish(broker, "tick", 11)
    late[1].rollback()
    assert take(broker, "s") == [0, 3, 11]
    assert take(broker, "s") == []
