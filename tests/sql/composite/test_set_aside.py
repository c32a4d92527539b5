"""Composite events of an event type that is set aside: they wait for what it has, and then take it in its place."""

from __future__ import annotations

from datetime import datetime, timedelta

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect

STEPS = "select count(*) from pgps_internal.composite_step"


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    for kind in ("reading", "insulin"):
        make_type(connection, kind, "k integer")
    return connection


@pytest.fixture
def ten(broker: psycopg.Connection, clock: Clock) -> datetime:
    at: datetime = value(broker, "select pgps._clock()").replace(minute=0, second=0, microsecond=0)
    at += timedelta(days=1)
    clock.set(at)
    return at


def publish(connection: psycopg.Connection, kind: str, *keys: int) -> None:
    rows(connection, f"insert into pgps_event.{kind} select unnest(%s::integer[])", [list(keys)])


def dispatch(connection: psycopg.Connection) -> None:
    for _ in range(3):
        rows(connection, "select pgps.dispatch()")


def break_it(connection: psycopg.Connection, kind: str = "insulin") -> None:
    """Let something generated be gone that dispatch needs, and publishers do not."""
    type_id = value(connection, "select type_id from pgps_internal.event_type where name = %s", [kind])
    rows(connection, f"drop function pgps_internal.part_ids_{type_id}(xid8[], int8multirange) cascade")


def mend_it(connection: psycopg.Connection, kind: str = "insulin") -> None:
    call(connection, "resume_event_type", kind)
    dispatch(connection)


def keys(connection: psycopg.Connection, name: str) -> list[int]:
    """Return the key of the first constituent of each detection, in order."""
    query = f"""
        select (constituents -> 0 -> 'payload' ->> 'k')::integer from pgps_internal.{name}_log order by event_id"""
    return column(connection, query)


@pytest.mark.parametrize("traffic", [False, True])
def test_no_absence_is_detected_of_what_waits(
    broker: psycopg.Connection, clock: Clock, ten: datetime, traffic: bool
) -> None:
    """Neither by the clock, nor by events that come meanwhile and have later times."""
    call(broker, "create_composite_event", "untreated", "not(insulin)[reading, + '30 min']", partition_by="k")
    publish(broker, "reading", 1, 2)
    dispatch(broker)
    break_it(broker)
    for minutes, kind, who in ((20, "insulin", 1), (25, "reading", 3), (41, "reading", 4), (42, "insulin", 3)):
        clock.set(ten + timedelta(minutes=minutes))
        if traffic or who == 1:
            publish(broker, kind, who)
        dispatch(broker)
    steps = value(broker, STEPS)
    dispatch(broker)
    assert (keys(broker, "untreated"), value(broker, STEPS)) == ([], steps)
    (why,) = column(broker, "select last_error from pgps.composite_events")
    assert why == "it waits: an event type that it reads is set aside (pgps.event_types)"
    # A worker does not wake up for it all the time.
    assert value(broker, "select pgps.next_timer()") is None
    clock.set(ten + timedelta(minutes=50))
    mend_it(broker)
    assert keys(broker, "untreated") == [2]
    clock.set(ten + timedelta(minutes=72))
    dispatch(broker)
    assert keys(broker, "untreated") == ([2, 4] if traffic else [2])
    assert rows(broker, "select lag, last_error from pgps.composite_events") == [(0, None)]


