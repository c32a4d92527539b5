"""Composite events that are suspended: who is told, and how they go on."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, make_type, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect

STATE = "select state, last_error from pgps.composite_events where name = 'it'"


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "count", "n integer")
    return connection


def publish(broker: psycopg.Connection, n: int) -> None:
    rows(broker, f"insert into pgps_event.count values ({n})")
    rows(broker, "select pgps.dispatch()")


def suspended(broker: psycopg.Connection, or_else: str = "") -> None:
    """Have the predicate of a leaf suspended, since its table is gone."""
    rows(broker, "create table public.wanted as select generate_series(1, 9) as n")
    call(broker, "create_composite_event", "it", f"count (n in (select w.n from public.wanted w)) a{or_else}")
    publish(broker, 1)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "alter table public.wanted rename to unwanted")
    publish(broker, 2)
    assert rows(broker, STATE) == [("suspended", 'filter: relation "public.wanted" does not exist')]


def test_one_whose_leaf_was_suspended_goes_on_where_it_was(broker: psycopg.Connection) -> None:
    suspended(broker)
    publish(broker, 3)
    rows(broker, "alter table public.unwanted rename to wanted")
    call(broker, "alter_composite_event", "it", enabled=True)
    publish(broker, 4)
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select state from pgps.composite_events where name = 'it'") == "active"
    seen = "select constituents -> 0 -> 'payload' -> 'n' from pgps_queue.it_log order by event_id"
    assert [n for (n,) in rows(broker, seen)] == [1, 2, 3, 4]


def test_one_that_is_not_mended_stays_suspended(broker: psycopg.Connection) -> None:
    suspended(broker)
    call(broker, "alter_composite_event", "it", enabled=True)
    publish(broker, 3)
    assert value(broker, "select state from pgps.composite_events where name = 'it'") == "suspended"


def test_nobody_looks_all_the_time_for_a_timer_that_waits_for_a_suspended_leaf(
    broker: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2026-03-01 12:00:30+00")
    call(broker, "create_composite_event", "hourly", "every('1 hour')")
    suspended(broker, " or every('1 minute')")
    clock.set("2026-03-01 12:59:50+00")
    publish(broker, 3)
    rows(broker, "select pgps.dispatch()")
    look = "select steps, more, round(timer::numeric) from pgps.detect_share()"
    assert rows(broker, look) == [(0, False, 10)]
    rows(broker, "alter table public.unwanted rename to wanted")
    call(broker, "alter_composite_event", "it", enabled=True)
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select detected from pgps.composite_events where name = 'it'") == 3 + 59


def test_whoever_watches_the_broker_is_told(broker: psycopg.Connection) -> None:
    told = "select name, error, hint from pgps.suspended_composite_events()"
    figures = "select labels, value from pgps.metrics() where metric = 'pgps_composite_event_suspended'"
    assert (rows(broker, told), rows(broker, figures)) == ([], [])
    suspended(broker)
    ((name, error, hint),) = rows(broker, told)
    assert (name, error) == ("it", 'filter: relation "public.wanted" does not exist')
    assert rows(broker, figures) == [({"composite_event": "it"}, 1.0)]
    rows(broker, "alter table public.unwanted rename to wanted")
    rows(broker, hint.removeprefix("mend the cause, then: "))
    rows(broker, "select pgps.dispatch()")
    assert (rows(broker, told), rows(broker, figures)) == ([], [])
    call(broker, "alter_composite_event", "it", enabled=False)
    assert rows(broker, told) == [], "it was stopped on purpose"
