"""Whatever one role defines, detection goes on for the others: slow conditions, many ticks, open transactions."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect, wait_until

STATES = "select name, state, last_error from pgps.composite_events order by 1"


@pytest.fixture
def broker(connect: Connect, own_database: str, clock: Clock) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    clock.set(value(connection, "select pgps._clock()"))
    for kind in "ab":
        make_type(connection, kind, "k integer")
    call(connection, "create_composite_event", "good", "a ; b")
    return connection


def publish(connection: psycopg.Connection, *kinds: str) -> None:
    for kind in kinds:
        rows(connection, f"insert into pgps_event.{kind} (k) values (1)")
    rows(connection, "select pgps.dispatch()")


def detected(connection: psycopg.Connection, name: str) -> int:
    return int(value(connection, "select detected from pgps.composite_events where name = %s", [name]))


def test_a_filter_or_attributes_without_end_suspend_their_own_composite_event(broker: psycopg.Connection) -> None:
    call(broker, "configure", "dispatch_lane_timeout", "200 milliseconds")
    # Longer than anybody waits: without the limit this test does not end.
    call(broker, "create_composite_event", "filter", "a x", filter="pg_sleep(1000 * x.k) is not null")
    call(broker, "create_composite_event", "made", "a x", attributes="p text = pg_sleep(1000 * x.k)::text")
    publish(broker, "a", "b")
    assert detected(broker, "good") == 1
    found = {name: (state, error) for name, state, error in rows(broker, STATES)}
    assert found["good"] == ("active", None)
    assert found["filter"][0] == "suspended"
    assert "takes too long" in found["filter"][1]
    assert found["made"] == ("suspended", "the attributes take too long")
    publish(broker, "a", "b")
    assert detected(broker, "good") == 2
    # What it has not taken, it takes when it goes on.
    call(broker, "configure", "dispatch_lane_timeout", "1 minute")
    call(broker, "alter_composite_event", "filter", filter="x.k = 1")
    call(broker, "alter_composite_event", "filter", enabled=True)
    publish(broker)
    assert detected(broker, "filter") == 2


def test_what_another_session_alters_and_does_not_commit_waits_alone(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    other = connect(dsn=own_database)
    for number, change in enumerate(
        (
            "alter_composite_event('mine', enabled => true)",
            "alter_composite_event('mine', max_open => 7)",
            "reset_composite_event('mine')",
            "drop_event_type('mine', true)",
        ),
        1,
    ):
        if number == 1:
            call(broker, "create_composite_event", "mine", "a ; b")
        rows(other, "begin")
        rows(other, f"select pgps.{change}")
        rows(broker, "set statement_timeout = '30 s'")
        publish(broker, "a", "b")
        assert detected(broker, "good") == number
        rows(other, "rollback")
        publish(broker)
        assert detected(broker, "mine") == number
        publish(broker)  # nothing of it waits any more: a type that is being dropped keeps its own events


def test_ticks_of_a_long_past_come_in_steps(broker: psycopg.Connection, clock: Clock) -> None:
    call(broker, "create_composite_event", "tick", "every('10 ms')")
    clock.set(value(broker, "select pgps._clock()") + timedelta(seconds=450))

    def all_detected() -> bool:
        publish(broker)  # a dispatch ends after some seconds, and the next goes on
        return detected(broker, "tick") >= 450 * 100 - 1

    wait_until(all_detected)
    assert detected(broker, "tick") <= 450 * 100 + 1
    assert len(column(broker, "select row_id from pgps_internal.composite_step where detected > 0")) >= 3


def test_many_ticks_heed_a_cancellation(broker: psycopg.Connection, clock: Clock) -> None:
    call(broker, "configure", "tick_interval", "0 seconds")
    call(broker, "create_composite_event", "tick", "every('0.000001 s') ; a")
    publish(broker, "a")
    clock.set(value(broker, "select pgps._clock()") + timedelta(hours=1))
    rows(broker, "insert into pgps_event.a (k) values (1)")
    rows(broker, "set statement_timeout = '1 s'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        rows(broker, "select pgps.dispatch()")


@pytest.mark.parametrize("expression", ["every('5 s')", "a or at('{at}')", "at('{at}')", "cron('* * * * *')"])
def test_a_clock_ticks_though_a_step_came_before_its_first_tick(
    broker: psycopg.Connection, clock: Clock, expression: str
) -> None:
    now = value(broker, "select pgps._clock()").replace(second=1, microsecond=0) + timedelta(minutes=1)
    clock.set(now)
    text = expression.format(at=(now + timedelta(seconds=6)).isoformat())
    call(broker, "create_composite_event", "tick", text)
    clock.set(now + timedelta(milliseconds=1))
    publish(broker)
    clock.set(now + timedelta(seconds=61))
    publish(broker)
    assert detected(broker, "tick") == {"e": 12, "a": 1, "c": 1}[expression[0]]
