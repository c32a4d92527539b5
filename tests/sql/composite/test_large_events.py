"""Composite events of large events: a step takes as many as fit, and what fits nowhere is an exception."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect, wait_until

MB = 1_000_000


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    for kind in "abc":
        make_type(connection, kind, "k integer, note text")
    return connection


def publish(connection: psycopg.Connection, kind: str, size: int, *keys: int) -> None:
    """Publish an event of each key, with so many characters, in one statement."""
    query = f"insert into pgps_event.{kind} select k, repeat('x', %s) from unnest(%s::integer[]) k"
    rows(connection, query, [size, list(keys)])


def detect(connection: psycopg.Connection) -> None:
    """Dispatch and detect until nothing is left; a dispatch ends after some seconds, and the next goes on."""

    def is_done() -> bool:
        rows(connection, "select pgps.dispatch()")
        query = "select max(lag) from pgps.composite_events where state = 'active'"
        return bool(value(connection, query) in (0, None))

    wait_until(is_done, timeout=300)
    assert rows(connection, "select name, last_error from pgps.composite_events where state <> 'active'") == []


def detections(connection: psycopg.Connection, name: str) -> list[tuple[Any, ...]]:
    """Return of each detection, in order, the keys of its events, and how long they are."""
    return rows(
        connection,
        f"""
        select array(select (c -> 'payload' ->> 'k')::integer from jsonb_array_elements(constituents) c),
            array(select length(c -> 'payload' ->> 'note') from jsonb_array_elements(constituents) c)
        from pgps_internal.{name}_log order by event_id
        """,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_large_events_of_one_batch_are_taken_in_steps(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "pair", "a ; b", partition_by="k")
    call(broker, "create_composite_event", "other", "c ; b", context="chronicle", max_open=100)
    keys = [*range(1, 13)]
    publish(broker, "c", 1, *keys)
    # Together more than one step may make, or an array holds as JSON.
    publish(broker, "a", 25 * MB, *keys)
    publish(broker, "b", 1, *keys)
    detect(broker)
    assert detections(broker, "pair") == [([key, key], [25 * MB, 1]) for key in keys]
    assert detections(broker, "other") == [([key, key], [1, 1]) for key in keys]
    # A step has 64 MB of events, or one event.
    steps = "select count(*) from pgps_internal.composite_step s join pgps_internal.composite c using (composite_id) "
    assert (
        value(broker, steps + "where c.type_id = (select type_id from pgps_internal.event_type where name = 'pair')")
        >= 6
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("attributes", [None, "k integer = x.k"])
def test_a_detection_that_jsonb_cannot_hold_goes_to_the_exception_queue(
    broker: psycopg.Connection, attributes: str | None
) -> None:
    call(broker, "create_composite_event", "pair", "a x ; b y", partition_by="k", attributes=attributes)
    call(broker, "create_composite_event", "other", "c ; b", context="chronicle", max_open=100)
    publish(broker, "c", 1, 1, 2, 3)
    publish(broker, "a", 1, 1)
    publish(broker, "a", 140 * MB, 2)
    publish(broker, "a", 1, 3)
    publish(broker, "b", 1, 1)
    publish(broker, "b", 140 * MB, 2)
    publish(broker, "b", 1, 3)
    detect(broker)
    assert detections(broker, "pair") == [([1, 1], [1, 1]), ([3, 3], [1, 1])]
    assert len(detections(broker, "other")) == 3
    ((event_id, state, error),) = rows(broker, "select event_id, sqlstate, error from pgps_queue.pair_exception")
    assert state == "54000"
    assert "together too large for JSON" in error
    # Its events are named, and their attributes are where these are.
    found = value(broker, "select constituents from pgps_internal.pair_kept where event_id = %s", [event_id])
    assert [(part["as"], part["event_type"], "payload" in part) for part in found] == [
        ("x", "a", False),
        ("y", "b", False),
    ]
    ids = column(
        broker,
        "select event_id from pgps_internal.a_log where k = 2 union all "
        "select event_id from pgps_internal.b_log where k = 2",
    )
    assert [part["event_id"] for part in found] == ids
    call(broker, "retry_exception", "pair", event_id)
    assert len(detections(broker, "pair")) == 2
    assert value(broker, "select count(*) from pgps_queue.pair_exception") == 1
    call(broker, "discard_exception", "pair", event_id)
    assert value(broker, "select count(*) from pgps_queue.pair_exception") == 0


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [("P*", None), ("P*", "k integer = x.k"), ("P", None), ("P", "k integer = max(x.k)")],
)
def test_a_window_of_too_many_ticks_is_an_exception_and_the_others_go_on(
    broker: psycopg.Connection, clock: Clock, operator: str, attributes: str | None
) -> None:
    context = "cumulative" if operator == "P" else "recent"
    began = value(broker, "select pgps._clock()").replace(microsecond=5000)
    clock.set(began)
    call(broker, "create_composite_event", "session", f"{operator}(a x, '10 ms', b y)", context, partition_by="k",
         attributes=attributes)  # fmt: skip
    publish(broker, "a", 1, 1, 2, 3)
    clock.set(began + timedelta(seconds=1001))
    publish(broker, "a", 1, 4)
    clock.set(began + timedelta(seconds=1001, milliseconds=25))
    publish(broker, "b", 1, 4, 1, 3, 2)
    detect(broker)
    seen = "select (constituents -> 0 -> 'payload' ->> 'k')::integer, jsonb_array_length(constituents)"
    assert rows(broker, f"{seen} from pgps_internal.session_log") == [(4, 4)]
    found = rows(broker, "select event_id, sqlstate, error from pgps_queue.session_exception order by 1")
    assert [state for _, state, _ in found] == 3 * ["54000"]
    assert {error for _, _, error in found} == {"an occurrence of session has more than 100,000 constituents"}
    kept = "select constituents from pgps_internal.session_kept where event_id = %s"
    first, ticks, last = value(broker, kept, [found[0][0]])
    assert (first["as"], first["event_type"], last["as"], last["event_type"]) == ("x", "a", "y", "b")
    assert ticks.pop("last") > ticks.pop("tick") > first["at"]
    assert ticks == {"as": "tick", "ticks": 100_102}
    # It stays there: as an event it would have to have all of its ticks.
    call(broker, "retry_exception", "session", found[0][0])
    assert value(broker, "select detected from pgps.composite_events") == 4
    assert value(broker, "select count(*) from pgps_internal.session_log") == 1
    assert value(broker, "select count(*) from pgps_queue.session_exception") == 3
    # What became of one event is told, too.
    told = "select step || ' ' || outcome from pgps.explain_composite_event('session', %s)"
    event = value(broker, "select event_id from pgps_internal.a_log where k = 2")
    assert any("detected" in step for step in column(broker, told, [event]))
