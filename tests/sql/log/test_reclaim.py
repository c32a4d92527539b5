"""Segments are given back when nothing needs them, and never before."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, numbers, publish, refused, rows, sink, sunk, take, value
from tests.fix_clock import Clock
from tests.fix_db import Connect, wait_until

SEGMENTS = {"event_id_seq": 65536, "position_id_seq": 262144}
LATER = """
    insert into pgps_internal.batch
    select 5000, b.snapshot, pg_current_snapshot(), null, b.base_hi, b.max_hi, b.incarnation
    from pgps_internal.last_batch() b
"""
"""Some thousand batches later."""


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    return connection


def roll(connection: psycopg.Connection) -> None:
    """Go on to the next segment of logs, control queue and positions."""
    for sequence, size in SEGMENTS.items():
        at = value(connection, f"select last_value from pgps_internal.{sequence}")
        rows(connection, f"select setval('pgps_internal.{sequence}', {(at // size + 1) * size})")


VACUUMED = """
    select exists (select from pg_stat_activity
        where backend_type = 'autovacuum worker' and datname = current_database())
"""


def reclaim(connection: psycopg.Connection) -> None:
    """Reclaim all that can be. What autovacuum has at a moment is left for the next time."""

    def is_done() -> bool:
        was_vacuumed = value(connection, VACUUMED)
        return value(connection, "select pgps.reclaim(100)") == 0 and not (was_vacuumed or value(connection, VACUUMED))

    wait_until(is_done, what="nothing is left to be reclaimed")


def kept(connection: psycopg.Connection, relation: str = "tick_log") -> int:
    count = value(connection, f"select count(*) from pgps_internal.{relation}")
    assert isinstance(count, int)
    return count


def test_a_delivered_segment_is_given_back(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick")
    publish(broker, "tick", 1, 2)
    assert take(broker, "s") == [1, 2]
    reclaim(broker)
    assert kept(broker) == 2, "the current segment stays"
    roll(broker)
    publish(broker, "tick", 3)
    reclaim(broker)
    assert kept(broker) == 1
    assert kept(broker, "control") == 1
    assert kept(broker, "position") == 1, "carried over"
    assert take(broker, "s") == [3]


def test_what_competing_consumers_have_settled_stays_counted(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    delivered = "select delivered from pgps.subscriptions where name = 's'"
    call(broker, "subscribe", "s", "tick", handler="any")
    first, second = (connect(dsn=own_database, autocommit=False) for _ in range(2))
    publish(broker, "tick", *range(6))
    rows(broker, "select pgps.dispatch()")
    for consumer in (first, second, second):
        assert len(numbers(consumer, "s", 2)) == 2
        assert call(consumer, "ack", "s") == 2, "none waits for another"
    first.rollback()
    second.commit()
    assert value(broker, delivered) == 4
    assert value(broker, "select rate > 0 from pgps.subscriptions")
    assert len(take(broker, "s")) == 2
    for _ in range(5):
        roll(broker)
        reclaim(broker)
        assert value(broker, delivered) == 6
        assert kept(broker, "position") == 1, "added up"
    call(broker, "seek", "s", "earliest")
    assert value(broker, delivered) == 6


@pytest.mark.parametrize("state", ["waiting", "dispatched", "received", "paused", "shared", "internal"])
def test_an_event_that_somebody_waits_for_stays(broker: psycopg.Connection, state: str) -> None:
    table = sink(broker, "tick")
    options = {"shared": {"handler": "any"}, "internal": {"execute": table}}.get(state, {})
    call(broker, "subscribe", "s", "tick", **options)
    publish(broker, "tick", 1)
    if state != "waiting":
        rows(broker, "select pgps.dispatch()")
    if state == "received":
        assert numbers(broker, "s") == [1]
    if state == "paused":
        call(broker, "pause", "s")
    for _ in range(5):
        roll(broker)
        reclaim(broker)
    assert kept(broker) == 1
    call(broker, "resume", "s")
    rows(broker, "select pgps.dispatch()")
    rows(broker, "call pgps.run_subscribers()")
    assert (sunk(broker, table) if state == "internal" else take(broker, "s")) == [1]
    roll(broker)
    reclaim(broker)
    assert kept(broker) == 0


def test_a_failed_event_outlives_its_segment(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick", max_attempts=1)
    call(broker, "subscribe", "picky", "tick", filter="10 / n > 0")
    publish(broker, "tick", 0, 2)
    rows(broker, "select pgps.dispatch()")
    call(broker, "nack", "s", value(broker, "select min(event_id) from pgps.receive('s')"))
    call(broker, "ack", "s")
    assert take(broker, "picky") == [2]
    roll(broker)
    reclaim(broker)
    assert kept(broker) == 0
    failed = rows(broker, "select n, subscription from pgps_queue.tick_exception order by subscription")
    assert failed == [(0, "picky"), (0, "s")]
    assert call(broker, "retry_exception", "tick", subscription="s") == 1
    assert take(broker, "s") == [0]
    assert call(broker, "discard_exception", "tick") == 1
    reclaim(broker)
    assert kept(broker, "tick_kept") == 0


def test_an_auditable_queue_keeps_its_events_for_its_retention(broker: psycopg.Connection, clock: Clock) -> None:
    call(broker, "alter_queue", "tick_in", auditable=True)
    call(broker, "alter_queue", "tick_out", auditable=True)
    call(broker, "subscribe", "s", "tick", filter="n > 1")
    publish(broker, "tick", 1)
    clock.advance("2 hours")
    publish(broker, "tick", 2)
    assert take(broker, "s") == [2]
    before = rows(broker, "select n, event_id, enqueued_at, xid, publisher from pgps_queue.tick_in order by n")
    assert [row[0] for row in before] == [1, 2]
    roll(broker)
    reclaim(broker)
    assert kept(broker) == 0
    after = rows(broker, "select n, event_id, enqueued_at, xid, publisher from pgps_queue.tick_in order by n")
    assert after == before
    assert rows(broker, "select n, state from pgps_queue.tick_out") == [(2, "delivered")]
    call(broker, "alter_queue", "tick_in", retention="3 hours")
    reclaim(broker)
    assert len(column(broker, "select n from pgps_queue.tick_in")) == 2
    clock.advance("90 minutes")
    reclaim(broker)
    assert column(broker, "select n from pgps_queue.tick_in") == [2]


def test_an_audited_event_is_received_again_from_earliest(broker: psycopg.Connection) -> None:
    call(broker, "alter_queue", "tick_in", auditable=True)
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch()")
    roll(broker)
    reclaim(broker)
    assert kept(broker) == 0
    publish(broker, "tick", 3)
    for name, condition in (("some", "n <> 2"), ("all", None)):
        call(broker, "subscribe", name, "tick", filter=condition, start="earliest")
    assert take(broker, "some") == [1, 3]
    assert take(broker, "all") == [1, 2, 3]
    roll(broker)
    reclaim(broker)
    assert sorted(column(broker, "select n from pgps_queue.tick_in")) == [1, 2, 3]


def test_earliest_begins_with_what_is_still_there(broker: psycopg.Connection) -> None:
    publish(broker, "tick", *range(50))
    rows(broker, "select pgps.dispatch()")
    roll(broker)
    publish(broker, "tick", 51)
    rows(broker, "select pgps.dispatch()")
    reclaim(broker)
    assert column(broker, "select n from pgps_internal.tick_log") == [51]
    call(broker, "subscribe", "all", "tick", start="earliest")
    assert numbers(broker, "all", 10) == [51]
    call(broker, "ack", "all")
    assert take(broker, "all") == []


def test_a_position_that_moves_during_reclaim_is_not_put_back(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    call(broker, "subscribe", "s", "tick")
    publish(broker, "tick", 1)
    assert take(broker, "s") == [1]
    publish(broker, "tick", 2)
    rows(broker, "select pgps.dispatch()")
    roll(broker)
    consumer = connect(autocommit=False, dsn=own_database)
    assert numbers(consumer, "s") == [2]
    call(consumer, "ack", "s")
    reclaim(broker)
    consumer.commit()
    reclaim(broker)
    assert take(broker, "s") == []


def test_what_a_writer_or_reader_uses_is_left_for_the_next_time(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    call(broker, "subscribe", "s", "tick")
    publish(broker, "tick", 1)
    writer, reader = connect(autocommit=False, dsn=own_database), connect(autocommit=False, dsn=own_database)
    publish(writer, "tick", 2)
    assert take(broker, "s") == [1]
    roll(broker)
    reclaim(broker)
    assert kept(broker) == 1
    writer.commit()
    reclaim(broker)
    assert take(broker, "s") == [2]
    rows(reader, "select * from pgps_queue.tick_in")
    reclaim(broker)
    assert kept(broker) == 2
    reader.rollback()
    reclaim(broker)
    assert kept(broker) == 0


def test_taken_numbers_and_totals_outlive_their_segment(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick")
    query = "insert into pgps_event.tick (n, _producer, _producer_seq) values (%s, 'p', %s)"
    for n in (1, 2):
        rows(broker, query, [n, n])
        assert take(broker, "s") == [n]
    rows(broker, LATER)
    reclaim(broker)
    assert kept(broker, "batch") == 1
    assert kept(broker, "delivery") == 0
    assert rows(broker, "select published, repeats from pgps.activity") == [(2, 0)]
    rows(broker, query, [1, 1])
    rows(broker, query, [3, 3])
    assert take(broker, "s") == [3]
    assert rows(broker, "select published, repeats from pgps.activity") == [(3, 1)]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_an_older_snapshot_cannot_reclaim(
    broker: psycopg.Connection, own_database: str, connect: Connect, isolation: str
) -> None:
    call(broker, "subscribe", "s", "tick")
    older = connect(autocommit=False, dsn=own_database)
    rows(older, f"set transaction isolation level {isolation}")
    rows(older, "select 1")
    publish(broker, "tick", 1)
    roll(broker)
    with refused("25001"):
        rows(older, "select pgps.reclaim(100)")
    assert take(broker, "s") == [1]


def test_only_a_worker_reclaims(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    with refused("42501"):
        rows(connect(role("nobody"), dsn=own_database), "select pgps.reclaim()")
    assert value(connect(role("worker", "pgps_worker"), dsn=own_database), "select pgps.reclaim()") == 0


_READ = """
select coalesce(sum(seq_tup_read), 0) + coalesce(sum(idx_tup_fetch), 0)
from pg_stat_xact_user_tables where schemaname in ('pgps_internal', 'pgps_link')
"""


def rows_read(connection: psycopg.Connection) -> int:
    """Reclaim once more, and return how many rows of the broker's tables that looked at."""
    with connection.transaction():
        before = value(connection, _READ)
        assert value(connection, "select pgps.reclaim(100)") == 0
        count = value(connection, _READ) - before
    return int(count)


