"""A subscription to a prefix whose types are not all ready at once: it leaves no event out, whoever changes it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, refused, rows, take, value
from tests.fix_db import Connect
from tests.sql.match.lane_steps import cut, make_filter, run_lanes, take_only

Session = Callable[..., psycopg.Connection]


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    return connect(dsn=own_database)


@pytest.fixture
def alice(own_database: str, connect: Connect, role: Callable[..., str]) -> Session:
    """Opens sessions of a role without rights of its own."""
    name = role("alice")
    return lambda **options: connect(name, dsn=own_database, **options)


def dispatch(broker: psycopg.Connection) -> None:
    rows(broker, "select pgps.dispatch()")


def state(broker: psycopg.Connection) -> str:
    found: str = value(broker, "select state from pgps.subscriptions where name = 's'")
    return found


def test_a_filter_that_is_mended_during_a_pause_catches_up_before_anything_is_read(
    broker: psycopg.Connection, alice: Session
) -> None:
    session = alice()
    make_type(broker, "pa")
    make_type(broker, "pb")
    make_filter(broker, "if n = 2 then raise undefined_table; end if")
    call(session, "subscribe", "s", "p*", "public.good(n)")
    for name, number in [("pa", 2), ("pa", 3), ("pb", 4)]:
        publish(broker, name, number)
        if number != 3:
            dispatch(broker)
            run_lanes(broker)
    call(broker, "pause", "s")
    make_filter(broker)
    call(broker, "resume", "s")
    with refused("55000", "catches up"):
        take_only(session, "s")
    run_lanes(broker)
    assert take_only(session, "s") == [3, 4]


def test_a_policy_that_is_dropped_during_a_pause_lets_all_be_caught_up_before_anything_is_read(
    broker: psycopg.Connection, alice: Session
) -> None:
    session = alice()
    make_type(broker, "pa")
    make_type(broker, "pb")
    call(broker, "create_policy", "pa", "pol", session.info.user, "10 / n > 0")
    call(session, "subscribe", "s", "p*")
    publish(broker, "pa", 0)
    publish(broker, "pa", 5)
    dispatch(broker)
    assert state(session) == "suspended"
    publish(broker, "pa", 6)
    publish(broker, "pb", 7)
    dispatch(broker)
    call(session, "pause", "s")
    call(broker, "drop_policy", "pa", "pol")
    call(session, "resume", "s")
    with refused("55000", "catches up"):
        take_only(session, "s")
    dispatch(broker)
    assert take_only(session, "s") == [0, 5, 6, 7]


def test_seek_takes_the_types_that_were_still_to_be_joined_from_there_too(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    altering = connect(dsn=own_database, autocommit=False)
    make_type(broker, "pa")
    make_type(broker, "pb")
    publish(broker, "pa", 1)
    publish(broker, "pb", 2)
    dispatch(broker)
    call(altering, "alter_event_type", "pb", add_attribute="m integer")
    call(broker, "subscribe", "s", "p*")
    altering.rollback()
    call(broker, "seek", "s", "earliest")
    publish(broker, "pb", 3)
    dispatch(broker)
    dispatch(broker)
    assert take(broker, "s") == [1, 2, 3]


def test_what_came_before_others_subscribed_to_a_new_type_comes_to_who_joins_it_late(
    broker: psycopg.Connection, alice: Session
) -> None:
    session, leaving = alice(), alice(autocommit=False)
    call(session, "subscribe", "s", "p*")
    call(leaving, "unsubscribe", "s")
    make_type(broker, "pa")
    publish(broker, "pa", 1)
    cut(broker)
    leaving.rollback()
    call(session, "subscribe", "x", "pa")
    run_lanes(broker)
    dispatch(broker)
    run_lanes(broker)
    publish(broker, "pa", 2)
    dispatch(broker)
    run_lanes(broker)
    assert take_only(session, "s") == [1, 2]


def test_nothing_is_read_ahead_of_a_type_that_has_still_to_be_caught_up_with(
    broker: psycopg.Connection, alice: Session
) -> None:
    session, holder = alice(), alice(autocommit=False)
    make_type(broker, "pa")
    publish(broker, "pa", 1)
    dispatch(broker)
    call(session, "subscribe", "s", "p*")
    call(session, "seek", "s", "earliest")
    make_type(broker, "pb")
    call(holder, "resume", "s")
    publish(broker, "pa", 2)
    publish(broker, "pb", 3)
    dispatch(broker)
    rows(session, "set statement_timeout = '3s'")
    found = take_only(session, "s")
    holder.commit()
    dispatch(broker)
    assert found + take_only(session, "s") == [1, 2, 3]
