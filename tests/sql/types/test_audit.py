"""An auditable queue keeps what it showed when the log's segment is gone; a queue that is not auditable does not."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_db import Connect

# The log's segments are 65,536 event ids long; the current one is never reclaimed.
_ONE_SEGMENT = 70_000


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    """A broker with ten delivered events of type `audited`, the fourth of them given up, and another type."""
    connection = connect(dsn=own_database)
    connection.execute(
        """
        select pgps.create_event_type('audited', 'number integer, document json', auditable => true),
            pgps.create_event_type('noise', 'number integer')
        """
    )
    connection.execute("select pgps.advertise('audited'), pgps.advertise('noise')")
    connection.execute("select pgps.subscribe('reader', 'audited', max_attempts => 1)")
    connection.execute("insert into pgps_event.audited (number) select generate_series(1, 10)")
    connection.execute("select pgps.dispatch()")
    received = connection.execute("select event_id from pgps.receive('reader')").fetchall()
    connection.execute("select pgps.nack('reader', %s, 'no use')", received[3])
    connection.execute("select pgps.ack('reader')")
    connection.execute("select pgps.discard_exception('audited')")
    return connection


def test_all_three_auditable_queues_outlive_the_segment(broker: psycopg.Connection) -> None:
    _reclaim(broker)
    assert _count(broker, "audited_in") == [("archived", 10)]
    assert _count(broker, "audited_out") == [("delivered", 10)]
    assert _count(broker, "audited_exception") == [("discarded", 1)]
    assert broker.execute("select number from pgps_queue.audited_exception").fetchall() == [(4,)]


def test_the_out_queue_is_kept_though_the_in_queue_is_not(broker: psycopg.Connection) -> None:
    broker.execute("select pgps.alter_queue('audited_in', auditable => false)")
    _reclaim(broker)
    assert _count(broker, "audited_in") == []
    assert _count(broker, "audited_out") == [("delivered", 10)]


def test_an_archive_goes_when_no_queue_wants_it_any_longer(broker: psycopg.Connection) -> None:
    for queue in ("audited_in", "audited_out"):
        broker.execute("select pgps.alter_queue(%s, retention => '0')", [queue])
    _reclaim(broker)
    broker.execute("select pgps.reclaim(10)")
    assert _count(broker, "audited_in") == []
    assert broker.execute("select count(*) from pgps_internal.audited_audit").fetchone() == (0,)


@pytest.mark.parametrize("handler", ["all", "any"])
def test_what_was_delivered_and_what_failed_outlives_the_subscription(broker: psycopg.Connection, handler: str) -> None:
    """Not what still waited for it: that is not kept for it."""
    broker.execute("select pgps.subscribe('second', 'audited', handler => %s, max_attempts => 1)", [handler])
    broker.execute("insert into pgps_event.audited (number) select generate_series(11, 15)")
    broker.execute("select pgps.dispatch()")
    (failing,), *_ = broker.execute("select event_id from pgps.receive('second', 3)").fetchall()
    broker.execute("select pgps.nack('second', %s, 'no')", [failing])
    broker.execute("select pgps.ack('second')")
    seen = "select number, state from pgps_queue.audited_{} where subscription = 'second' order by number"
    assert _rows(broker, seen.format("out") + " limit 4") == [
        (11, "failed"),
        (12, "delivered"),
        (13, "delivered"),
        (14, "waiting"),
    ]
    broker.execute("select pgps.unsubscribe('second')")
    for _ in range(2):
        assert _rows(broker, seen.format("out")) == [(12, "delivered"), (13, "delivered")]
        assert _rows(broker, seen.format("exception")) == [(11, "discarded")]
        broker.execute("select pgps.receive('reader'), pgps.ack('reader')")
        _reclaim(broker)
        _next_segment_of_batches(broker)
    broker.execute("select pgps.alter_queue('audited_out', retention => '0')")
    broker.execute("select pgps.reclaim(10)")
    assert _rows(broker, seen.format("out")) == []
    assert _rows(broker, "select * from pgps_internal.former") == []


def test_what_was_delivered_before_a_subscription_moved_is_still_shown(broker: psycopg.Connection) -> None:
    broker.execute("select pgps.seek('reader', 'earliest')")
    assert _count(broker, "audited_out") == [("delivered", 10), ("waiting", 10)]
    broker.execute("select pgps.seek('reader', 'now')")
    assert _count(broker, "audited_out") == [("delivered", 10)]


def _next_segment_of_batches(broker: psycopg.Connection) -> None:
    """Let the dispatcher go on with a batch of the next segment, and give the last one back."""
    broker.execute(
        """
        insert into pgps_internal.batch
        select batch_id + 4096, previous, snapshot, upto, base_hi, max_hi, incarnation, started_at, created_at
        from pgps_internal.batch order by batch_id desc limit 1
        """
    )
    broker.execute("insert into pgps_event.noise values (1)")
    broker.execute("select pgps.dispatch()")
    broker.execute("select pgps.reclaim(10)")
    assert broker.execute("select count(*) from pgps_internal.delivery").fetchone() == (0,)


def _reclaim(broker: psycopg.Connection) -> None:
    broker.execute("insert into pgps_event.noise select generate_series(1, %s)", [_ONE_SEGMENT])
    broker.execute("select pgps.dispatch()")
    broker.execute("select pgps.reclaim(10)")
    assert broker.execute("select count(*) from pgps_internal.audited_log").fetchone() == (0,)


def _count(broker: psycopg.Connection, queue: str) -> list[tuple[object, ...]]:
    return broker.execute(f"select state, count(*) from pgps_queue.{queue} group by state".encode()).fetchall()


def _rows(broker: psycopg.Connection, query: str) -> list[tuple[object, ...]]:
    return broker.execute(query.encode()).fetchall()
