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


@pytest.mark.parametrize("context", ["chronicle", "cumulative"])
def test_a_filter_that_reads_other_attributes_is_asked_of_such_an_event(
    broker: psycopg.Connection, context: str
) -> None:
    test = "x.k <= y.k" if context == "chronicle" else "max(x.k) <= max(y.k)"
    call(broker, "create_composite_event", "pair", "a x ; b y", context, filter=test, within="1 hour")
    for kind, k, body in [("a", 9, '"\\u0000"'), ("b", 1, "{}"), ("a", 2, "1e400000"), ("b", 10, '["\\ud800", 1]')]:
        rows(broker, f"insert into pgps_event.{kind} values (%s, %s)", [k, body])
        rows(broker, "select pgps.dispatch()")
    ((state, lag, last_error),) = rows(broker, "select state, lag, last_error from pgps.composite_events")
    assert (state, lag) == ("active", 0)
    # It is detected, and it cannot be published.
    assert str(last_error).startswith("the events of this detection are no JSON (unsupported Unicode escape sequence")
    assert value(broker, "select count(*) from pgps_internal.pair_log") == 0
    assert set(column(broker, "select sqlstate from pgps_queue.pair_exception")) == {"22P05"}
    found = column(broker, "select jsonb_array_length(constituents) from pgps_internal.pair_kept order by event_id")
    assert found == ([2] if context == "chronicle" else [3])


@pytest.mark.parametrize(
    "test", ["x.body is not null", "row_to_json(x) is not null", "exists (select from (select x.*) z)"]
)
def test_a_filter_that_may_read_what_is_no_json_is_not_true_of_it(broker: psycopg.Connection, test: str) -> None:
    call(broker, "create_composite_event", "one", "a x", filter=f"x.k > 0 and {test}")
    for body in ["{}", '"\\u0000"', "[]"]:
        rows(broker, "insert into pgps_event.a values (1, %s)", [body])
    rows(broker, "select pgps.dispatch()")
    assert column(broker, "select constituents -> 0 -> 'payload' -> 'body' from pgps_internal.one_log") == [{}, []]
    assert value(broker, "select count(*) from pgps_queue.one_exception") == 0
    last_error = str(value(broker, "select last_error from pgps.composite_events"))
    assert last_error.startswith("unsupported Unicode escape sequence (in the filter: ")
