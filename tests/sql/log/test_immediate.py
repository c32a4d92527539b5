"""Immediate events where they would wait: for their own publisher, for others, for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, make_type, meanwhile, numbers, publish, refused, rows, value
from tests.fix_db import Connect, wait_until

Name = Callable[..., str]

LOOPBACK = """
select a.pid from pg_stat_activity a
where a.application_name = 'pgps-loopback' and a.datname = current_database() and a.backend_start > %s
"""


@pytest.fixture
def alarm(admin: psycopg.Connection, name: Name) -> str:
    """An immediate event type, and a subscription of its name with "_s" behind it."""
    made = name("alarm")
    make_type(admin, made, visibility="immediate")
    call(admin, "subscribe", made + "_s", made)
    return made


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    """An event type of which single events are published at once."""
    made = name("tick")
    make_type(admin, made)
    return made


def at_once(connection: psycopg.Connection, event_type: str, number: int) -> None:
    call(connection, "publish", event_type, f'{{"n": {number}}}', visibility="immediate")


def arrived(admin: psycopg.Connection, alarm: str) -> list[int]:
    rows(admin, "select pgps.dispatch()")
    return numbers(admin, alarm + "_s")


def test_a_publisher_that_has_locked_its_type_is_told_at_once(
    connect: Connect, admin: psycopg.Connection, tick: str
) -> None:
    publisher = connect(autocommit=False)
    for number in (1, 2):
        rows(publisher, f"lock table {endpoint(tick)} in access exclusive mode")
        with refused("55P03", "its own transaction holds", "publish it before"):
            at_once(publisher, tick, -number)
        publisher.rollback()
        at_once(publisher, tick, number)
        publisher.rollback()
    assert column(admin, f"select n from pgps_queue.{tick}_in order by n") == [1, 2]


def test_a_publisher_that_has_altered_its_type_is_told_at_once(
    connect: Connect, admin: psycopg.Connection, alarm: str
) -> None:
    publisher = connect(autocommit=False)
    call(publisher, "alter_event_type", alarm, add_attribute="word text")
    with refused("55P03", "its own transaction holds"):
        publish(publisher, alarm, 1)
    publisher.rollback()
    publish(publisher, alarm, 2)
    publisher.commit()
    assert arrived(admin, alarm) == [2]


def test_a_row_that_its_own_transaction_has_written_is_not_waited_for(
    connect: Connect, admin: psycopg.Connection, tick: str
) -> None:
    rows(admin, "create table if not exists public.held (n integer primary key)")
    rows(
        admin,
        "create or replace function public.hold(n integer) returns integer language sql as "
        "$$ insert into public.held values (n) on conflict do nothing; select n $$",
    )
    call(admin, "alter_event_type", tick, add_attribute="m integer default public.hold(1)")
    publisher = connect(autocommit=False)
    rows(publisher, "insert into public.held values (1)")
    with refused("55P03", "its own transaction holds"):
        at_once(publisher, tick, 1)
    publisher.rollback()
    at_once(publisher, tick, 1)
    publisher.commit()
    rows(admin, "drop table public.held")


def test_who_waits_for_each_other_by_way_of_an_immediate_event_is_found_out(
    connect: Connect, admin: psycopg.Connection, tick: str
) -> None:
    publisher, other = connect(autocommit=False), connect(autocommit=False)
    rows(admin, "create table if not exists public.mine (n integer)")
    rows(publisher, "lock table public.mine in access exclusive mode")
    rows(other, f"lock table {endpoint(tick)} in access exclusive mode")
    with meanwhile(admin, other, lambda: rows(other, "lock table public.mine in access exclusive mode")):
        try:
            with refused("40P01", str(other.info.backend_pid)):
                at_once(publisher, tick, 1)
        finally:
            publisher.rollback()
    other.rollback()
    rows(admin, "drop table public.mine")
    at_once(publisher, tick, 2)
    publisher.rollback()
    assert column(admin, f"select n from pgps_queue.{tick}_in") == [2]


@pytest.mark.parametrize(
    ("limit", "sqlstate"), [("statement_timeout = '1500ms'", "57014"), ("lock_timeout = '300ms'", "55P03")]
)
def test_the_publishers_time_limits_hold(
    connect: Connect, admin: psycopg.Connection, tick: str, limit: str, sqlstate: str
) -> None:
    publisher, other = connect(), connect(autocommit=False)
    rows(other, f"lock table {endpoint(tick)} in access exclusive mode")
    try:
        rows(publisher, f"set {limit}")
        with pytest.raises(psycopg.Error) as caught:
            at_once(publisher, tick, 1)
        assert caught.value.sqlstate == sqlstate
    finally:
        other.rollback()
    rows(publisher, "reset all")
    at_once(publisher, tick, 2)
    assert column(admin, f"select n from pgps_queue.{tick}_in") == [2]


def test_who_waits_for_another_session_goes_on_when_it_ends(
    connect: Connect, admin: psycopg.Connection, tick: str
) -> None:
    publisher, other = connect(), connect(autocommit=False)
    rows(other, f"lock table {endpoint(tick)} in access exclusive mode")
    thread = threading.Thread(target=at_once, args=(publisher, tick, 1))
    thread.start()
    sleeps = "select wait_event = 'PgSleep' from pg_stat_activity where pid = %s"
    try:
        wait_until(
            lambda: value(admin, sleeps, [publisher.info.backend_pid]), what="it waits where it can be cancelled"
        )
    finally:
        other.rollback()
        thread.join()
    assert column(admin, f"select n from pgps_queue.{tick}_in") == [1]


def test_a_check_that_never_ends_is_cancelled_with_its_publisher(
    connect: Connect, admin: psycopg.Connection, name: Name
) -> None:
    made = name("slow")
    make_type(admin, made, "n integer, m text default pg_sleep(600)::text")
    publisher = connect()
    rows(publisher, "set statement_timeout = '2s'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        call(publisher, "publish", made, '{"n": 1}', visibility="immediate")
    left = "select count(*) from pg_stat_activity where query like %s and state = 'active' and pid <> pg_backend_pid()"
    wait_until(lambda: value(admin, left, [f"%{made}%publish_as%"]) == 0, what="it has ended over there, too")


def test_a_loopback_connection_that_was_killed_is_made_anew(
    connect: Connect, admin: psycopg.Connection, alarm: str
) -> None:
    began = value(admin, "select clock_timestamp()")
    publisher = connect()
    publish(publisher, alarm, 1)
    pid = value(admin, LOOPBACK, [began])
    rows(admin, "select pg_terminate_backend(%s)", [pid])
    wait_until(lambda: not rows(admin, LOOPBACK, [began]))
    # The server forgets a session a moment before its process ends, and closes its connection with that.
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    publish(publisher, alarm, 2)
    assert arrived(admin, alarm) == [1, 2]


def test_an_error_over_there_is_the_publishers_and_the_next_one_goes_through(
    connect: Connect, admin: psycopg.Connection, name: Name
) -> None:
    made = name("checked")
    make_type(admin, made, "n integer, m integer check (m > 0)")
    publisher = connect()
    with pytest.raises(psycopg.errors.CheckViolation):
        call(publisher, "publish", made, '{"n": 1, "m": 0}', visibility="immediate")
    assert call(publisher, "publish", made, '{"n": 1, "m": 2}', visibility="immediate") > 0


def test_the_transaction_of_an_immediate_event_is_its_publishers(
    connect: Connect, admin: psycopg.Connection, alarm: str
) -> None:
    publisher = connect(autocommit=False)
    publish(publisher, alarm, 1)
    call(publisher, "publish", alarm, '{"n": 2}')
    xid = value(publisher, "select pg_current_xact_id()::text")
    publisher.rollback()
    rows(admin, "select pgps.dispatch()")
    assert value(admin, f"select array_agg(xid::text) from pgps_queue.{alarm}_in") == [xid, xid]
    received = f"select array_agg(pgps_xid::text) from pgps_queue.{alarm}_receive(array[%s])"
    assert value(admin, received, [alarm + "_s"]) == [xid, xid]
    assert value(admin, "select array_agg(xid::text) from pgps.receive(%s)", [alarm + "_s"]) == [xid, xid]
