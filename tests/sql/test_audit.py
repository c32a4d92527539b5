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


def _reclaim(broker: psycopg.Connection) -> None:
    broker.execute("insert into pgps_event.noise select generate_series(1, %s)", [_ONE_SEGMENT])
    broker.execute("select pgps.dispatch()")
    broker.execute("select pgps.reclaim(10)")
    assert broker.execute("select count(*) from pgps_internal.audited_log").fetchone() == (0,)


def _count(broker: psycopg.Connection, queue: str) -> list[tuple[object, ...]]:
    return broker.execute(f"select state, count(*) from pgps_queue.{queue} group by state".encode()).fetchall()
