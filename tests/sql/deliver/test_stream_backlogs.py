"""Streams that catch up: each step reads what is its own, however much waits behind it, and has an end."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import Connect

STEP = 100_000
READ = """
select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint from pg_stat_xact_user_tables
where schemaname = 'pgps_internal' and relname ~ '^delivery'
"""
BATCHES = """
insert into pgps_internal.batch
    (batch_id, previous, snapshot, upto, base_hi, max_hi, incarnation, started_at, created_at)
select batch_id + %s, previous, snapshot, upto, base_hi, max_hi, incarnation, started_at, created_at
from pgps_internal.batch order by batch_id desc limit 1
"""


@pytest.fixture
def reader(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    call(connection, "subscribe", "reader", "tick")
    publish(connection, "tick", 1)
    assert value(connection, "select pgps.dispatch()") == 1
    return connection


def wait_behind(connection: psycopg.Connection, batches: int) -> int:
    """Have the one event wait in so many batches more; return the last of them."""
    delivery = "select d.batch_id + g, class_id, type_id, events, event_ids, ids from pgps_internal.delivery d"
    rows(connection, f"insert into pgps_internal.delivery {delivery}, generate_series(1, %s) g", [batches])
    rows(connection, BATCHES, [batches])
    return int(value(connection, "select max(batch_id) from pgps_internal.batch"))


def test_a_step_reads_no_delivery_that_waits_behind_it(reader: psycopg.Connection) -> None:
    wait_behind(reader, 3000)
    start = call(reader, "open_stream", "reader")
    place = start["batch"], start["event"]
    for _ in range(3):
        with reader.transaction():
            before = value(reader, READ)
            end = call(reader, "end_of_stream", "reader", *place, 10)
            upto = end["batch"], end["event"]
            slices = rows(reader, "select * from pgps.slice_stream('reader', %s, %s, %s, %s)", [*place, *upto])
            assert len(slices) == end["events"] == call(reader, "ack_stream", "reader", *upto) == 10
            assert value(reader, READ) - before < 60
        place = upto


def test_a_step_has_an_end_and_what_is_beyond_it_is_still_given(reader: psycopg.Connection) -> None:
    last = wait_behind(reader, STEP + 50)
    start = call(reader, "open_stream", "reader")
    place = start["batch"], start["event"]
    end = call(reader, "end_of_stream", "reader", *place)
    assert end["events"] == STEP
    rest = call(reader, "end_of_stream", "reader", end["batch"], end["event"])
    assert (rest["batch"], rest["events"]) == (last, 51)
    # A step of a former release, whose end stands in a checkpoint, has no such end.
    asked = "select batch_id from pgps.slice_stream('reader', %s, %s, %s, %s)"
    found = [batch for (batch,) in rows(reader, asked, [*place, rest["batch"], rest["event"]])]
    assert found == list(range(last - STEP - 50, last + 1))


def test_a_step_ends_when_its_ids_are_many(reader: psycopg.Connection) -> None:
    many = "(select array_agg(g::bigint) from generate_series(1, 1000000) g)"
    rows(reader, f"update pgps_internal.delivery set event_ids = {many}, ids = null, events = 1000000")
    last = wait_behind(reader, 3)
    start = call(reader, "open_stream", "reader")
    place = start["batch"], start["event"]
    steps = []
    while place[0] < last:
        end = call(reader, "end_of_stream", "reader", *place)
        place = end["batch"], end["event"]
        steps.append(end["events"])
    assert steps == [2_000_000, 2_000_000]
    asked = "select batch_id, ids from pgps.slice_stream('reader', %s, %s, %s, %s)"
    found = rows(reader, asked, [start["batch"], start["event"], *place])
    assert [batch for batch, _ in found] == [last - 3, last - 2, last - 1, last]