@pytest.mark.parametrize("handler", ["all", "any"])
def test_it_looks_at_segments_not_at_the_events_that_a_dead_consumer_holds(
    broker: psycopg.Connection, handler: str
) -> None:
    call(broker, "subscribe", "dead", "tick", handler=handler)
    for _ in range(6):
        publish(broker, "tick", *range(2000))
        rows(broker, "select pgps.dispatch()")
        roll(broker)
    reclaim(broker)
    assert kept(broker) == 12000
    assert rows_read(broker) < 500


def test_statements_of_what_is_reclaimed_are_not_compared_with_events_that_are_held(
    broker: psycopg.Connection,
) -> None:
    """Transactions of many statements and one of many events, and a dead consumer of another type."""
    make_type(broker, "tock")
    call(broker, "subscribe", "dead", "tock")
    call(broker, "subscribe", "alive", "tick")
    for _ in range(3):
        with broker.transaction():
            publish(broker, "tock", 1)
            rows(
                broker, "do $$ begin for i in 1..400 loop insert into pgps_event.tick (n) values (i); end loop; end $$"
            )
            publish(broker, "tick", *range(600))
        roll(broker)
    rows(broker, "select pgps.dispatch()")
    assert len(take(broker, "alive", 5000)) == 3000
    publish(broker, "tick", 1)
    reclaim(broker)
    assert (kept(broker), kept(broker, "tock_log")) == (1, 3)
    assert rows_read(broker) < 500
    assert len(take(broker, "dead")) == 3
    reclaim(broker)
    assert (kept(broker, "tock_log"), kept(broker, "control")) == (0, 1)


