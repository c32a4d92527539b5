"""Plans of the hot statements: what is kept must stay right while segments fill."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgps import _diagnosis
from tests.fix_broker import call, ids, make_type, publish, rows, value
from tests.fix_db import Connect

READ = """
select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint from pg_stat_user_tables
where schemaname = 'pgps_internal' and relname ~ '^(control|batch|batch_type|delivery|position)_\\d$'
    or schemaname ~ '^pgps_log_\\d$'
"""
EVENTS = 3000


@pytest.fixture
def consumer(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    call(connection, "subscribe", "all", "tick")
    call(connection, "subscribe", "even", "tick", filter="n % 2 = 0")
    return connection


def round_trip(connection: psycopg.Connection) -> int:
    """Publish, dispatch, receive and acknowledge one event; return how many rows have been read so far."""
    publish(connection, "tick", 2)
    assert value(connection, "select pgps.dispatch()") == 1
    for subscription in ("all", "even"):
        assert value(connection, "select count(*) from pgps.receive(%s, 1)", [subscription]) == 1
        call(connection, "ack", subscription)
    rows(connection, "select pg_stat_force_next_flush()")
    return int(value(connection, READ))


def test_plans_made_while_segments_are_empty_do_not_read_them_from_end_to_end_later(
    consumer: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    # Statistics that say so, and no autovacuum to mend them before the test is over.
    rows(consumer, "analyze")
    for _ in range(8):
        round_trip(consumer)
    other = connect(dsn=own_database)
    publish(other, "tick", *range(EVENTS))
    assert value(other, "select pgps.dispatch()") == EVENTS
    for subscription in ("all", "even"):
        rows(other, "select count(*) from pgps.receive(%s, %s)", [subscription, EVENTS])
        call(other, "ack", subscription)
    # What it has read is counted now, and not when it has been idle for some seconds.
    rows(other, "select pg_stat_force_next_flush()")
    before = round_trip(consumer)
    assert round_trip(consumer) - before < EVENTS / 10


WAYS = {
    "receive": "select count(*) from pgps.receive('{}', 10000)",
    "rows": "select count(*) from pgps_queue.tick_receive(array['{}'], 10000)",
    "callback": "call pgps.run_subscribers()",
}
BATCHES = 400


@pytest.mark.parametrize("way", WAYS)
def test_plans_made_before_a_segment_is_begun_do_not_read_it_from_end_to_end_later(
    consumer: psycopg.Connection, connect: Connect, own_database: str, way: str
) -> None:
    if way == "callback":
        rows(consumer, "create function public.handle(pgps_event.tick) returns void language plpgsql as 'begin end'")
        for subscription in ("all", "even"):
            call(consumer, "unsubscribe", subscription)
        call(consumer, "subscribe", "handled", "tick", filter="n % 2 = 0", execute="public.handle")

    def consume(connection: psycopg.Connection) -> None:
        for subscription in () if way == "callback" else ("all", "even"):
            assert value(connection, WAYS[way].format(subscription)) > 0
            call(connection, "ack", subscription)
        if way == "callback":
            rows(connection, WAYS[way])

    def trip() -> int:
        publish(consumer, "tick", 2)
        assert value(consumer, "select pgps.dispatch()") == 1
        consume(consumer)
        rows(consumer, "select pg_stat_force_next_flush()")
        return int(value(consumer, READ))

    # As autovacuum leaves segments that have been emptied.
    rows(consumer, "analyze")
    for _ in range(8):
        trip()
    for ledger, sequence in (("control", "event_id_seq"), ("position", "position_id_seq")):
        size = value(consumer, "select pgps_internal.segment_size(%s)", [ledger])
        rows(consumer, f"select setval('pgps_internal.{sequence}', {size})")
    last = "(pgps_internal.last_batch()).batch_id"
    rows(consumer, f"update pgps_internal.batch set batch_id = 4095 where batch_id = {last}")
    other = connect(dsn=own_database)
    publish(other, "tick", *range(EVENTS))
    for _ in range(BATCHES):
        publish(other, "tick", 2)
        rows(other, "select pgps.dispatch()")
    consume(other)
    # What it has read is counted now, and not when it has been idle for some seconds.
    rows(other, "select pg_stat_force_next_flush()")
    before = trip()
    assert trip() - before < BATCHES / 2


def test_a_look_for_pending_subscribers_reads_no_delivery_of_others(consumer: psycopg.Connection) -> None:
    rows(
        consumer,
        "create function public.handle(pgps_event.tick[]) returns void language plpgsql as $$ begin end $$",
    )
    call(consumer, "subscribe", "idle", "tick", filter="n = -1", execute="public.handle")
    rows(consumer, "analyze")
    assert rows(consumer, "select * from pgps.pending_subscribers()") == []
    publish(consumer, "tick", -1)
    rows(consumer, "select pgps.dispatch()")
    assert rows(consumer, "select subscription from pgps.pending_subscribers()") == [("idle",)]
    rows(consumer, "call pgps.run_subscribers()")
    for n in range(50):
        publish(consumer, "tick", n)
        rows(consumer, "select pgps.dispatch()")
    rows(consumer, "select pg_stat_force_next_flush()")
    before = int(value(consumer, READ))
    assert rows(consumer, "select * from pgps.pending_subscribers()") == []
    rows(consumer, "select pg_stat_force_next_flush()")
    assert int(value(consumer, READ)) - before < 50


def test_what_a_worker_reports_costs_by_what_is_wrong_and_not_by_the_number_of_subscriptions(
    consumer: psycopg.Connection,
) -> None:
    for n in range(100):
        call(consumer, "subscribe", f"s{n}", "tick", filter=f"n % 100 = {n}")
    call(consumer, "subscribe", "away", "tick")
    call(consumer, "alter_subscription", "away", dead_after="1 microsecond")
    publish(consumer, "tick", *range(100))
    rows(consumer, "select pgps.dispatch()")
    for n in range(100):
        rows(consumer, f"select count(*) from pgps.take('s{n}')")
    counts = "select subscription, state, depth from pgps.trouble_counts()"
    assert rows(consumer, counts) == [("away", "dead", 100)]
    rows(consumer, "select pg_stat_force_next_flush()")
    before = int(value(consumer, READ))
    assert rows(consumer, counts) == [("away", "dead", 100)]
    rows(consumer, "select pg_stat_force_next_flush()")
    assert int(value(consumer, READ)) - before < 50


def test_a_portion_of_the_lags_costs_by_the_portion_and_not_by_the_number_of_subscriptions(
    consumer: psycopg.Connection,
) -> None:
    for n in range(100):
        call(consumer, "subscribe", f"s{n}", "tick", filter=f"n % 100 = {n}")
    publish(consumer, "tick", *range(100))
    rows(consumer, "select pgps.dispatch()")

    def read(portion: int) -> int:
        rows(consumer, "select pg_stat_force_next_flush()")
        before = int(value(consumer, READ))
        assert value(consumer, "select count(*) from pgps.lag_counts(max_rows => %s)", [portion]) == portion
        rows(consumer, "select pg_stat_force_next_flush()")
        return int(value(consumer, READ)) - before

    assert read(10) * 5 < read(100)


def test_what_is_left_of_a_large_delivery_is_not_counted_event_by_event(consumer: psycopg.Connection) -> None:
    publish(consumer, "tick", *range(EVENTS))
    rows(consumer, "select pgps.dispatch()")
    rows(consumer, "select count(*) from pgps.receive('all', %s)", [EVENTS // 2])
    call(consumer, "ack", "all")
    question = "select depth, lag_seconds from pgps.subscriptions where name = 'all'"
    assert max(node["Actual Rows"] for node in _executed(consumer, question)) < 100
    assert rows(consumer, question)[0][0] == EVENTS // 2


def test_doctor_reads_neither_failures_to_list_subscriptions_nor_deliveries_to_list_queues(
    consumer: psycopg.Connection,
) -> None:
    publish(consumer, "tick", *range(10))
    rows(consumer, "select pgps.dispatch()")
    call(consumer, "nack_events", "all", ids(consumer, "all")[:2], "no")

    def read(question: str) -> set[str]:
        return {re.sub(r"_\d$", "", str(node.get("Relation Name"))) for node in _executed(consumer, question)}

    assert {"delivery", "subscription"} <= read(_diagnosis.SUBSCRIPTIONS)
    assert "failure" not in read(_diagnosis.SUBSCRIPTIONS)
    assert "failure" in read(_diagnosis.QUEUES)
    assert not {"delivery", "position"} & read(_diagnosis.QUEUES)


def _executed(connection: psycopg.Connection, question: str) -> list[dict[str, Any]]:
    """Return what PostgreSQL does to answer a question, each node of the plan that is not left out."""
    (plan,) = value(connection, f"explain (analyze, timing off, format json) {question}")

    def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if node["Actual Loops"]:
            yield node
            for part in node.get("Plans", []):
                yield from nodes(part)

    return list(nodes(plan["Plan"]))


def test_what_workers_ask_again_and_again_is_not_compiled(consumer: psycopg.Connection) -> None:
    """Compiling what trouble_counts reads took ten seconds of processor, and as long as that each time."""
    compiled = """
        select p.proname from pg_proc p
        where p.pronamespace = 'pgps'::regnamespace and p.prosecdef and p.proretset and p.provolatile = 's'
            and p.prolang = (select l.oid from pg_language l where l.lanname = 'plpgsql')
            and not 'jit=off' = any (coalesce(p.proconfig, '{}'))
    """
    assert rows(consumer, compiled) == []


def test_many_events_are_not_compared_one_by_one_with_each_filter_of_a_shape(consumer: psycopg.Connection) -> None:
    make_type(consumer, "quote", "symbol text, price numeric")
    for n in range(100):
        call(consumer, "subscribe", f"s{n}", "quote", filter=f"symbol = 'S{n // 5}' and price > {n % 5}")
    read = """
        select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint from pg_stat_user_tables
        where schemaname = 'pgps_internal' and relname ~ '^const_\\d+$'
    """
    rows(consumer, "vacuum analyze")
    insert = "insert into pgps_event.quote (symbol, price) select 'S' || n %% 20, 100 from generate_series(1, %s) n"
    # A segment that fills faster than autovacuum comes round has no statistics.
    rows(consumer, insert, [15 * EVENTS])
    assert value(consumer, "select pgps.dispatch()") == 15 * EVENTS
    rows(consumer, insert, [EVENTS])
    rows(consumer, "select pg_stat_force_next_flush()")
    before = value(consumer, read)
    assert value(consumer, "select pgps.dispatch()") == EVENTS
    rows(consumer, "select pg_stat_force_next_flush()")
    assert value(consumer, read) - before < EVENTS


@pytest.mark.parametrize("view", ["queues", "activity"])
def test_what_waits_is_not_read_again_for_each_event_type(connect: Connect, own_database: str, view: str) -> None:
    connection = connect(dsn=own_database)
    for number in range(12):
        make_type(connection, f"type_{number}")
    for number in range(200):
        publish(connection, "type_3", number)
    rows(connection, "select pg_stat_force_next_flush()")
    before = value(connection, READ)
    waiting = {"queues": "sum(depth) filter (where kind = 'in')", "activity": "sum(waiting)"}[view]
    assert value(connection, f"select {waiting} from (select * from pgps.{view} offset 0) v") == 200
    rows(connection, "select pg_stat_force_next_flush()")
    assert value(connection, READ) - before < 5 * 200
