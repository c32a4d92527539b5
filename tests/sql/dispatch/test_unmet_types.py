"""Subscriptions to a prefix and event types of it that are made in transactions which do not see each other."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import WAYS, call, dispatch, make_type, publish, rows, take, value
from tests.fix_db import Connect

_NOTES = "select count(*) from pgps_internal.unmet"


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Who dispatches: somebody by hand, or a worker."""
    return str(request.param)


@pytest.fixture
def admin(connect: Connect, own_database: str) -> psycopg.Connection:
    session = connect(dsn=own_database)
    make_type(session, "ha")
    return session


@pytest.fixture
def two(connect: Connect, own_database: str) -> tuple[psycopg.Connection, psycopg.Connection]:
    """Who subscribes and who makes an event type; neither waits for the other."""
    sessions = connect(dsn=own_database, autocommit=False), connect(dsn=own_database, autocommit=False)
    for session in sessions:
        rows(session, "set lock_timeout = '5s'")
        rows(session, "commit")
    return sessions


def make(session: psycopg.Connection, name: str = "hb") -> None:
    make_type(session, name)
    publish(session, name, 1)


@pytest.mark.parametrize("condition", [None, "n > 0"])
@pytest.mark.parametrize("start", ["now", "earliest"])
@pytest.mark.parametrize("is_type_first", [True, False])
@pytest.mark.parametrize("is_type_committed_first", [True, False])
def test_both_are_open_at_the_same_time(
    admin: psycopg.Connection,
    two: tuple[psycopg.Connection, psycopg.Connection],
    condition: str | None,
    start: str,
    way: str,
    *,
    is_type_first: bool,
    is_type_committed_first: bool,
) -> None:
    subscriber, maker = two
    if is_type_first:
        make(maker)
    call(subscriber, "subscribe", "s", "h*", condition, start=start)
    if not is_type_first:
        make(maker)
    for session in (maker, subscriber) if is_type_committed_first else (subscriber, maker):
        session.commit()
        # Also when it has been dispatched before the other has committed.
        dispatch(admin, way)
    publish(admin, "hb", 2)
    assert take(admin, "s", way=way) == [1, 2]
    publish(admin, "hb", 3)
    publish(admin, "ha", 4)
    assert take(admin, "s", way=way) == [3, 4]
    assert value(admin, _NOTES) == 0


def test_internal_and_shared_subscriptions_meet_it_too(
    admin: psycopg.Connection, two: tuple[psycopg.Connection, psycopg.Connection], way: str
) -> None:
    subscriber, maker = two
    rows(admin, "create table public.seen (n integer)")
    rows(
        admin,
        "create function public.note(e record) returns void language plpgsql as"
        " 'begin insert into public.seen values (e.n); end'",
    )
    call(subscriber, "subscribe", "internal", "h*", execute="public.note(record)")
    call(subscriber, "subscribe", "shared", "h*", handler="any")
    make(maker)
    maker.commit()
    dispatch(admin, way)
    subscriber.commit()
    publish(admin, "hb", 2)
    assert take(admin, "shared", way=way) == [1, 2]
    rows(admin, "call pgps.run_subscribers()")
    assert rows(admin, "select n from public.seen order by n") == [(1,), (2,)]


@pytest.mark.parametrize("mode", ["queued", "direct"])
@pytest.mark.parametrize("is_type_first", [True, False])
def test_registered_clients_meet_it_too(
    admin: psycopg.Connection,
    two: tuple[psycopg.Connection, psycopg.Connection],
    mode: str,
    way: str,
    *,
    is_type_first: bool,
) -> None:
    subscriber, maker = two
    rows(subscriber, "select pgps.connect_client('desk')")
    subscriber.commit()
    if is_type_first:
        make(maker)
    call(subscriber, "register_for_event", "desk", "h*", mode)
    if not is_type_first:
        make(maker)
    subscriber.commit()
    dispatch(admin, way)
    maker.commit()
    dispatch(admin, way)
    joined = "select count(*) from pgps_internal.registration_type join pgps_internal.event_type t using (type_id)"
    assert value(admin, f"{joined} where t.name = 'hb'") == 1
    assert value(admin, "select has_table_privilege('pgps_worker', 'pgps_internal.hb_log', 'trigger')") == (
        mode == "direct"
    )
    publish(admin, "ha", 2)
    dispatch(admin, way)
    assert value(admin, _NOTES) == 0


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_type_made_under_an_old_snapshot_meets_what_it_does_not_see(
    admin: psycopg.Connection, two: tuple[psycopg.Connection, psycopg.Connection], level: str, way: str
) -> None:
    subscriber, maker = two
    rows(maker, f"set transaction isolation level {level}")
    rows(maker, "select 1")
    call(subscriber, "subscribe", "s", "h*")
    subscriber.commit()
    make(maker)
    maker.commit()
    assert take(admin, "s", way=way) == [1]
    publish(admin, "hb", 2)
    assert take(admin, "s", way=way) == [2]


def test_somebody_is_changing_the_type_when_they_are_to_meet(
    admin: psycopg.Connection,
    connect: Connect,
    own_database: str,
    two: tuple[psycopg.Connection, psycopg.Connection],
    way: str,
) -> None:
    subscriber, maker = two
    call(subscriber, "subscribe", "s", "h*")
    make(maker)
    maker.commit()
    subscriber.commit()
    changing = connect(dsn=own_database, autocommit=False)
    call(changing, "alter_event_type", "hb", add_attribute="m integer")
    rows(admin, "set lock_timeout = '5s'")
    publish(admin, "ha", 7)
    assert take(admin, "s", way=way) == [7]
    changing.rollback()
    publish(admin, "hb", 2)
    assert take(admin, "s", way=way) == [1, 2]


def test_a_transaction_that_makes_nothing_costs_a_note_until_it_is_over(
    admin: psycopg.Connection, two: tuple[psycopg.Connection, psycopg.Connection], way: str
) -> None:
    subscriber, maker = two
    make_type(maker, "other")
    call(subscriber, "subscribe", "s", "h*")
    subscriber.commit()
    publish(admin, "ha", 1)
    assert take(admin, "s", way=way) == [1]
    assert value(admin, _NOTES) == 1
    maker.rollback()
    publish(admin, "ha", 2)
    assert take(admin, "s", way=way) == [2]
    assert value(admin, _NOTES) == 0