@pytest.mark.parametrize("most", [1, 3, 20_000])
def test_what_was_set_aside_is_taken_in_its_place_and_once(
    broker: psycopg.Connection, ten: datetime, most: int
) -> None:
    """However many steps it takes."""
    options = {"partition_by": "k", "context": "chronicle", "max_open": 100}
    for name, expression in (
        ("pair", "insulin ; reading"), ("walked", "(insulin or insulin) ; reading"), ("back", "reading ; insulin"),
    ):  # fmt: skip
        call(broker, "create_composite_event", name, expression, **options)
    call(broker, "subscribe", "both", "insulin")
    call(broker, "create_composite_event", "other", "reading")
    publish(broker, "insulin", 0)
    publish(broker, "reading", 2)
    rows(broker, "select pgps.dispatch_batch()")
    break_it(broker)
    for number in range(3):
        for kind in ("insulin", "reading"):
            publish(broker, kind, 1)
            # At first nothing is detected: one step takes more of one composite event than of the others.
            rows(broker, "select pgps.dispatch_batch()")
        if number > 0:
            dispatch(broker)
    assert keys(broker, "other") == [2, 1, 1, 1]
    late = (
        "select pgps_internal.came_late(array_agg(composite_id), array_agg(0::bigint), array_agg(1000::bigint))"
        " from pgps_internal.composite"
    )
    assert value(broker, late) is None  # none of it has come
    # What the type of this one has waits, too: it stands still with the others.
    call(broker, "create_composite_event", "later", "insulin ; reading", **options)
    call(broker, "resume_event_type", "insulin")
    while value(broker, "select pgps.dispatch_batch()") > 0:
        pass
    step = (
        "select more from pgps_internal.detect_due((pgps_internal.last_batch()).batch_id, pgps_internal.clock(), %s,"
        " 0, 1, null, 0)"
    )
    before = value(broker, STEPS)
    while value(broker, step, [most]):
        pass
    assert (value(broker, STEPS) - before > 4) == (most < 20_000)
    dispatch(broker)
    # Each reading takes the insulin before it; the last reading is left.
    wanted = {"pair": [1, 1, 1], "walked": [1, 1, 1], "back": [1, 1], "later": []}
    assert {name: keys(broker, name) for name in wanted} == wanted
    publish(broker, "insulin", 1)
    dispatch(broker)
    publish(broker, "reading", 1)
    dispatch(broker)
    wanted = {"pair": [1] * 4, "walked": [1] * 4, "back": [1] * 3}
    assert {name: keys(broker, name) for name in wanted} == wanted
    times = "select count(*) from pgps_internal.pair_log where detected_at <> ends_at or starts_at > ends_at"
    assert value(broker, times) == 0
    assert rows(broker, "select name, lag, last_error from pgps.composite_events where lag <> 0") == []


def test_what_a_former_release_has_passed_is_taken_where_it_comes(broker: psycopg.Connection, ten: datetime) -> None:
    call(broker, "create_composite_event", "pair", "insulin ; reading", "chronicle", max_open=100)
    publish(broker, "reading", 0)
    dispatch(broker)
    break_it(broker)
    publish(broker, "insulin", 1)
    publish(broker, "reading", 2)
    dispatch(broker)
    # It went on without what was set aside.
    rows(
        broker,
        """insert into pgps_internal.composite_step (composite_id, share, state_id, batch_id, ordering, open, keys,
            detected, late, given_up, stepped_at)
        select s.composite_id, s.share, s.state_id, (pgps_internal.last_batch()).batch_id, s.ordering - 'in_place',
            s.open, s.keys, s.detected, s.late, s.given_up, s.stepped_at from pgps_internal.step_now s""",
    )
    mend_it(broker)
    assert keys(broker, "pair") == []
    publish(broker, "reading", 3)
    dispatch(broker)
    assert keys(broker, "pair") == [1]


def test_a_transaction_of_which_something_waits_ends_with_it(broker: psycopg.Connection, ten: datetime) -> None:
    call(broker, "create_composite_event", "alone", "not(insulin)[reading, commit]", "continuous", max_open=100)
    break_it(broker)
    for number in (1, 2):
        with broker.transaction():
            publish(broker, "reading", number)
            if number == 1:
                publish(broker, "insulin", number)
        dispatch(broker)
    assert keys(broker, "alone") == []
    mend_it(broker)
    assert keys(broker, "alone") == [2]


def test_events_of_their_own_times_are_not_late_for_it(broker: psycopg.Connection, clock: Clock, ten: datetime) -> None:
    for kind in ("early", "insulin_at"):
        make_type(broker, kind, "k integer, at timestamptz")
        call(broker, "alter_event_type", kind, time_attribute="at")
    call(broker, "create_composite_event", "pair", "insulin_at ; early", time_basis="event")
    insert = "insert into pgps_event.{} values (%s, %s)"
    for kind in ("early", "insulin_at"):
        rows(broker, insert.format(kind), [0, ten])
    dispatch(broker)
    break_it(broker, "insulin_at")
    rows(broker, insert.format("insulin_at"), [1, ten + timedelta(seconds=1)])
    dispatch(broker)
    for minutes in range(1, 40):
        clock.set(ten + timedelta(minutes=minutes))
        rows(broker, insert.format("early"), [minutes, ten + timedelta(minutes=minutes)])
        dispatch(broker)
    mend_it(broker, "insulin_at")
    clock.advance("1 hour")
    dispatch(broker)
    assert value(broker, "select count(*) from pgps.late_events") == 0
    assert keys(broker, "pair") == [1] * 39
