"""Event time: order by an attribute, the watermark, lateness, sources that are silent."""

from __future__ import annotations

import psycopg
import pytest

from pgps._scripts import run
from tests.fix_broker import call, make_type, refused, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect

DAY = "2026-03-01 "


@pytest.fixture
def broker(connect: Connect, own_database: str, clock: Clock) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    clock.set(DAY + "12:00+00")
    for name in ("a", "b"):
        make_type(connection, name, "n integer, at timestamptz")
        call(connection, "alter_event_type", name, time_attribute="at")
    return connection


def publish(connection: psycopg.Connection, kind: str, n: int, at: str) -> None:
    rows(connection, f"insert into pgps_event.{kind} values (%s, %s)", [n, f"{DAY}{at}+00"])
    rows(connection, "select pgps.dispatch()")


def pairs(connection: psycopg.Connection) -> list[list[int]]:
    found = rows(connection, "select constituents from pgps_queue.it_in order by event_id")
    return [[part["payload"]["n"] for part in row[0]] for row in found]


def test_events_are_taken_in_order_of_their_own_times(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "it", "a ; b", time_basis="event", lateness="1 minute", auditable=True)
    publish(broker, "b", 1, "10:00:30")
    publish(broker, "a", 2, "10:00:10")
    assert pairs(broker) == []
    publish(broker, "a", 3, "10:05")
    publish(broker, "b", 4, "10:05:01")
    assert pairs(broker) == [[2, 1]]
    publish(broker, "b", 5, "10:01")
    late = rows(broker, "select name, event_type, reason from pgps.late_events")
    assert late == [("it", "b", "the watermark had passed its time")]
    assert value(broker, "select late from pgps.composite_events") == 1
    publish(broker, "a", 6, "10:10")
    publish(broker, "b", 7, "10:10")
    assert pairs(broker) == [[2, 1], [3, 4]]


def test_a_silent_source_holds_nothing_up(broker: psycopg.Connection, clock: Clock) -> None:
    call(broker, "create_composite_event", "it", "a x ; a y", time_basis="event")
    call(broker, "create_composite_event", "both", "a ; b", time_basis="event")
    publish(broker, "b", 0, "09:00")
    publish(broker, "a", 1, "10:00")
    publish(broker, "a", 2, "10:01")
    assert value(broker, "select detected from pgps.composite_events where name = 'both'") == 0
    publish(broker, "b", 3, "10:00:30")
    assert value(broker, "select detected from pgps.composite_events where name = 'both'") == 1
    publish(broker, "a", 4, "10:20")
    publish(broker, "b", 5, "10:02")
    clock.advance("10 minutes")
    rows(broker, "select pgps.dispatch()")
    # All are silent: the frontier is where the latest of them was, and what waited before that is taken.
    assert value(broker, "select detected from pgps.composite_events where name = 'both'") == 2
    assert value(broker, "select late from pgps.composite_events where name = 'both'") == 0


def test_no_source_is_silent_whose_events_are_only_not_taken_yet(broker: psycopg.Connection, clock: Clock) -> None:
    call(broker, "create_composite_event", "it", "a ; b", time_basis="event", auditable=True)
    publish(broker, "b", 1, "10:00")
    publish(broker, "a", 2, "10:00")
    call(broker, "alter_composite_event", "it", enabled=False)
    # More than one step takes, and behind it what the other source has said meanwhile.
    many = "insert into pgps_event.a select i, timestamptz '2026-03-01 10:00:01+00' + i * interval '1 ms' from"
    rows(broker, f"{many} generate_series(1, 20001) i")
    rows(broker, "select pgps.dispatch()")
    publish(broker, "b", 3, "10:00:05")
    clock.advance("2 minutes")
    call(broker, "alter_composite_event", "it", enabled=True)
    for _ in range(3):
        rows(broker, "select pgps.dispatch()")
    assert value(broker, "select late from pgps.composite_events") == 0
    assert pairs(broker) == [[4000, 3]]
    # Nor is what has been said in time forgotten when nothing more comes.
    publish(broker, "b", 4, "10:01")
    clock.advance("2 minutes")
    for _ in range(3):
        rows(broker, "select pgps.dispatch()")
    assert pairs(broker) == [[4000, 3], [20001, 4]]


