"""What the detector keeps outlives the segments of its ledgers, and what is over does not come back with them."""

from __future__ import annotations

import psycopg

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.sql.composite.histories import Player

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


def test_a_part_that_a_new_filter_splits_closes_for_each_by_itself(
    connect: Connect, own_database: str, clock: Clock
) -> None:
    player = Player(connect(dsn=own_database), clock, "abcd")
    # Both halves are one part of the graph until the filter speaks of the first alone.
    text = "((a x ; b p) ; c) or ((a y ; b q) ; d)"
    player.create("it", text, context="chronicle", max_open=100)
    player.publish("a", "a1", 1, k=1)
    player.dispatch()
    call(player.connection, "alter_composite_event", "it", filter="x.k = p.k")
    for name, at, k in (("b1", 2, 2), ("b2", 3, 1), ("c1", 4, 0), ("d1", 5, 0)):
        player.publish(name[0], name, at, k=k)
        player.dispatch()
    names = [[name for _, name in parts] for _, _, _, parts in player.found("it")]
    assert names == [["a1", "b2", "c1"], ["a1", "b1", "d1"]]


def test_what_is_kept_beside_an_event_goes_with_the_segments_of_the_logs(connect: Connect, own_database: str) -> None:
    broker = connect(dsn=own_database)
    make_type(broker, "a", "k text")
    call(broker, "subscribe", "reader", "a")
    publish(broker, "a", "first")
    said = "insert into pgps_internal.rule_moment (after_event, type_id, moment) select %s, type_id, 'begin'"
    rows(broker, f"{said} from pgps_internal.event_type where name = 'a'", [1])
    rows(broker, f"{said} from pgps_internal.event_type where name = 'a'", [3 * 65_536])
    left = "select array_agg(after_event / 65536 order by 1) from pgps_internal.rule_moment"
    rows(broker, "select setval('pgps_internal.event_id_seq', %s)", [2 * 65_536])
    rows(broker, "select pgps.reclaim()")
    # The event of the first still waits in segment 0, which the marks of segment 3 may be about, too.
    assert value(broker, left) == [0, 3]
    rows(broker, "select from pgps.take('reader')")
    publish(broker, "a", "second")
    rows(broker, "select pgps.reclaim()")
    rows(broker, "select pgps.reclaim()")
    assert value(broker, left) is None
