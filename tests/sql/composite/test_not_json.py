"""Composite events of events that cannot become JSON: a detection of them is an exception, and the others go on."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_db import Connect


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    for kind in "ab":
        make_type(connection, kind, "k integer, body json")
    return connection


@pytest.mark.parametrize("attributes", [None, "k integer = x.k"])
@pytest.mark.parametrize("context", ["chronicle", "recent"])
def test_a_detection_that_is_no_json_goes_to_the_exception_queue(
    broker: psycopg.Connection, attributes: str | None, context: str
) -> None:
    call(broker, "create_composite_event", "pair", "a x ; b y", context, partition_by="k", max_open=100,
         attributes=attributes)  # fmt: skip
    call(broker, "create_composite_event", "other", "a (k <> 2) x ; b (k <> 2) y", context, partition_by="k",
         max_open=100)  # fmt: skip
    call(broker, "subscribe", "s", "pair")
    for kind in "ab":
        for k, body in enumerate(["{}", '"\\u0000"', "[]"], 1):
            rows(broker, f"insert into pgps_event.{kind} values (%s, %s)", [k, body])
    for _ in range(3):
        rows(broker, "select pgps.dispatch()")
    assert rows(broker, "select name, state, lag from pgps.composite_events order by name") == [
        ("other", "active", 0), ("pair", "active", 0)
    ]  # fmt: skip
    keys = "select (constituents -> 0 -> 'payload' ->> 'k')::integer from pgps_internal.{}_log order by event_id"
    assert column(broker, keys.format("pair")) == [1, 3]
    assert column(broker, keys.format("other")) == [1, 3]
    ((event_id, state, error),) = rows(broker, "select event_id, sqlstate, error from pgps_queue.pair_exception")
    assert state == "22P05"
    assert "no JSON" in error
    # Its events are named, and their attributes are where these are.
    found = value(broker, "select constituents from pgps_internal.pair_kept where event_id = %s", [event_id])
    assert [(part["as"], "payload" in part) for part in found] == [("x", False), ("y", False)]
    call(broker, "retry_exception", "pair", event_id)
    assert value(broker, "select count(*) from pgps_queue.pair_exception") == 1
    call(broker, "discard_exception", "pair", event_id)
    assert column(broker, "select (payload -> 'constituents' -> 0 -> 'payload' ->> 'k') from pgps.receive('s')") == [
        "1", "3"
    ]  # fmt: skip


def test_a_trial_has_such_an_event_without_its_payload(broker: psycopg.Connection) -> None:
    for k, body in enumerate(["{}", '"\\u0000"', "[]"], 1):
        rows(broker, "insert into pgps_event.a values (%s, %s)", [k, body])
    rows(broker, "select pgps.dispatch()")
    found = column(broker, "select t -> 'constituents' -> 0 -> 'payload' ->> 'k' from pgps.try_composite_event('a') t")
    assert found == ["1", None, "3"]
    found = column(broker, "select t ->> 'k' from pgps.try_composite_event('a x', attributes => 'k integer = x.k') t")
    assert found == ["1", None, "3"]
