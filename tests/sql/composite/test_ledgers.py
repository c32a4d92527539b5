"""What the detector keeps outlives the segments of its ledgers, and what is over does not come back with them."""

from __future__ import annotations

import psycopg

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_db import Connect

SEGMENT = 262_144


def publish(connection: psycopg.Connection, kind: str, *keys: str) -> None:
    rows(connection, f"insert into pgps_event.{kind} (k) select unnest(%s::text[])", [list(keys)])
    rows(connection, "select pgps.dispatch()")


def test_what_is_open_is_carried_over_when_segments_are_truncated(connect: Connect, own_database: str) -> None:
    broker = connect(dsn=own_database)
    for kind in "ab":
        make_type(broker, kind, "k text")
    call(broker, "create_composite_event", "it", "a ; b", context="chronicle", partition_by="k", max_open=10)
    publish(broker, "a", "open", "open", "closed")
    publish(broker, "b", "closed")
    first = value(broker, "select last_value from pgps_internal.composite_row_seq")
    for number in range(1, 6):
        # As if so many rows had been written by others.
        rows(broker, "select setval('pgps_internal.composite_row_seq', %s)", [number * SEGMENT])
        publish(broker, "a", f"other{number}")
        rows(broker, "select pgps.reclaim()")
        found = column(broker, "select partition_key ->> 0 from pgps.open_occurrences order by 1")
        assert found == ["open", "open", *(f"other{n}" for n in range(1, number + 1))]
    for ledger in ("composite_step", "composite_key", "composite_open"):
        assert value(broker, f"select min(row_id) from pgps_internal.{ledger}") > first
    publish(broker, "b", "closed", "open", "open", "open", "other1")
    assert value(broker, "select detected from pgps.composite_events") == 4
    found = column(broker, "select partition_key ->> 0 from pgps.open_occurrences order by 1")
    assert found == ["other2", "other3", "other4", "other5"]
