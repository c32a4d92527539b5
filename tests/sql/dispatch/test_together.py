"""Many event types in one batch are dispatched together: the same is delivered and counted as type by type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fix_broker import call, column, ids, make_type, numbers, publish, rows, value

if TYPE_CHECKING:
    import psycopg

    from tests.fix_db import Connect

MANY = [f"t{number}" for number in range(12)]


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    for name in MANY:
        make_type(connection, name)
    return connection


def noted(broker: psycopg.Connection) -> list[tuple[object, ...]]:
    """Return what is noted of each type in its newest batch."""
    return rows(
        broker,
        """
        select distinct on (t.name) t.name, b.ids::text, b.events, b.total, b.repeats
        from pgps_internal.batch_type b join pgps_internal.event_type t using (type_id)
        order by t.name, b.batch_id desc""",
    )


def test_each_type_gets_its_events_and_its_totals(broker: psycopg.Connection) -> None:
    for name in MANY[:6]:
        call(broker, "subscribe", f"all_{name}", name)
        call(broker, "subscribe", f"high_{name}", name, "n > 10")
    for first in (1, 11):
        for name in MANY:
            publish(broker, name, first, first + 1)
        assert value(broker, "select pgps.dispatch()") == 24
        assert [row[0] for row in noted(broker)] == sorted(MANY)
    for name in MANY[:6]:
        assert numbers(broker, f"all_{name}") == [1, 2, 11, 12]
        assert numbers(broker, f"high_{name}") == [11, 12]
    assert {row[2:] for row in noted(broker)} == {(2, 4, 0)}
    # Who comes later finds them by what is noted.
    call(broker, "subscribe", "late", "t11", start="earliest")
    assert numbers(broker, "late") == [1, 2, 11, 12]


def test_ids_of_interleaved_transactions_are_those_of_the_type(broker: psycopg.Connection, connect: Connect) -> None:
    other = connect(dsn=broker.info.dsn)
    for name in MANY:
        call(broker, "subscribe", f"s_{name}", name)
    with broker.transaction(), other.transaction():
        for name in MANY:
            publish(broker, name, 1)
            publish(other, name, 2)
            publish(broker, name, 3)
    with other.transaction(force_rollback=True):
        publish(other, "t0", 4)
    publish(broker, "t0", 5)
    assert value(broker, "select pgps.dispatch()") == 37
    assert [sorted(numbers(broker, f"s_{name}")) for name in MANY] == [[1, 2, 3, 5]] + 11 * [[1, 2, 3]]
    logged = "select array_agg(event_id order by event_id) from pgps_internal.t0_log where n <> 4"
    assert sorted(ids(broker, "s_t0")) == value(broker, logged)


def test_repeats_and_types_that_were_dropped_are_left_out(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "t0")
    for _ in range(2):
        with broker.transaction():
            for name in MANY:
                publish(broker, name, 1)
            rows(broker, "insert into pgps_event.t0 (n, _producer, _producer_seq) values (2, 'p', 7)")
    call(broker, "drop_event_type", "t11", cascade=True)
    assert value(broker, "select pgps.dispatch()") == 2 * 11 + 1
    assert sorted(numbers(broker, "s")) == [1, 1, 2]
    assert noted(broker)[0][2:] == (3, 3, 1)


def test_a_type_that_fails_is_set_aside_and_the_others_go_on(broker: psycopg.Connection) -> None:
    for name in MANY:
        call(broker, "subscribe", f"s_{name}", name)
        publish(broker, name, 1)
    type_id = value(broker, "select type_id from pgps_internal.event_type where name = 't5'")
    rows(broker, f"drop function pgps_internal.part_ids_{type_id}")
    # Once it may have been changed at this very moment: it is tried again, and then set aside for good.
    assert [value(broker, "select pgps.dispatch()") for _ in range(2)] == [11, 0]
    assert column(broker, "select event_type from pgps.broken_types()") == ["t5"]
    assert numbers(broker, "s_t4") == numbers(broker, "s_t6") == [1]


def test_what_is_noted_crosses_segments(broker: psycopg.Connection) -> None:
    for name in MANY:
        publish(broker, name, 1)
    rows(broker, "select pgps.dispatch()")
    # Batches in between, as if there had been that many.
    rows(broker, "update pgps_internal.batch set batch_id = 4095")
    rows(broker, "update pgps_internal.batch_type set batch_id = 4095")
    for name in MANY:
        publish(broker, name, 2)
    rows(broker, "select pgps.dispatch()")
    assert {row[2:] for row in noted(broker)} == {(1, 2, 0)}
    assert value(broker, "select max(batch_id) from pgps_internal.batch") == 4096


@pytest.fixture
def detecting(broker: psycopg.Connection) -> psycopg.Connection:
    """Return a broker with many composite events, of which some detect nothing."""
    make_type(broker, "a")
    for number in range(12):
        call(broker, "create_composite_event", f"c{number}", f"a (n % 12 = {number})", attributes="n int = a.n")
        call(broker, "subscribe", f"s_c{number}", f"c{number}")
    return broker


def functions_of_detected(broker: psycopg.Connection) -> list[str]:
    """Return what looks for the events of composite events in their logs."""
    named = "select 'pgps_internal.part_ids_' || type_id from pgps_internal.composite order by 1"
    return [str(name) for name in column(broker, named)]


def test_what_was_detected_says_itself_which_events_it_is(detecting: psycopg.Connection) -> None:
    publish(detecting, "a", *range(36))
    assert value(detecting, "select pgps.dispatch()") == 36
    for function in functions_of_detected(detecting):
        rows(detecting, f"drop function {function}")
    assert value(detecting, "select pgps.dispatch()") == 36
    for number in range(12):
        assert numbers(detecting, f"s_c{number}") == [number, number + 12, number + 24]
    assert {row[2:] for row in noted(detecting) if str(row[0]).startswith("c")} == {(3, 3, 0)}
    assert column(detecting, "select event_type from pgps.broken_types()") == []


def test_what_was_detected_is_looked_for_where_other_events_may_lie_between(detecting: psycopg.Connection) -> None:
    rows(detecting, "alter sequence pgps_internal.event_id_seq increment 2")
    publish(detecting, "a", *range(36))
    rows(detecting, "select pgps.dispatch()")
    assert column(detecting, "select distinct is_dense from pgps_internal.control where is_dense is not null") == [
        False
    ]
    assert value(detecting, "select pgps.dispatch()") == 36
    for number in range(12):
        assert numbers(detecting, f"s_c{number}") == [number, number + 12, number + 24]
    assert {row[2:] for row in noted(detecting) if str(row[0]).startswith("c")} == {(3, 3, 0)}


def test_a_log_that_a_crash_may_empty_is_looked_at(detecting: psycopg.Connection) -> None:
    rows(detecting, "update pgps_internal.event_type set persistent = false where name ^@ 'c'")
    publish(detecting, "a", *range(36))
    rows(detecting, "select pgps.dispatch()")
    rows(detecting, "delete from pgps_internal.c3_log")
    assert value(detecting, "select pgps.dispatch()") == 33
    assert numbers(detecting, "s_c3") == []


def test_what_was_detected_waits_for_who_alters_its_event_type(detecting: psycopg.Connection, connect: Connect) -> None:
    publish(detecting, "a", *range(36))
    rows(detecting, "select pgps.dispatch()")
    other = connect(dsn=detecting.info.dsn)
    with other.transaction():
        rows(other, "lock table pgps_internal.c5_log")
        rows(detecting, "set lock_timeout = '100ms'")
        assert value(detecting, "select pgps.dispatch()") == 33
        assert numbers(detecting, "s_c4") == [4, 16, 28]
    rows(detecting, "select pgps.dispatch()")
    assert numbers(detecting, "s_c5") == [5, 17, 29]
