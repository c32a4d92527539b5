"""Composite events whose leaves are asked in a lane go on where the lane has nothing to do."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, rows
from tests.fix_clock import Clock
from tests.fix_db import Connect

_IN_LANE = "n in (select w.n from public.wanted w)"


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "first", "n integer")
    make_type(connection, "second", "n integer")
    rows(connection, "create table public.wanted as select generate_series(1, 9) as n")
    return connection


def publish(broker: psycopg.Connection, event_type: str, n: int) -> None:
    rows(broker, f"insert into pgps_event.{event_type} values ({n})")
    rows(broker, "select pgps.dispatch()")


def detected(broker: psycopg.Connection) -> list[list[int]]:
    rows(broker, "select pgps.dispatch()")
    texts = column(broker, "select constituents::text from pgps_queue.it_log order by event_id")
    return [[part["payload"]["n"] for part in json.loads(text)] for text in texts]


def test_the_other_leaf_need_not_wait_for_an_event_of_the_one_in_the_lane(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "it", f"first ({_IN_LANE}) x ; second y")
    publish(broker, "first", 1)
    publish(broker, "second", 2)
    assert detected(broker) == [[1, 2]]
    publish(broker, "second", 3)
    publish(broker, "first", 10)
    publish(broker, "first", 4)
    publish(broker, "second", 5)
    assert detected(broker) == [[1, 2], [1, 3], [4, 5]]


def test_a_timer_fires_although_batches_of_other_types_have_come(broker: psycopg.Connection, clock: Clock) -> None:
    clock.set("2026-03-01 12:00:00+00")
    call(broker, "create_composite_event", "late", f"first ({_IN_LANE}) x + '1 minute'")
    publish(broker, "first", 1)
    publish(broker, "second", 2)
    clock.set("2026-03-01 12:05:00+00")
    rows(broker, "select pgps.dispatch()")
    assert column(broker, "select detected from pgps.composite_events where name = 'late'") == [1]


def test_what_the_lane_has_not_matched_yet_is_waited_for(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "it", f"first ({_IN_LANE}) x ; second y")
    rows(broker, "insert into pgps_event.first values (1)")
    rows(broker, "select pgps.dispatch_batch()")
    rows(broker, "insert into pgps_event.second values (2)")
    rows(broker, "select pgps.dispatch_batch()")
    rows(broker, "select pgps.detect()")
    assert column(broker, "select stepped_at from pgps.composite_events where name = 'it'") == [None]
    rows(broker, "call pgps.run_lanes()")
    rows(broker, "select pgps.detect()")
    assert detected(broker) == [[1, 2]]


def test_whoever_detects_is_woken_when_the_lane_has_gone_on(broker: psycopg.Connection, connect: Connect) -> None:
    call(broker, "create_composite_event", "it", f"first ({_IN_LANE}) x ; second y")
    rows(broker, "insert into pgps_event.first values (10)")
    rows(broker, "select pgps.dispatch_batch()")
    with connect(dsn=broker.info.dsn) as listening:
        listening.execute("listen pgps_composite")
        rows(broker, "call pgps.run_lanes()")
        assert [told.channel for told in listening.notifies(timeout=60, stop_after=1)] == ["pgps_composite"]
