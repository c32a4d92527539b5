"""A session keeps the state of composite events: it is never used when the tables say something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fix_broker import call, column, make_type, rows

if TYPE_CHECKING:
    import psycopg

    from tests.fix_db import Connect


class Pairs:
    """A database in which each number `a` is paired with the next number `b` that has no pair."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        for name in "ab":
            make_type(connection, name, "n integer")
        call(connection, "create_composite_event", "pair", "a ; b", context="chronicle", max_open=100)

    def publish(self, kind: str, *numbers: int) -> None:
        rows(self.connection, f"insert into pgps_event.{kind} select unnest(%s::integer[])", [list(numbers)])

    def found(self) -> list[tuple[int, int]]:
        query = """
            select (constituents -> 0 -> 'payload' ->> 'n')::integer, (constituents -> 1 -> 'payload' ->> 'n')::integer
            from pgps_internal.pair_log order by event_id"""
        return rows(self.connection, query)


@pytest.fixture
def pairs(connect: Connect, own_database: str) -> Pairs:
    return Pairs(connect(dsn=own_database))


@pytest.fixture
def one(connect: Connect, own_database: str, pairs: Pairs) -> psycopg.Connection:
    return connect(dsn=own_database)


@pytest.fixture
def two(connect: Connect, own_database: str, pairs: Pairs) -> psycopg.Connection:
    return connect(dsn=own_database)


def test_what_another_session_has_detected_since_counts(
    pairs: Pairs, one: psycopg.Connection, two: psycopg.Connection
) -> None:
    for number, session in enumerate((one, two, one, two)):
        pairs.publish("a", number)
        rows(session, "select pgps.dispatch()")
    pairs.publish("b", 10, 11)
    rows(one, "select pgps.dispatch()")
    pairs.publish("b", 12)
    rows(two, "select pgps.dispatch()")
    pairs.publish("b", 13, 14)
    rows(one, "select pgps.dispatch()")
    assert pairs.found() == [(0, 10), (1, 11), (2, 12), (3, 13)]


def test_what_was_rolled_back_does_not_count(pairs: Pairs, one: psycopg.Connection) -> None:
    pairs.publish("a", 1)
    rows(one, "select pgps.dispatch()")
    pairs.publish("a", 2)
    with one.transaction(force_rollback=True):
        rows(one, "select pgps.dispatch()")
        assert column(one, "select count(*) from pgps_internal.composite_step") == [2]
    pairs.publish("b", 11, 12, 13)
    with one.transaction(), one.transaction(force_rollback=True):
        rows(one, "select pgps.dispatch()")
    rows(one, "select pgps.dispatch()")
    assert pairs.found() == [(1, 11), (2, 12)]


def test_what_was_reset_or_altered_does_not_come_back(
    pairs: Pairs, one: psycopg.Connection, two: psycopg.Connection
) -> None:
    pairs.publish("a", 1, 2)
    rows(one, "select pgps.dispatch()")
    call(two, "reset_composite_event", "pair")
    pairs.publish("a", 3, 4, 5)
    rows(one, "select pgps.dispatch()")
    call(two, "alter_composite_event", "pair", max_open=3)
    pairs.publish("a", 6)
    rows(one, "select pgps.dispatch()")
    pairs.publish("b", 11, 12, 13)
    rows(one, "select pgps.dispatch()")
    assert pairs.found() == [(4, 11), (5, 12), (6, 13)]


def test_a_step_that_fails_leaves_nothing_behind(pairs: Pairs, one: psycopg.Connection) -> None:
    pairs.publish("a", 1)
    rows(one, "select pgps.dispatch()")
    # Publishing what the step detects is refused, so that the composite event is suspended where it was.
    rows(pairs.connection, "alter table pgps_internal.pair_log add constraint none check (event_id < 0) not valid")
    pairs.publish("b", 11)
    rows(one, "select pgps.dispatch()")
    assert pairs.found() == []
    rows(pairs.connection, "alter table pgps_internal.pair_log drop constraint none")
    call(pairs.connection, "alter_composite_event", "pair", True)
    pairs.publish("b", 12)
    rows(one, "select pgps.dispatch()")
    assert pairs.found() == [(1, 11)]
