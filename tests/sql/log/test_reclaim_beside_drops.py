"""Event types are dropped while pgps reclaims: no call fails, nobody is warned of what is gone, and nobody waits."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.fix_broker import call, make_type, meanwhile, numbers, publish, rows, take, value
from tests.fix_db import Connect, lock_waiters, wait_until
from tests.sql.log.test_reclaim import LATER, kept, roll

PATIENT = """
    alter function pgps_internal.reclaim_log(pgps_internal.event_type) set lock_timeout = '60s';
    alter function pgps_internal.reclaim_rows_of(pgps_internal.event_type) set lock_timeout = '60s'
"""
"""So that reclaim is still there when the other session goes on."""


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    """A session of a broker whose event types `first` and `second` have something to be reclaimed in each place."""
    connection = connect(dsn=own_database)
    for event_type in ("first", "second"):
        make_type(connection, event_type)
        call(connection, "alter_queue", f"{event_type}_out", auditable=True)
        call(connection, "subscribe", event_type, event_type, max_attempts=1)
        publish(connection, event_type, 1, 2)
        rows(connection, "select pgps.dispatch()")
        event = value(connection, "select min(event_id) from pgps.receive(%s)", [event_type])
        call(connection, "nack", event_type, event)
        call(connection, "ack", event_type)
        assert kept(connection, f"{event_type}_kept") == 1
    roll(connection)
    publish(connection, "second", 3)
    assert take(connection, "second") == [3]
    return connection


@pytest.fixture
def reclaimer(broker: psycopg.Connection, own_database: str, connect: Connect) -> psycopg.Connection:
    """A session that reclaims; it raises what it is warned of, and may not wait for long."""
    connection = connect(dsn=own_database)
    rows(connection, "set statement_timeout = '90s'")
    return connection


@pytest.fixture
def warned(reclaimer: psycopg.Connection) -> list[str]:
    """What the session that reclaims is told."""
    said: list[str] = []
    reclaimer.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    return said


def reclaim(session: psycopg.Connection) -> None:
    while rows(session, "select pgps.reclaim(100)")[0][0]:
        pass


@pytest.mark.parametrize("where", ["log", "kept"])
@pytest.mark.parametrize("dropped", ["first", "second"])
def test_a_type_that_is_dropped_after_it_was_listed_is_passed_over(
    broker: psycopg.Connection,
    reclaimer: psycopg.Connection,
    warned: list[str],
    own_database: str,
    connect: Connect,
    where: str,
    dropped: str,
) -> None:
    rows(broker, PATIENT)
    if where == "kept":
        reclaim(reclaimer)
    # Nobody needs the failed events any more.
    rows(broker, "delete from pgps_internal.failure")
    locked = {
        "log": "select inhrelid::regclass::text from pg_inherits where inhparent = 'pgps_internal.first_log'::regclass "
        "and pg_relation_size(inhrelid) > 0",
        "kept": "select 'pgps_internal.first_kept'",
    }
    drop = f"select pgps.drop_event_type('{dropped}', cascade => true)"
    with connect(dsn=own_database, autocommit=False) as holder:
        relation = value(holder, locked[where])
        rows(holder, f"lock table {relation} in access exclusive mode")
        # The types are listed; the size of something of the first is waited for.
        with meanwhile(broker, reclaimer, lambda: rows(reclaimer, "select pgps.reclaim(100)")):
            rows(holder if dropped == "first" else broker, drop)
            holder.commit()
    reclaim(reclaimer)
    assert warned == []
    left = {"first": "second", "second": "first"}[dropped]
    assert kept(broker, f"{left}_kept") == 0
    assert kept(broker, f"{left}_log") == (1 if left == "second" else 0)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_nobody_is_waited_for_who_drops_a_type_in_an_open_transaction(
    broker: psycopg.Connection,
    reclaimer: psycopg.Connection,
    warned: list[str],
    own_database: str,
    connect: Connect,
    end: str,
) -> None:
    rows(broker, LATER)
    with connect(dsn=own_database, autocommit=False) as holder:
        rows(holder, "select pgps.drop_event_type('first', cascade => true)")
        reclaim(reclaimer)
        assert kept(broker, "second_log") == 1
        assert kept(broker, "control") == 3, "the first type may need it"
        assert value(reclaimer, "select pgps_internal.lowest_event()") == 0
        getattr(holder, end)()
    reclaim(reclaimer)
    assert warned == []
    assert kept(broker, "control") == 1
    shown = "select n, state from pgps_queue.second_out order by n"
    assert rows(broker, shown) == [(1, "delivered"), (2, "delivered"), (3, "delivered")]


def test_a_log_that_is_gone_has_no_lowest_event(broker: psycopg.Connection) -> None:
    lowest = "select pgps_internal.lowest_event()"
    assert value(broker, lowest) == value(broker, "select min(event_id) from pgps_internal.first_log")
    call(broker, "drop_event_type", "first", cascade=True)
    assert value(broker, lowest) == value(broker, "select min(event_id) from pgps_internal.second_log")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_backlog_of_a_type_that_is_being_dropped_is_left_alone(
    broker: psycopg.Connection,
    reclaimer: psycopg.Connection,
    warned: list[str],
    own_database: str,
    connect: Connect,
    end: str,
) -> None:
    call(broker, "subscribe", "deep", "first")
    call(broker, "alter_subscription", "deep", max_backlog=1, on_backlog="drop_oldest")
    publish(broker, "first", 4, 5)
    rows(broker, "select pgps.dispatch()")
    with connect(dsn=own_database, autocommit=False) as holder:
        rows(holder, "select pgps.drop_event_type('first', cascade => true)")
        reclaim(reclaimer)
        getattr(holder, end)()
    reclaim(reclaimer)
    assert warned == []
    if end == "rollback":
        assert numbers(broker, "deep") == [5]


def test_a_load_whose_table_is_gone_goes_too(broker: psycopg.Connection, reclaimer: psycopg.Connection) -> None:
    call(broker, "configure", "load_retention", "0")
    for load in ("a", "b"):
        call(broker, "begin_load", "first", load)
    rows(broker, f"drop table {value(broker, 'select min(relation) from pgps_internal.load')}")
    reclaim(reclaimer)
    assert kept(broker, "load") == 0
    assert rows(broker, "select relname from pg_class where relnamespace = 'pgps_load'::regnamespace") == []


def paused(broker: psycopg.Connection, relation: str) -> None:
    """Let whoever is about to lock a relation exclusively wait for the advisory lock 7."""
    definition: str = value(broker, "select pg_get_functiondef('pgps_internal.try_lock'::regproc)")
    locks = "    execute format('lock table only"
    assert locks in definition
    waits = f"    perform pg_advisory_xact_lock_shared(7) where v_name = '{relation}' and mode = 'access exclusive';\n"
    broker.execute(definition.replace(locks, waits + locks).encode())


def test_a_rule_that_is_made_while_an_idle_trigger_is_dropped_keeps_it(
    broker: psycopg.Connection, reclaimer: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    rows(
        broker,
        "create function public.forbid(e pgps_event.first) returns void language plpgsql as "
        "$$ begin raise 'no' using errcode = 'ZZ001'; end $$",
    )
    reclaim(reclaimer)
    rule = "select pgps.subscribe('forbids', 'first', execute => 'public.forbid', coupling => 'immediate')"
    rows(broker, rule)
    call(broker, "unsubscribe", "forbids")
    paused(broker, "pgps_internal.first_log")
    rows(broker, "select pg_advisory_lock(7)")
    thread = threading.Thread(target=reclaim, args=(reclaimer,))
    thread.start()
    wait_until(lambda: lock_waiters(broker, 7), what="the trigger is found idle")
    rows(broker, rule)
    rows(broker, "select pg_advisory_unlock(7)")
    thread.join()
    with pytest.raises(psycopg.Error) as caught:
        publish(broker, "first", 9)
    assert caught.value.sqlstate == "ZZ001"
