"""Callbacks, and what becomes of their subscription meanwhile: each event is run, and what was committed not again."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, meanwhile, publish, rows, value
from tests.fix_db import Connect
from tests.sql.match.lane_steps import make_filter

WAITS = "perform pg_advisory_xact_lock_shared(7); "


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    rows(connection, "create table public.got (n integer)")
    make_type(connection, "tick")
    return connection


def note(broker: psycopg.Connection, body: str = "", name: str = "tick") -> None:
    """Make a callback anew that keeps attribute n."""
    rows(
        broker,
        f"create or replace function public.note(e pgps_event.{name}) returns void language plpgsql as "
        f"$$ begin {body} insert into public.got values (e.n); end $$",
    )


def dispatch(broker: psycopg.Connection) -> None:
    rows(broker, "select pgps.dispatch()")


def run(session: psycopg.Connection) -> None:
    rows(session, "call pgps.run_subscribers()")


def got(broker: psycopg.Connection) -> list[int]:
    return column(broker, "select n from public.got order by n")


def suspend_meanwhile(broker: psycopg.Connection, runner: psycopg.Connection, number: int) -> None:
    """Publish, while callbacks run, an event for which the subscription is suspended."""
    rows(broker, "select pg_advisory_lock(7)")
    with meanwhile(broker, runner, lambda: run(runner)):
        try:
            publish(broker, "tick", number)
            dispatch(broker)
        finally:
            rows(broker, "select pg_advisory_unlock(7)")


def test_what_is_being_retried_survives_a_callback_that_is_missing_for_a_while(broker: psycopg.Connection) -> None:
    note(broker, "raise exception 'not now';")
    call(broker, "subscribe", "s", "tick", execute="public.note")
    publish(broker, "tick", 1, 2, 3)
    dispatch(broker)
    run(broker)
    rows(broker, "drop function public.note(pgps_event.tick)")
    run(broker)
    assert value(broker, "select state from pgps.subscriptions") == "suspended"
    note(broker)
    call(broker, "resume", "s")
    run(broker)
    run(broker)
    assert got(broker) == [1, 2, 3]


def test_what_was_run_before_the_callback_was_found_missing_is_not_run_again(broker: psycopg.Connection) -> None:
    note(broker)
    call(broker, "subscribe", "s", "t*", execute="public.note")
    make_type(broker, "tock")
    publish(broker, "tick", 1, 2)
    publish(broker, "tock", 3)
    dispatch(broker)
    run(broker)
    assert value(broker, "select state from pgps.subscriptions") == "suspended"
    note(broker, name="tock")
    call(broker, "resume", "s")
    run(broker)
    assert got(broker) == [1, 2, 3]


@pytest.mark.parametrize(
    ("expression", "number"), [("public.good(n)", 9), ("10 / n > 0", 0)], ids=["lane", "dispatcher"]
)
def test_what_was_run_while_the_filter_suspended_the_subscription_is_not_run_again(
    broker: psycopg.Connection, own_database: str, connect: Connect, expression: str, number: int
) -> None:
    runner = connect(dsn=own_database)
    make_filter(broker, "if n = 9 then raise undefined_table; end if")
    note(broker, WAITS)
    call(broker, "configure", "filter_failures", "1")
    call(broker, "subscribe", "s", "tick", expression, execute="public.note")
    publish(broker, "tick", 1, 2)
    dispatch(broker)
    suspend_meanwhile(broker, runner, number)
    assert got(broker) == [1, 2]
    if value(broker, "select state from pgps.subscriptions") == "suspended":
        call(broker, "alter_subscription", "s", filter="n > 0 and n < 9")
    dispatch(broker)
    run(broker)
    assert got(broker) == [1, 2]


def test_what_is_being_retried_survives_a_filter_that_suspends_the_subscription_meanwhile(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    runner = connect(dsn=own_database)
    make_filter(broker, "if n = 9 then raise undefined_table; end if")
    note(broker, "raise exception 'not now';")
    call(broker, "subscribe", "s", "tick", "public.good(n)", execute="public.note")
    publish(broker, "tick", 1, 2, 3)
    dispatch(broker)
    run(broker)
    note(broker, WAITS + "if e.n = 1 then raise exception 'not now'; end if;")
    suspend_meanwhile(broker, runner, 9)
    make_filter(broker)
    note(broker)
    call(broker, "resume", "s")
    run(broker)
    run(broker)
    assert [n for n in got(broker) if n < 9] == [1, 2, 3]


def test_a_callback_may_move_its_own_subscription(broker: psycopg.Connection) -> None:
    again = (
        "if e.n = 2 and not exists (select from public.got where n = 2) "
        "then perform pgps.seek('s', 'earliest'); end if;"
    )
    note(broker, again)
    call(broker, "subscribe", "s", "tick", execute="public.note")
    for number in (1, 2):
        publish(broker, "tick", number)
        dispatch(broker)
        run(broker)
    dispatch(broker)
    run(broker)
    assert column(broker, "select n from public.got") == [1, 2, 1, 2]
