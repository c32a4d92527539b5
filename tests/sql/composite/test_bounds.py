"""Whatever one role defines, detection goes on for the others: slow conditions, many ticks, open transactions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, refused, rows, value
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


def test_what_pairs_each_with_each_is_bounded(broker: psycopg.Connection) -> None:
    # Half a million pairs, rows of up to a thousand events, half a million candidates: with some more of the same
    # batch it would be the memory of the server.
    everything: dict[str, Any] = {"context": "unrestricted", "max_open": 2**31 - 1}
    for name, expression, more in (
        ("pairs", "a ; b", {}),
        ("rows", "repeat(a, 1, 1000)", {}),
        ("asked", "a x ; b y", {"filter": "x.k > y.k"}),
    ):
        call(broker, "create_composite_event", name, expression, **everything, **more)
    for kind in "ab":
        rows(broker, f"insert into pgps_event.{kind} (k) select 1 from generate_series(1, 700)")
    publish(broker)
    found = {name: (state, error) for name, state, error in rows(broker, STATES)}
    assert found.pop("good") == ("active", None)
    assert detected(broker, "good") == 700
    for name, (state, error) in found.items():
        assert (name, state) == (name, "suspended")
        assert "the events of one batch make more than" in error, name
    with refused("54000", "the events of one batch make more than"):
        rows(broker, "select pgps.try_composite_event('a ; b', 'unrestricted', max_open => 10000)")


def test_what_one_batch_may_make_many_need_not_make_at_once(broker: psycopg.Connection) -> None:
    # The pairs are made, and wait for another event: writing them would take longer than making them.
    call(broker, "create_composite_event", "pairs", "(a ; b) ; a", context="unrestricted", max_open=1000)
    call(broker, "alter_composite_event", "pairs", enabled=False)
    rows(broker, "insert into pgps_event.a (k) select 1 from generate_series(1, 450)")
    publish(broker)
    for _ in range(2):
        rows(broker, "insert into pgps_event.b (k) select 1 from generate_series(1, 250)")
        publish(broker)
    call(broker, "alter_composite_event", "pairs", enabled=True)

    def taken() -> bool:
        publish(broker)  # a dispatch ends after some seconds, and the next goes on
        return bool(value(broker, "select lag = 0 from pgps.composite_events where name = 'pairs'"))

    wait_until(taken)
    # More than are open were given up.
    publish(broker, "a")
    assert detected(broker, "pairs") == 1000


def test_what_each_may_make_several_need_not_make_at_once(broker: psycopg.Connection) -> None:
    for name in ("one", "two"):
        call(broker, "create_composite_event", name, "(a ; b) ; a", context="unrestricted", max_open=1000)
    for kind in "ab":
        rows(broker, f"insert into pgps_event.{kind} (k) select 1 from generate_series(1, 330)")
    publish(broker)
    publish(broker, "a")
    assert [detected(broker, name) for name in ("one", "two")] == [1000, 1000]
    # Steps that are taken apart are written apart.
    apart = (
        "select count(distinct xmin::text) from pgps_internal.composite_step where given_up > 100000 and detected = 0"
    )
    assert value(broker, apart) == 2


def test_a_backlog_of_single_events_is_taken_in_steps(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "each", "a")
    call(broker, "alter_composite_event", "each", enabled=False)
    for _ in range(4):
        publish(broker, "a")
    call(broker, "alter_composite_event", "each", enabled=True)
    steps = rows(
        broker,
        "select d.upto < (pgps_internal.last_batch()).batch_id, d.is_last from pgps_internal.composites_due("
        "(pgps_internal.last_batch()).batch_id, pgps_internal.clock(), 2) d",
    )
    assert steps == [(True, False)]


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


def test_ticks_of_a_long_past_before_an_event_come_in_steps_too(broker: psycopg.Connection, clock: Clock) -> None:
    began = value(broker, "select pgps._clock()").replace(microsecond=5000)
    clock.set(began)
    call(broker, "create_composite_event", "tick", "P(a, '10 ms', b)", context="chronicle", auditable=True)
    publish(broker, "a")
    clock.set(began + timedelta(seconds=450))
    taken = value(broker, "select max(row_id) from pgps_internal.composite_step")
    rows(broker, "insert into pgps_event.b (k) values (1)")
    rows(broker, "insert into pgps_event.a (k) values (1)")
    clock.set(began + timedelta(seconds=450, milliseconds=15))

    def all_detected() -> bool:
        publish(broker)
        return detected(broker, "tick") >= 450 * 100

    wait_until(all_detected)
    seen = "select count(distinct detected_at), min(detected_at), max(detected_at) from pgps_queue.tick_in"
    # None at the time of the event that closes the window; one after the event that opens another.
    ticks = timedelta(milliseconds=10)
    last = began + timedelta(seconds=450) + ticks
    assert rows(broker, seen) == [(450 * 100, began + ticks, last)]
    steps = "select count(*) from pgps_internal.composite_step where row_id > %s and detected > 0"
    assert value(broker, steps, [taken]) >= 3


def test_ticks_between_the_events_of_one_batch_come_in_steps_and_nothing_of_it_counts_as_taken_before(
    broker: psycopg.Connection, clock: Clock
) -> None:
    began = value(broker, "select pgps._clock()").replace(microsecond=5000)
    clock.set(began)
    call(broker, "create_composite_event", "tick", "P(a, '10 ms', b)", context="chronicle", auditable=True)
    publish(broker, "b")
    for kind, after in (("a", 0.0), ("b", 450.0), ("a", 450.0), ("b", 900.0), ("a", 900.0)):
        clock.set(began + timedelta(seconds=after))
        rows(broker, f"insert into pgps_event.{kind} (k) values (1)")
    clock.set(began + timedelta(seconds=900, milliseconds=15))
    before = value(broker, "select (pgps_internal.last_batch()).batch_id")
    assert value(broker, "select pgps.dispatch_batch()") == 5
    step = (
        "select more from pgps_internal.detect_due((pgps_internal.last_batch()).batch_id, pgps_internal.clock(), 20000,"
        " 0, 1, null, 0)"
    )
    taken = (
        "select min(p.acked_batch) from pgps_internal.composite_leaf l join pgps_internal.composite c"
        " using (composite_id) join pgps_internal.event_type t on t.type_id = c.type_id"
        " cross join lateral (select max(p.acked_batch) as acked_batch from pgps_internal.position p"
        " where p.subscription_id = l.subscription_id) p where t.name = 'tick'"
    )
    steps = 1
    while value(broker, step):
        assert value(broker, taken) <= before
        steps += 1
    assert steps >= 5
    assert value(broker, taken) == before + 1
    publish(broker)
    seen = "select count(*), count(distinct detected_at), min(detected_at), max(detected_at) from pgps_queue.tick_in"
    # None at the time of an event that closes a window; one after the event that opens the last.
    ticks = timedelta(milliseconds=10)
    wanted = 2 * 44_999 + 1
    assert rows(broker, seen) == [(wanted, wanted, began + ticks, began + timedelta(seconds=900) + ticks)]


def test_no_timer_fires_before_an_event_that_is_dispatched_while_a_session_looks(
    broker: psycopg.Connection, clock: Clock
) -> None:
    began = value(broker, "select pgps._clock()")
    clock.set(began)
    publish(broker, "b")
    clock.set(began + timedelta(seconds=5))
    rows(broker, "insert into pgps_event.b (k) values (1)")
    clock.set(began + timedelta(seconds=9))
    before = "select pgps_internal.all_before(b) from pgps_internal.batch b order by b.batch_id limit 1"
    assert value(broker, before) == began + timedelta(seconds=5)
    # What it will take ends with the batch that it has seen: the event of the next one is still to come.
    assert value(broker, "select pgps.dispatch_batch()") == 1
    assert value(broker, before) == began + timedelta(seconds=5)
    assert value(broker, "select pgps_internal.all_before(pgps_internal.last_batch())") == began + timedelta(seconds=9)


def test_a_time_in_a_far_future_suspends_what_would_tick_up_to_it(connect: Connect, own_database: str) -> None:
    broker = connect(dsn=own_database)
    make_type(broker, "dated", "at timestamptz")
    call(broker, "alter_event_type", "dated", time_attribute="at")
    call(broker, "create_composite_event", "far", "every('10 ms') ; dated a", time_basis="event")
    call(broker, "create_composite_event", "good", "dated a ; dated b")
    rows(broker, "insert into pgps_event.dated values ('2026-01-01 00:00Z')")
    rows(broker, "select pgps.dispatch()")
    rows(broker, "insert into pgps_event.dated values ('9999-01-01 00:00Z')")
    rows(broker, "select pgps.dispatch()")
    assert rows(broker, STATES) == [
        ("far", "suspended", "the events of one batch make more than 1,000,000 ticks of the clock"),
        ("good", "active", None),
    ]
    assert detected(broker, "good") == 1


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


def test_a_predicate_that_raises_is_told_and_suspends_nothing(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "some", "a (10 / k > 1) x ; b")
    rows(broker, "insert into pgps_event.a (k) values (0), (5)")
    publish(broker, "b")
    assert detected(broker, "some") == 1
    ((_, _, none), (_, state, error)) = rows(broker, STATES)
    assert (none, state) == (None, "active")
    assert error.startswith('division by zero (in the predicate of event type "a", event ')