def test_a_silent_source_holds_nothing_up_in_a_backlog(broker: psycopg.Connection, clock: Clock) -> None:
    call(broker, "create_composite_event", "it", "a ; b", time_basis="event")
    publish(broker, "b", 1, "10:00")
    publish(broker, "a", 2, "10:00")
    call(broker, "alter_composite_event", "it", enabled=False)
    clock.advance("2 minutes")
    many = "insert into pgps_event.a select i, timestamptz '2026-03-01 10:00:01+00' + i * interval '1 ms' from"
    rows(broker, f"{many} generate_series(1, 20001) i")
    rows(broker, "select pgps.dispatch()")
    publish(broker, "a", 3, "10:05")
    call(broker, "alter_composite_event", "it", enabled=True)
    last = "(pgps_internal.last_batch()).batch_id, pgps_internal.clock()"
    assert value(broker, f"select more from pgps_internal.detect_due({last}, 20000, 0, 1, null, 0)")
    reached = "select to_timestamp((ordering ->> 'frontier')::bigint / 1000000) at time zone 'utc' from"
    assert str(value(broker, f"{reached} pgps_internal.step_now")) == DAY + "10:00:21"


def test_one_silent_source_keeps_nothing_back(broker: psycopg.Connection, clock: Clock) -> None:
    call(
        broker, "create_composite_event", "it", "a (n > 0) x ; a (n > 0) y", time_basis="event", lateness="1 minute",
        auditable=True,
    )  # fmt: skip
    publish(broker, "a", 2, "10:00:20")
    publish(broker, "a", 1, "10:00:10")
    # No leaf gets it, so it tells nothing of how far the source is.
    publish(broker, "a", 0, "10:30")
    ids = [row[0] for row in rows(broker, "select event_id from pgps_queue.a_log where n > 0 order by n")]
    told = [rows(broker, "select * from pgps.explain_composite_event('it', %s)", [one]) for one in ids]
    assert told == [[("matched", "a (n > 0) x"), ("waits", "for the watermark")]] * 2
    clock.advance("10 minutes")
    rows(broker, "select pgps.dispatch()")
    assert pairs(broker) == [[1, 2]]
    told = [rows(broker, "select * from pgps.explain_composite_event('it', %s)", [one]) for one in ids]
    assert [[step for step, _ in one] for one in told] == [
        ["matched", "opened", "paired", "detected", "replaced"],
        ["matched", "paired", "detected", "opened"],
    ]
    # The source goes on where it was; what comes too late after all is told.
    publish(broker, "a", 3, "10:00:15")
    late = value(broker, "select max(event_id) from pgps_queue.a_log where n = 3")
    why = ("late", "the watermark had passed its time")
    assert rows(broker, "select * from pgps.explain_composite_event('it', %s)", [late]) == [why]
    publish(broker, "a", 4, "10:40")
    clock.advance("10 minutes")
    rows(broker, "select pgps.dispatch()")
    assert pairs(broker) == [[1, 2], [2, 4]]


@pytest.mark.parametrize("after", ["nothing", "reclaim", "alter", "upgrade"])
def test_a_composite_event_that_waits_for_the_watermark_is_read_from_the_tables(
    broker: psycopg.Connection, connect: Connect, own_database: str, clock: Clock, after: str
) -> None:
    make_type(broker, "c", "n integer, at timestamptz")
    call(broker, "alter_event_type", "c", time_attribute="at")
    clock.set(DAY + "09:57+00")
    call(broker, "configure", "idle_source", "1 hour")
    call(broker, "create_composite_event", "pair", "a ; b")
    call(broker, "create_composite_event", "it", "pair ; c", time_basis="event", auditable=True)
    clock.set(DAY + "09:58+00")
    publish(broker, "a", 1, "09:58")
    publish(broker, "c", 2, "10:00")
    # It begins before what the watermark has reached, and ends behind it.
    clock.set(DAY + "10:05+00")
    publish(broker, "b", 3, "10:05")
    rows(broker, "select pgps.dispatch()")
    waiting = "select node, role, since::text, open from pgps.open_occurrences join pgps.composite_events using (name)"
    shown = [("pair", "waits for the watermark", DAY + "09:58:00+00", 1)]
    assert rows(broker, f"{waiting} where name = 'it'") == shown
    if after == "reclaim":
        for number in range(1, 6):
            rows(broker, "select setval('pgps_internal.composite_row_seq', %s)", [number * 262_144])
            rows(broker, "select pgps.reclaim()")
    elif after == "alter":
        call(broker, "alter_composite_event", "it", max_open=5)
    elif after == "upgrade":
        former = "update pgps_internal.composite_open set start_at = (data ->> 1)::numeric where slot = -1"
        rows(broker, former)
        run(broker, ["schema/0038_waiting.sql"])
    assert rows(broker, f"{waiting} where name = 'it'") == shown
    other = connect(dsn=own_database)
    publish(other, "c", 4, "10:06")
    clock.advance("2 hours")
    for _ in range(2):
        rows(other, "select pgps.dispatch()")
    found = rows(broker, "select q.constituents -> -1 -> 'payload' ->> 'n', q.starts_at::text from pgps_queue.it_in q")
    assert found == [("4", DAY + "09:58:00+00")]


