"""Filters that sleep, swallow their cancellation or kill their session, in a dispatch by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, rows
from tests.fix_db import Connect, lock_waiters, wait_until
from tests.sql.match.lane_steps import make_filter, run_lanes, take_only

Role = Callable[..., str]


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    """Types pa and pb, and a function that no filter may call in the dispatcher."""
    connection = connect(dsn=own_database)
    make_type(connection, "pa")
    make_type(connection, "pb")
    make_filter(connection)
    return connection


def slow_by_hand(broker: psycopg.Connection) -> None:
    """Have a dispatch by hand wait for a role's filters for a moment only; longer than that ends the test."""
    call(broker, "configure", "dispatch_lane_timeout", "200 milliseconds")
    rows(broker, "set statement_timeout = '5min'")


def stranger(broker: psycopg.Connection, role: Role, body: str) -> str:
    """Let another role subscribe to pa with a filter of its own making; return the role."""
    owner = role("stranger")
    rows(broker, f"grant select on pgps_event.pa to {owner}; create schema {owner} authorization {owner}")
    rows(broker, f"set role {owner}")
    rows(
        broker,
        f"create function {owner}.odd(n integer) returns boolean language plpgsql as $$ begin {body}; return true; "
        "end $$",
    )
    call(broker, "subscribe", "odd", "pa", f"{owner}.odd(n)")
    rows(broker, "reset role")
    return owner


def test_a_sleeping_filter_holds_up_a_dispatch_by_hand_for_a_moment_and_once(
    broker: psycopg.Connection, role: Role
) -> None:
    slow_by_hand(broker)
    owner = stranger(broker, role, "perform pg_sleep(3600)")
    call(broker, "subscribe", "quick", "pa", "n > 0")
    publish(broker, "pa", 1, 2)
    rows(broker, "select pgps.dispatch()")
    assert take_only(broker, "quick") == [1, 2]
    publish(broker, "pa", 3)
    rows(broker, "select pgps.dispatch()")
    assert take_only(broker, "quick") == [3]
    state = "select state, position('takes longer than' in last_error) > 0 from pgps.subscriptions where name = %s"
    assert rows(broker, state, ["odd"]) == [("slow", True)]
    assert rows(broker, state, ["quick"]) == [("active", None)]
    assert rows(broker, "select state, lag_events from pgps.lanes where role = %s", [owner]) == [("slow", 3)]
    rows(
        broker,
        f"create or replace function {owner}.odd(n integer) returns boolean language sql as 'select true'",
    )
    run_lanes(broker)
    assert take_only(broker, "odd") == [1, 2, 3], "late, and complete"
    assert rows(broker, state, ["odd"]) == [("active", None)]


def test_a_filter_that_swallows_its_cancellation_is_asked_by_hand_no_more(
    broker: psycopg.Connection, role: Role
) -> None:
    slow_by_hand(broker)
    stranger(broker, role, "begin perform pg_sleep(3600); exception when query_canceled then null; end")
    publish(broker, "pa", 1)
    rows(broker, "select pgps.dispatch()")
    assert column(broker, "select state from pgps.lanes") == ["slow"]
    assert take_only(broker, "odd") == [1]
    publish(broker, "pa", 2)
    rows(broker, "select pgps.dispatch()")
    assert take_only(broker, "odd") == []


def kill_in_lane(broker: psycopg.Connection, victim: psycopg.Connection) -> None:
    """End a session that dispatches while it waits in the filter of a lane."""

    def dispatch() -> None:
        with pytest.raises(psycopg.errors.AdminShutdown):
            rows(victim, "select pgps.dispatch()")

    rows(broker, "select pg_advisory_lock(5)")
    thread = threading.Thread(target=dispatch)
    thread.start()
    wait_until(lambda: lock_waiters(broker, 5))
    rows(broker, "select pg_terminate_backend(%s)", [victim.info.backend_pid])
    thread.join()
    rows(broker, "select pg_advisory_unlock(5)")


def test_a_lane_that_a_session_was_killed_in_twice_is_left_alone_by_the_next_dispatch(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    make_filter(broker, "perform pg_advisory_xact_lock_shared(5)")
    call(broker, "configure", "dispatch_lane_timeout", "1 hour")
    call(broker, "subscribe", "lane", "pa", "public.good(n)")
    publish(broker, "pa", 1)
    kill_in_lane(broker, connect(dsn=own_database))
    rows(broker, "select pgps.dispatch()")
    assert take_only(broker, "lane") == [1], "once may be anybody's fault"
    publish(broker, "pa", 2)
    kill_in_lane(broker, connect(dsn=own_database))
    kill_in_lane(broker, connect(dsn=own_database))
    rows(broker, "select pgps.dispatch()")
    assert take_only(broker, "lane") == []
    assert column(broker, "select state from pgps.subscriptions") == ["slow"]
    run_lanes(broker)
    assert take_only(broker, "lane") == [2]


def test_who_cancels_a_dispatch_by_hand_cancels_it(broker: psycopg.Connection) -> None:
    make_filter(broker, "perform pg_cancel_backend(pg_backend_pid()); perform pg_sleep(3600)")
    call(broker, "configure", "dispatch_lane_timeout", "1 hour")
    call(broker, "subscribe", "lane", "pa", "public.good(n)")
    publish(broker, "pa", 1)
    with pytest.raises(psycopg.errors.QueryCanceled):
        rows(broker, "select pgps.dispatch()")
    make_filter(broker)
    rows(broker, "select pgps.dispatch()")
    assert take_only(broker, "lane") == [1]
    assert column(broker, "select state from pgps.lanes") == ["idle"]
