"""A clock without a partition key goes on where it was, whatever a step brings, and begins anew where it is reset."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_clients import Client
from tests.fix_clock import Clock
from tests.fix_db import Connect

DAY = "2026-03-01 "
SEGMENT = 262_144


@pytest.fixture
def broker(connect: Connect, own_database: str, clock: Clock) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    clock.set(DAY + "05:00:30+00")
    call(connection, "configure", "broker", "here")
    for name in "ab":
        make_type(connection, name, "n integer, at timestamptz")
        call(connection, "alter_event_type", name, time_attribute="at")
    return connection


def publish(connection: psycopg.Connection, kind: str, n: int, at: str = "00:00") -> None:
    rows(connection, f"insert into pgps_event.{kind} values (%s, %s)", [n, f"{DAY}{at}+00"])


def dispatch(connection: psycopg.Connection) -> None:
    """Dispatch, and detect; what the first call detects is in the queue after the second."""
    for _ in range(2):
        rows(connection, "select pgps.dispatch()")


def tell(clock: Clock, connection: psycopg.Connection, *times: str) -> None:
    """Let time pass, and what is due at each of these times happen."""
    for time in times:
        clock.set(f"{DAY}{time}+00")
        dispatch(connection)


def found(connection: psycopg.Connection, name: str = "it") -> list[list[Any]]:
    """Return what was detected: numbers of events, and hours and minutes of ticks."""
    query = f"select constituents from pgps_queue.{name}_in order by event_id"
    return [
        [part["payload"]["n"] if "payload" in part else part["tick"][11:16] for part in one]
        for one in column(connection, query)
    ]


def create(connection: psycopg.Connection, name: str, expression: str, **options: Any) -> None:
    call(connection, "create_composite_event", name, expression, auditable=True, **options)


def test_events_that_no_leaf_takes_leave_what_is_open(
    broker: psycopg.Connection, connect: Connect, own_database: str, clock: Clock
) -> None:
    desk = Client(connect(dsn=own_database), "desk")
    call(broker, "create_source", "desk", "here", "desk")
    create(broker, "it", "a@desk x ; every('1 hour')", filter="x.n > 3")
    create(broker, "each", "a@desk x or every('1 hour')", filter="x.n > 3")
    tell(clock, broker, "06:00:01", "07:00:01", "07:30")
    publish(desk.connection, "a", 9)
    tell(clock, broker, "07:35")
    publish(broker, "a", 8)
    tell(clock, broker, "07:40", "08:00:01")
    assert found(broker) == [[9, "08:00"]]
    assert found(broker, "each") == [["06:00"], ["07:00"], [9], ["08:00"]]


def test_a_silent_source_leaves_what_is_open_by_the_events_times(
    broker: psycopg.Connection, connect: Connect, own_database: str, clock: Clock
) -> None:
    create(broker, "it", "a ; every('1 hour')", time_basis="event")
    tell(clock, broker, "05:10")
    publish(broker, "a", 1, "10:30")
    dispatch(broker)
    # The step that says so is another session's.
    other = connect(dsn=own_database)
    tell(clock, other, "05:30")
    publish(other, "a", 2, "11:30")
    dispatch(other)
    assert found(broker) == [[1, "11:00"]]


def test_steps_that_end_before_a_tick_leave_it_to_come_once(
    broker: psycopg.Connection, connect: Connect, own_database: str, clock: Clock
) -> None:
    create(broker, "it", "P(a, '10 ms', b) or every('1 hour')")
    tell(clock, broker, "06:00:01", "07:00:01")
    tell(clock, connect(dsn=own_database), "08:00:01")
    assert found(broker) == [["06:00"], ["07:00"], ["08:00"]]
    assert value(broker, "select count(*) > 15 from pgps_internal.composite_step")


@pytest.mark.parametrize("with_filter", [False, True])
def test_ticks_before_a_reset_do_not_come_again(broker: psycopg.Connection, clock: Clock, with_filter: bool) -> None:
    more = {"filter": "x.n > 0"} if with_filter else {}
    create(broker, "it", "a x or every('1 hour')", **more)
    create(broker, "pair", "every('1 hour') ; a x", **more)
    tell(clock, broker, "06:00:01", "07:00:01", "07:30")
    counts = "select name, open, keys, detected from pgps.composite_events order by 1"
    assert rows(broker, counts) == [("it", 0, 1, 2), ("pair", 1, 1, 0)]
    assert call(broker, "reset_composite_event", "it") == 0
    assert call(broker, "reset_composite_event", "pair") == 1
    assert rows(broker, counts) == [("it", 0, 1, 2), ("pair", 0, 1, 0)]
    publish(broker, "a", 1)
    tell(clock, broker, "07:35")
    assert found(broker, "pair") == []
    tell(clock, broker, "08:00:01")
    publish(broker, "a", 2)
    tell(clock, broker, "08:10")
    assert found(broker, "pair") == [["08:00", 2]]
    assert found(broker) == [["06:00"], ["07:00"], [1], ["08:00"], [2]]
    assert rows(broker, counts) == [("it", 0, 1, 5), ("pair", 1, 1, 1)]


def test_a_reset_clock_ticks_though_its_older_rows_are_gone(broker: psycopg.Connection, clock: Clock) -> None:
    create(broker, "it", "every('1 hour')")
    tell(clock, broker, "06:00:01")
    call(broker, "reset_composite_event", "it")
    for number in range(1, 6):
        rows(broker, "select setval('pgps_internal.composite_row_seq', %s)", [number * SEGMENT])
        rows(broker, "select pgps.reclaim()")
    assert value(broker, "select min(row_id) > 262144 from pgps_internal.composite_key")
    tell(clock, broker, "07:00:01")
    assert found(broker) == [["06:00"], ["07:00"]]


def test_a_clock_that_is_reset_before_its_first_step_ticks(broker: psycopg.Connection, clock: Clock) -> None:
    create(broker, "it", "every('1 hour')")
    call(broker, "reset_composite_event", "it")
    tell(clock, broker, "06:00:01")
    assert found(broker) == [["06:00"]]


def test_what_was_reset_by_a_former_release_begins_where_it_was(broker: psycopg.Connection, clock: Clock) -> None:
    create(broker, "it", "every('1 hour')")
    tell(clock, broker, "06:00:01", "07:00:01", "07:30")
    rows(
        broker,
        """with key as (insert into pgps_internal.composite_key (state_id, key, born, version, serial, clock, live)
            select k.state_id, k.key, 0, 0, 0, 0, '{}' from pgps_internal.key_now k)
        insert into pgps_internal.composite_step (composite_id, share, state_id, batch_id, ordering, open, keys,
            detected, late, given_up, stepped_at)
        select s.composite_id, s.share, s.state_id, s.batch_id, s.ordering, 0, 0, s.detected, 0, 0, s.stepped_at
        from pgps_internal.step_now s""",
    )
    tell(clock, broker, "08:00:01")
    assert found(broker) == [["06:00"], ["07:00"], ["08:00"]]


@pytest.mark.parametrize("time_basis", ["arrival", "event"])
def test_the_clock_of_a_history_from_the_earliest_event_on_ticks_from_there(
    broker: psycopg.Connection, clock: Clock, time_basis: str
) -> None:
    call(broker, "subscribe", "keeps", "a")
    options = {"time_basis": time_basis, "lateness": "10 minutes" if time_basis == "event" else "0"}
    # By the events' times the earliest one is the last to come.
    for n, at in ((1, "05:50"), (2, "06:30")) if time_basis == "arrival" else ((2, "06:30"), (1, "06:20")):
        clock.set(f"{DAY}{at}+00")
        publish(broker, "a", n, at)
        dispatch(broker)
    clock.set(DAY + "07:30:30+00")
    create(broker, "it", "a ; every('1 hour')", start="earliest", **options)
    create(broker, "later", "a ; every('1 hour')", **options)
    tell(clock, broker, "08:10")
    publish(broker, "a", 3, "08:20")
    tell(clock, broker, "09:20")
    publish(broker, "a", 4, "09:20")
    tell(clock, broker, "09:50")
    wanted = [[2, "07:00"], [2, "08:00"], [3, "09:00"]]
    assert found(broker) == ([[1, "06:00"], *wanted] if time_basis == "arrival" else wanted)
    assert found(broker, "later") == [[3, "09:00"]]
    tried = column(
        broker,
        "select pgps.try_composite_event('a ; every(''1 hour'')', time_basis => %(time_basis)s,"
        " lateness => %(lateness)s::interval)",
        options,
    )
    assert [one["constituents"][-1]["tick"][11:16] for one in tried] == [tick for _, tick in found(broker)]