def test_what_a_consumer_in_the_middle_of_a_large_transaction_needs_stays(broker: psycopg.Connection) -> None:
    call(broker, "configure", "max_part_events", "50")
    call(broker, "configure", "max_batch_events", "100")
    call(broker, "subscribe", "s", "tick")
    with broker.transaction():
        publish(broker, "tick", *range(200))
        roll(broker)
        publish(broker, "tick", *range(200, 400))
    roll(broker)
    assert take(broker, "s", 120) == list(range(120))
    publish(broker, "tick", 400)
    reclaim(broker)
    assert take(broker, "s", 100) == list(range(120, 220))
    reclaim(broker)
    assert take(broker, "s", 1000) == list(range(220, 401))
    reclaim(broker)
    assert kept(broker) == 1


def test_a_statement_that_began_in_another_segment_is_kept_as_long_as_its_events(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick")
    at = value(broker, "select last_value from pgps_internal.event_id_seq")
    rows(broker, "select setval('pgps_internal.event_id_seq', %s)", [(at // 65536 + 1) * 65536 - 10])
    publish(broker, "tick", *range(20))
    roll(broker)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "select * from pgps.take('s', 5)")
    publish(broker, "tick", 20)
    reclaim(broker)
    found = column(broker, "select published_at is not null from pgps.receive('s', 100)")
    assert found == [True] * 15
    assert take(broker, "s") == list(range(5, 21))
    reclaim(broker)
    assert (kept(broker), kept(broker, "control")) == (1, 1)