def test_a_clock_that_goes_back_is_held(broker: psycopg.Connection, clock: Clock) -> None:
    """By arrival time never decreases: nothing is lost or expires, and no tick fires twice."""
    clock.set("2026-03-01 12:00:00.5+00")
    call(broker, "create_composite_event", "pair", "a x ; b y", auditable=True)
    call(broker, "create_composite_event", "tick", "every('10 s')", auditable=True)
    rows(broker, "insert into pgps_event.a values (1, '2026-03-01')")
    for step in ("15 seconds", "-1 hour", "1 hour"):
        rows(broker, "select pgps.dispatch()")
        clock.advance(step)
    rows(broker, "select pgps.dispatch()")
    clock.advance("-10 seconds")
    rows(broker, "insert into pgps_event.b values (2, '2026-03-01')")
    # What the one call detects is dispatched by the next.
    assert [value(broker, "select pgps.dispatch()") for _ in range(3)] == [1, 1, 0]
    assert value(broker, "select ends_at >= starts_at from pgps_queue.pair_in")
    assert value(broker, "select count(*) from pgps_queue.tick_in") == 1


def test_a_time_attribute_is_a_time_and_never_null(broker: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        rows(broker, "insert into pgps_event.a values (1, null)")
    with refused("42804", "integer"):
        call(broker, "alter_event_type", "a", time_attribute="n")
    with refused("42703", "colour"):
        call(broker, "alter_event_type", "a", time_attribute="colour")
    call(broker, "create_composite_event", "it", "a ; b", time_basis="event")
    with refused("2BP01", "it"):
        call(broker, "alter_event_type", "a", time_attribute="")
    call(broker, "drop_event_type", "it")
    call(broker, "alter_event_type", "a", time_attribute="")
    rows(broker, "insert into pgps_event.a values (1, null)")
    with refused("22023", "no time attribute"):
        call(broker, "create_composite_event", "it", "a ; b", time_basis="event")


def test_a_time_that_is_none_suspends_nothing(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "it", "a ; b", time_basis="event", within="1 hour", auditable=True)
    call(broker, "create_composite_event", "come", "a ; b", within="1 hour")
    for n, at in enumerate(("infinity", "-infinity", "294276-12-31 23:59:59+00", "294246-01-01", "146000-01-02")):
        rows(broker, "insert into pgps_event.a values (%s, %s)", [n, at])
    rows(broker, "insert into pgps_event.b values (9, '4713-01-01 BC')")
    rows(broker, "select pgps.dispatch()")
    publish(broker, "a", 10, "10:00")
    publish(broker, "b", 11, "10:01")
    publish(broker, "a", 12, "10:02")
    publish(broker, "b", 13, "10:02")
    assert rows(broker, "select distinct state from pgps.composite_events") == [("active",)]
    late = rows(broker, "select event_type, reason, count(*) from pgps.late_events group by 1, 2")
    assert late == [("a", "its time is null", 5)]
    assert pairs(broker)[0] == [10, 11]
    tried = rows(broker, "select * from pgps.try_composite_event('a ; b', time_basis => 'event')")
    assert len(tried) >= 1
