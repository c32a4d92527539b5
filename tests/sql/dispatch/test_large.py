"""A transaction too large for a batch: matched in parts of bounded size that become visible together."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from tests.fix_broker import (
    call,
    column,
    make_type,
    meanwhile,
    numbers,
    publish,
    refused,
    rows,
    sink,
    sunk,
    take,
    value,
)
from tests.fix_clients import Client
from tests.fix_clock import Clock
from tests.fix_db import Connect

Open = Callable[..., psycopg.Connection]
_PART = 50
_PARTS_OF = "select array_agg(events order by batch_id) from pgps_internal.batch_type where events > 0"


@pytest.fixture
def opened(connect: Connect, own_database: str) -> Open:
    return lambda role=None, autocommit=True: connect(role, autocommit=autocommit, dsn=own_database)


@pytest.fixture
def broker(opened: Open) -> psycopg.Connection:
    """A broker that takes what has more than 150 events for large."""
    connection = opened()
    make_type(connection, "tick")
    call(connection, "configure", "max_part_events", str(_PART))
    call(connection, "configure", "max_batch_events", "100")
    return connection


def test_every_subscription_gets_its_events_of_a_large_transaction_once_and_in_order(
    broker: psycopg.Connection,
) -> None:
    make_type(broker, "tock")
    table = sink(broker, "tick")
    call(broker, "subscribe", "all", "tick")
    call(broker, "subscribe", "tenth", "tick", "n % 10 = 3")
    call(broker, "subscribe", "both", "t*")
    rows(broker, "create table public.wanted as select g as n from generate_series(0, 999, 7) g")
    call(broker, "subscribe", "seventh", "tick", "n in (select w.n from public.wanted w)")
    call(broker, "subscribe", "within", "tick", execute=table)
    call(broker, "subscribe", "shared", "tick", "n < 300", handler="any")
    with broker.transaction():
        publish(broker, "tick", *range(500))
        publish(broker, "tock", *range(2000, 2200))
        publish(broker, "tick", *range(500, 1000))
    publish(broker, "tick", 1000)
    assert value(broker, "select pgps.dispatch()") == 1201
    assert max(value(broker, _PARTS_OF)) <= _PART
    assert value(broker, "select max(cardinality(event_ids)) from pgps_internal.delivery") <= _PART
    assert take(broker, "all", 2000) == list(range(1001))
    assert take(broker, "tenth", 2000) == list(range(3, 1000, 10))
    assert take(broker, "seventh", 2000) == list(range(0, 1000, 7))
    assert take(broker, "shared", 2000) == list(range(300))
    assert take(broker, "both", 2000) == [*range(500), *range(2000, 2200), *range(500, 1001)]
    broker.execute("call pgps.run_subscribers()")
    assert sunk(broker, table) == list(range(1001))


def test_its_parts_are_batches_of_their_own_that_nothing_is_between(broker: psycopg.Connection, opened: Open) -> None:
    call(broker, "subscribe", "all", "tick")
    late = opened(autocommit=False)
    publish(late, "tick", 7000)
    publish(broker, "tick", *range(400))
    publish(broker, "tick", 8000)
    assert value(broker, "select pgps.dispatch(100)") == 400, "as a whole, whatever was asked for"
    late.commit()
    assert value(broker, "select pgps.dispatch()") == 2
    batches = column(broker, "select batch_id from pgps_internal.batch order by 1")
    assert batches == list(range(1, len(batches) + 1))
    assert sorted(take(broker, "all", 2000)[-2:]) == [7000, 8000]
    assert value(broker, "select pgps.dispatch()") == 0, "nothing twice"


def test_repeats_are_dropped_across_its_parts(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "all", "tick")
    with broker.transaction():
        for _ in range(3):
            rows(
                broker,
                "insert into pgps_event.tick (n, _producer, _producer_seq) "
                "select g, 'p', g from generate_series(1, 200) g",
            )
    assert value(broker, "select pgps.dispatch()") == 200
    assert take(broker, "all") == list(range(1, 201))


def test_a_worker_dispatches_it_part_by_part_and_nobody_sees_it_before_the_last(
    broker: psycopg.Connection, opened: Open
) -> None:
    call(broker, "subscribe", "all", "tick")
    publish(broker, "tick", *range(400))
    assert call(broker, "dispatch_batch", 100) == -400
    assert call(broker, "dispatch_batch", 100) == -400, "nothing was done"
    assert call(broker, "dispatch_batch") == -400, "the setting max_batch_events, when nothing is said"
    worker = opened(autocommit=False)
    assert call(worker, "dispatch_large", 100) <= _PART
    parts = list(iter(lambda: call(worker, "dispatch_next_part"), None))
    assert sum(parts) == 400
    assert max(parts) <= _PART
    assert numbers(broker, "all") == []
    worker.rollback()
    assert call(broker, "dispatch_batch", 100) == -400, "a crash re-does it"
    assert call(worker, "dispatch_large", 100) <= _PART
    assert sum(iter(lambda: call(worker, "dispatch_next_part"), None)) == 400
    worker.commit()
    assert numbers(broker, "all") == list(range(400))
    assert call(broker, "dispatch_batch", 100) == 0
    with broker.transaction():
        assert call(broker, "dispatch_large", 100) == 0
        assert call(broker, "dispatch_next_part") is None
    for function in ("dispatch_batch", "dispatch_large"):
        for wrong in (0, -1):
            with refused("22023", "max_events"):
                rows(broker, f"select pgps.{function}(%s)", [wrong])


def test_a_statement_stays_one_occurrence_for_a_registered_client(broker: psycopg.Connection, opened: Open) -> None:
    client = Client(opened(), "c")
    client.register("tick")
    with broker.transaction():
        publish(broker, "tick", *range(20))
        publish(broker, "tick", *range(20, 320))
        publish(broker, "tick", *range(320, 340))
    rows(broker, "select pgps.dispatch()")
    assert client.taken() == [list(range(20)), list(range(20, 320)), list(range(320, 340))]


def test_a_filter_that_fails_in_one_part_hurts_nobody_else(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "all", "tick")
    call(broker, "subscribe", "bad", "tick", "1 / (n - 222) < 1")
    publish(broker, "tick", *range(400))
    rows(broker, "select pgps.dispatch()")
    assert take(broker, "all") == list(range(400))
    assert take(broker, "bad") == [n for n in range(400) if n not in {222, 223}]
    assert rows(broker, "select n, sqlstate from pgps_queue.tick_exception") == [(222, "22012")]


@pytest.mark.parametrize("by_parts", [False, True])
def test_matched_at_is_about_when_an_event_can_be_received(opened: Open, clock: Clock, by_parts: bool) -> None:
    """And not when its batch was begun: here an hour before."""
    connection, holder = opened(), opened(autocommit=False)
    make_type(connection, "tick")
    # A dispatch that is held up for long is no fault of the filter.
    call(connection, "configure", "dispatch_filter_timeout", "1 hour")
    if by_parts:
        call(connection, "configure", "max_part_events", "20000")
    call(connection, "subscribe", "all", "tick", "n % 1000 <> 7")
    rows(connection, "insert into pgps_event.tick (n) select generate_series(1, 200000)")
    begun = clock.set(clock.now())
    if by_parts:
        with connection.transaction():
            assert value(connection, "select pgps.dispatch_large(20000)") <= 20000
            assert value(connection, "select pgps.dispatch_next_part()") > 0
            assert value(connection, "select max(created_at) from pgps_internal.batch") == begun
            clock.advance("1 hour")
            while value(connection, "select pgps.dispatch_next_part()") is not None:
                pass
    else:
        # The first delivery waits for it.
        rows(holder, "lock table pgps_internal.delivery in share mode")
        with meanwhile(opened(), connection, lambda: rows(connection, "select pgps.dispatch()")):
            clock.advance("1 hour")
            holder.rollback()
    matched = value(connection, "select min(matched_at) from pgps_queue.tick_out where event_id % 20000 = 1")
    assert matched == begun + timedelta(hours=1)
    batches = column(connection, "select created_at from pgps_internal.batch order by batch_id")
    assert batches == sorted(batches), "batches are in the order of their times, which retention relies on"
