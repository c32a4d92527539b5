"""Old batches go with all that refers to them, and never before."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, rows, take, value
from tests.fix_db import Connect, lock_waiters, wait_until

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


def reclaim(connection: psycopg.Connection) -> None:
    while value(connection, "select pgps.reclaim(100)"):
        pass


def kept(connection: psycopg.Connection, relation: str) -> int:
    return int(value(connection, f"select count(*) from pgps_internal.{relation}"))


def test_what_an_auditable_queue_shows_does_not_change_while_somebody_reads_deliveries(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    call(broker, "alter_queue", "tick_out", auditable=True)
    call(broker, "subscribe", "s", "tick")
    publish(broker, "tick", 1)
    assert take(broker, "s") == [1]
    shown = "select n, state, matched_at from pgps_queue.tick_out"
    before = rows(broker, shown)
    assert [row[:2] for row in before] == [(1, "delivered")]
    rows(broker, LATER)
    reader = connect(autocommit=False, dsn=own_database)
    rows(reader, "select count(*) from pgps_internal.delivery")
    reclaim(broker)
    assert kept(broker, "delivery") == 1
    assert rows(broker, shown) == before
    reader.rollback()
    reclaim(broker)
    assert (kept(broker, "delivery"), kept(broker, "batch")) == (0, 1)
    assert rows(broker, shown) == before


def test_a_subscription_that_goes_back_while_batches_are_reclaimed_gets_them_again(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    call(broker, "subscribe", "s", "tick")
    publish(broker, "tick", 1)
    assert take(broker, "s") == [1]
    rows(broker, LATER)
    # Whoever reclaims has asked what is needed, and waits before it acts.
    definition: str = value(broker, "select pg_get_functiondef('pgps_internal.try_lock'::regproc)")
    locks = "    execute format('lock table only"
    assert locks in definition
    waits = "    perform pg_advisory_xact_lock_shared(7) where v_name = 'pgps_internal.delivery_0';\n"
    broker.execute(definition.replace(locks, waits + locks).encode())
    rows(broker, "select pg_advisory_lock(7)")
    other = connect(dsn=own_database)
    thread = threading.Thread(target=reclaim, args=(other,))
    thread.start()
    wait_until(lambda: lock_waiters(broker, 7), what="the other session waits")
    call(broker, "seek", "s", "earliest")
    rows(broker, "select pg_advisory_unlock(7)")
    thread.join()
    assert take(broker, "s") == [1]
    reclaim(broker)
    assert kept(broker, "batch") == 1
