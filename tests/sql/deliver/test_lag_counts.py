"""How far subscriptions are behind, asked in portions for a worker's metrics."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, refused, rows, take, value
from tests.fix_clock import Clock
from tests.fix_db import Connect

_LAGS = "select subscription, depth, lag_seconds::integer from pgps.lag_counts({})"
_SEEN = "select name, depth, lag_seconds::integer from pgps.subscriptions order by subscription_id"


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    return connection


def _id(broker: psycopg.Connection, name: str) -> int:
    return int(value(broker, "select subscription_id from pgps.subscriptions where name = %s", [name]))


def test_how_much_waits_for_each_and_for_how_long(broker: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    for name in ("ahead", "behind", "idle"):
        call(broker, "subscribe", name, "tick", filter="n < 0" if name == "idle" else "n > 0")
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch()")
    clock.advance("90 seconds")
    publish(broker, "tick", 3)
    rows(broker, "select pgps.dispatch()")
    assert take(broker, "ahead") == [1, 2, 3]
    assert rows(broker, _LAGS.format("")) == [("ahead", 0, 0), ("behind", 3, 90), ("idle", 0, 0)]
    assert rows(broker, _LAGS.format("")) == rows(broker, _SEEN), "as pgps.subscriptions has it"


def test_what_is_left_of_a_delivery_is_counted_in_lists_and_ranges_without_what_is_skipped(
    broker: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    call(broker, "subscribe", "all", "tick")
    call(broker, "subscribe", "even", "tick", filter="n % 2 = 0")
    call(broker, "subscribe", "shared", "tick", handler="any")
    for _ in range(3):
        publish(broker, "tick", *range(300))
        rows(broker, "select pgps.dispatch()")
    for name, events in (("all", 590), ("even", 160), ("shared", 7)):
        assert len(take(broker, name, events)) == events
    # The last of what waits for each are none of its own: as if it had joined after they were published.
    rows(
        broker,
        "update pgps_internal.member m set skip = int8multirange(int8range(x.last - 4, x.last, '[]'))"
        " from (select m.subscription_id, max(u.event_id) as last from pgps_internal.member m"
        " join pgps_internal.unfolded u using (class_id) where not m.takes_batch group by 1) x"
        " where x.subscription_id = m.subscription_id",
    )
    left = [("all", 900 - 590 - 5), ("even", 450 - 160 - 3), ("shared", 900 - 7)]
    assert [(name, depth) for name, depth, _ in rows(broker, _SEEN)] == left
    assert rows(broker, _LAGS.format("")) == rows(broker, _SEEN)


def test_what_detection_has_read_is_not_left_for_it(broker: psycopg.Connection) -> None:
    """Its positions are behind all events of a batch: at the highest number, with which no range can begin."""
    call(broker, "create_composite_event", "pair", "tick (n = 1) a ; tick (n > 1) b", attributes="n integer = a.n")
    publish(broker, "tick", *range(10))
    depth = "select depth from pgps.queues where queue = 'tick_out'"
    rows(broker, "select pgps.dispatch_batch(1000)")
    assert value(broker, depth) > 0
    rows(broker, "select pgps.dispatch()")
    assert value(broker, depth) == 0
    rows(broker, "select * from pgps_internal.backlogs_of(array(select subscription_id from pgps_internal.member), 9)")


def test_of_one_that_is_far_behind_a_part_is_counted_and_its_lag_is_exact(
    broker: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    call(broker, "subscribe", "away", "tick")
    call(broker, "subscribe", "shared", "tick", handler="any")
    for _ in range(5):
        publish(broker, "tick", 1, 2)
        rows(broker, "select pgps.dispatch()")
        clock.advance("1 minute")
    part = "select depth, oldest = '2030-01-01 12:00+00' from pgps_internal.backlogs_of(array[%s]::bigint[], %s)"
    assert rows(broker, part, [_id(broker, "away"), 3]) == [(6, True)]
    assert rows(broker, part, [_id(broker, "away"), 1000]) == [(10, True)]
    assert take(broker, "shared", 2) == [1, 2]
    assert rows(broker, part.replace("12:00", "12:01"), [_id(broker, "shared"), 3]) == [(3, True)]


def test_what_a_lane_has_not_asked_yet_counts_as_time_and_not_as_events(
    broker: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    rows(broker, "create table public.ward as select generate_series(1, 3) as n")
    call(broker, "subscribe", "plain", "tick", filter="n < 0")
    call(broker, "subscribe", "wards", "tick", filter="n in (select w.n from public.ward w)")
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch_batch(1000)")
    clock.advance("90 seconds")
    assert rows(broker, _LAGS.format("")) == rows(broker, _SEEN) == [("plain", 0, 0), ("wards", 0, 90)]
    rows(broker, "call pgps.run_lanes()")
    assert rows(broker, _LAGS.format("")) == rows(broker, _SEEN) == [("plain", 0, 0), ("wards", 2, 90)]


def test_how_many_a_second_each_has_acknowledged_in_the_last_minute(broker: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    call(broker, "subscribe", "busy", "tick")
    call(broker, "subscribe", "shared", "tick", handler="any")
    call(broker, "subscribe", "idle", "tick", filter="n < 0")
    for _ in range(3):
        clock.advance("10 seconds")
        publish(broker, "tick", *range(100))
        rows(broker, "select pgps.dispatch()")
        for name in ("busy", "shared"):
            assert len(take(broker, name, 1000)) == 100
    rates = "select subscription, round(rate::numeric, 3)::text from pgps.lag_counts()"
    seen = "select name, round(rate::numeric, 3)::text from pgps.subscriptions order by subscription_id"
    clock.advance("10 seconds")
    found: dict[str, str] = dict(rows(broker, rates))
    assert (float(found["busy"]) > 5, float(found["shared"]) > 5, found["idle"]) == (True, True, "0.000")
    assert found == dict(rows(broker, seen)), "of so few acknowledgements as pgps.subscriptions has it"
    clock.advance("1 minute")
    assert set(dict(rows(broker, rates)).values()) == {"0.000"}


def test_they_are_asked_in_portions_and_some_at_each_look(broker: psycopg.Connection) -> None:
    names = [f"s{n}" for n in range(5)]
    for name in names:
        call(broker, "subscribe", name, "tick")

    def asked(arguments: str) -> list[str]:
        return [name for name, _, _ in rows(broker, _LAGS.format(arguments))]

    assert asked("max_rows => 2") == names[:2]
    assert asked(f"{_id(broker, 's1')}, 2") == names[2:4]
    assert asked(f"{_id(broker, 's3')}, 2") == names[4:]
    assert asked(f"{_id(broker, 's1')}, 1, array[{_id(broker, 's0')}, {_id(broker, 's2')}]") == ["s0", "s2"]
    assert asked(f"{_id(broker, 's4')}, 2, array[{_id(broker, 's4')}, null, -7]") == ["s4"]
    assert asked("null, 10, null") == names


def test_what_is_asked_is_bounded_and_for_workers_and_administrators(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    call(broker, "subscribe", "s", "tick")
    for number in ("0", "-1", "1001", "null"):
        with refused("22023", "max_rows", "after"):
            rows(broker, _LAGS.format(f"max_rows => {number}"))
    with refused("42501"):
        rows(connect(role("alice"), dsn=own_database), _LAGS.format(""))
    for group in ("pgps_worker", "pgps_admin"):
        assert rows(connect(role(f"one_{group}", group), dsn=own_database), _LAGS.format("")) == [("s", 0, 0)]
