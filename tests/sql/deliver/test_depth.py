"""How much waits for a subscription, wherever that is said: not what is among the exceptions, or settled already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, ids, make_type, numbers, publish, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect


@pytest.fixture
def broker(own_database: str, connect: Connect, clock: Clock) -> psycopg.Connection:
    clock.set("2030-01-01 12:00+00")
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    return connection


def figures(broker: psycopg.Connection) -> tuple[Any, ...]:
    """Return the only subscription's depth, lag in events, its time, and whether it is dead; the views must agree."""
    found = rows(
        broker, "select depth, lag_events, lag_seconds::integer, oldest is not null, is_dead from pgps.subscriptions"
    )[0]
    assert rows(broker, "select depth, lag_seconds::integer from pgps.lag_counts()") == [(found[0], found[2])]
    assert value(broker, "select depth from pgps.queues where queue = 'tick_out'") == found[0]
    assert rows(broker, "select depth, lag_seconds::integer from pgps.totals()") == [(found[0], found[2])]
    assert found[:2] == (found[0], found[0])
    assert (found[0] > 0) == found[3]
    return found[0], found[2], found[4]


@pytest.mark.parametrize("handler", ["all", "any"])
def test_events_among_the_exceptions_do_not_wait(broker: psycopg.Connection, clock: Clock, handler: str) -> None:
    call(broker, "subscribe", "some", "tick", handler=handler, max_attempts=1)
    call(broker, "alter_subscription", "some", dead_after="1 minute")
    publish(broker, "tick", 1, 2, 3, 4, 5)
    call(broker, "dispatch")
    clock.advance("90 seconds")
    made = ids(broker, "some")
    for place in (4, 2):
        call(broker, "nack", "some", made[place])
    assert figures(broker)[:2] == (3, 90)
    assert call(broker, "ack", "some", made[3]) == 3
    clock.advance("90 seconds")
    assert figures(broker) == (0, 0, False), "nobody has anything to receive, and nobody is dead"
    assert numbers(broker, "some") == []


def test_events_that_are_settled_before_others_do_not_wait(broker: psycopg.Connection, clock: Clock) -> None:
    call(broker, "subscribe", "some", "tick")
    publish(broker, "tick", 1, 2, 3)
    call(broker, "dispatch")
    made = ids(broker, "some")
    call(broker, "nack", "some", made[1])
    assert figures(broker)[0] == 3, "what is to come again waits"
    clock.advance("1 hour")
    assert rows(broker, "select event_id from pgps.take('some', 1)") == [(made[1],)]
    assert figures(broker)[0] == 2
    assert numbers(broker, "some") == [1, 3]
    assert call(broker, "ack", "some") == 2
    assert figures(broker)[0] == 0


@pytest.mark.parametrize("on_backlog", ["suspend", "drop"])
def test_exceptions_count_for_no_limit_of_what_waits(broker: psycopg.Connection, on_backlog: str) -> None:
    call(broker, "subscribe", "some", "tick", max_attempts=1)
    call(broker, "alter_subscription", "some", max_backlog=3, on_backlog=on_backlog)
    publish(broker, "tick", 1, 2, 3, 4, 5)
    call(broker, "dispatch")
    made = ids(broker, "some")
    for place in (3, 1):
        call(broker, "nack", "some", made[place])
    call(broker, "reclaim")
    assert value(broker, "select state from pgps.subscriptions") == "active"
    publish(broker, "tick", 6)
    call(broker, "dispatch")
    call(broker, "reclaim")
    if on_backlog == "suspend":
        assert value(broker, "select last_error from pgps.subscriptions").startswith("backlog: 4 events wait")
    else:
        assert numbers(broker, "some") == [3, 5, 6]
        assert figures(broker)[0] == 3


def test_who_is_a_stranger_to_a_subscription_is_not_told_what_is_over_for_it(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    mine, nobody = role("mine"), role("nobody")
    rows(broker, f"revoke all on pgps_event.tick from public; grant select on pgps_event.tick to {mine}")
    session = connect(mine, dsn=own_database)
    call(session, "subscribe", "some", "tick", max_attempts=1)
    publish(broker, "tick", 1, 2, 3)
    call(broker, "dispatch")
    made = ids(session, "some")
    call(session, "nack", "some", made[1])
    number = value(broker, "select subscription_id from pgps.subscriptions")
    kind = value(broker, "select type_id from pgps_internal.event_type where name = 'tick'")
    asked = f"select pgps._over_ids({number}, {kind}, -1, 0)::text"
    told = [value(each, asked) for each in (broker, session, connect(nobody, dsn=own_database))]
    assert told == [f"{{[{made[1]},{made[1] + 1})}}"] * 2 + ["{}"]
    assert value(session, "select depth from pgps.subscriptions") == 2


def test_exceptions_that_the_position_has_passed_are_not_read_to_count_what_waits(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "some", "tick", max_attempts=1)
    publish(broker, "tick", *range(5000))
    call(broker, "dispatch")
    call(broker, "nack_events", "some", ids(broker, "some", 5000), "no")
    publish(broker, "tick", 1)
    call(broker, "dispatch")
    rows(broker, "vacuum analyze pgps_internal.failure")

    def read() -> int:
        rows(broker, "select pg_stat_force_next_flush()")
        return int(
            value(
                broker,
                "select sum(idx_tup_fetch + seq_tup_read) from pg_stat_all_tables"
                " where relid = 'pgps_internal.failure'::regclass",
            )
        )

    before = read()
    assert value(broker, "select depth from pgps.subscriptions") == 1
    assert read() - before < 50
