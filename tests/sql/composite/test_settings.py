"""Settings in which definitions were written: search_path, time zone, date style."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, make_type, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "quote", "symbol text, day timestamptz")
    return connection


def test_a_new_filter_has_the_settings_of_the_session_that_gives_it(broker: psycopg.Connection) -> None:
    rows(broker, "create schema here; create schema there")
    rows(broker, "create table there.watched as select 'B'::text as symbol")
    rows(broker, "create table here.watched as select 'A'::text as symbol")
    rows(broker, "set search_path = here; set datestyle = 'ISO, MDY'")
    asked = "b.symbol in (select w.symbol from watched w)"
    call(
        broker, "create_composite_event", "it", "quote (symbol in (select w.symbol from watched w)) a ; quote b",
        filter=asked, attributes="found text = b.symbol",
    )  # fmt: skip
    rows(broker, "set search_path = there; set datestyle = 'ISO, DMY'")
    # A condition for each setting, and the leaf keeps its own.
    call(broker, "alter_composite_event", "it", filter=f"{asked} and b.day > '01/02/2026'")
    rows(broker, "reset search_path; reset datestyle")
    for symbol, day in (("A", "2026-01-15"), ("A", "2026-03-01"), ("B", "2026-01-15"), ("B", "2026-03-01")):
        rows(broker, "insert into pgps_event.quote values (%s, %s)", [symbol, day])
        rows(broker, "select pgps.dispatch(), pgps.dispatch()")
    call(broker, "alter_composite_event", "it", max_open=5)
    for symbol, day in (("A", "2026-03-01"), ("B", "2026-01-20"), ("B", "2026-03-02")):
        rows(broker, "insert into pgps_event.quote values (%s, %s)", [symbol, day])
        rows(broker, "select pgps.dispatch(), pgps.dispatch()")
    rows(broker, "insert into pgps_event.quote values ('A', '2026-03-02')")
    rows(broker, "select pgps.dispatch(), pgps.dispatch()")
    assert rows(broker, "select found from pgps_queue.it_log order by event_id") == [("B",), ("B",)]
    assert rows(broker, "select state, last_error from pgps.composite_events") == [("active", None)]


def test_what_is_tried_has_the_settings_of_the_session_as_what_is_created(
    broker: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2026-03-01 12:00:00+00")
    rows(broker, "insert into pgps_event.quote values ('A', '2026-02-01 00:30+00')")
    rows(broker, "select pgps.dispatch()")
    clock.set("2026-03-02 15:00:00+00")
    rows(broker, "insert into pgps_event.quote values ('B', '2026-02-02 00:30+00')")
    rows(broker, "select pgps.dispatch()")
    rows(broker, "set timezone = 'America/New_York'; set datestyle = 'ISO, DMY'")
    tried = "select o from pgps.try_composite_event(%s) o"
    night = "quote (extract(hour from day) >= 19 and day < '2/2/2026') a"
    assert len(rows(broker, tried, [night])) == 2, "half past seven in the evening before"
    ends = (
        "select array_agg((o ->> 'ends_at')::timestamptz at time zone 'UTC')::text from pgps.try_composite_event(%s) o"
    )
    ticks = value(broker, ends, ["quote a ; cron('0 8 * * *')"])
    assert ticks == '{"2026-03-01 13:00:00","2026-03-02 13:00:00"}', "eight in the morning over there"
    given = ["hour int = extract(hour from a.day)", "a.day < '1/2/2026 00:00'"]
    ((found,),) = rows(
        broker, "select o from pgps.try_composite_event('quote a', attributes => %s, filter => %s) o", given
    )
    assert found["hour"] == 19
    assert found["constituents"][0]["payload"]["day"] == "2026-02-01T00:30:00+00:00", "as a detector has it"
