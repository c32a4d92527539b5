"""The setting buffer_events bounds what all consumers together hold unacknowledged; the live ones share it."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, numbers, publish, refused, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "t")
    for name in ("one", "two"):
        call(connection, "subscribe", name, "t")
    publish(connection, "t", *range(1, 31))
    rows(connection, "select pgps.dispatch()")
    return connection


def test_without_a_bound_a_consumer_may_hold_all(broker: psycopg.Connection) -> None:
    assert value(broker, "select value from pgps.settings where name = 'buffer_events'") == "1000000000"
    assert len(numbers(broker, "one")) == 30
    for wrong in ("0", "-1", "many"):
        with refused("22023", "buffer_events"):
            call(broker, "configure", "buffer_events", wrong)


def test_live_consumers_share_the_buffer_and_a_paused_one_has_no_part(broker: psycopg.Connection) -> None:
    call(broker, "configure", "buffer_events", "10")
    assert numbers(broker, "one") == [1, 2, 3, 4, 5]
    assert numbers(broker, "two") == [1, 2, 3, 4, 5]
    assert numbers(broker, "one") == [1, 2, 3, 4, 5]
    assert call(broker, "ack", "one") == 5
    assert numbers(broker, "one") == [6, 7, 8, 9, 10]
    call(broker, "pause", "two")
    assert call(broker, "ack", "one") == 5
    assert len(numbers(broker, "one")) == 10
    # What it does not hold for longer than a moment needs no room.
    assert len(column(broker, "select event_id from pgps.take('one', 100)")) == 20


def test_who_comes_while_others_hold_all_waits_for_their_acknowledgement(broker: psycopg.Connection) -> None:
    call(broker, "pause", "two")
    call(broker, "configure", "buffer_events", "10")
    assert len(numbers(broker, "one")) == 10
    call(broker, "resume", "two")
    assert numbers(broker, "two") == []
    assert call(broker, "ack", "two") == 0
    assert call(broker, "ack", "one") == 10
    assert len(numbers(broker, "one")) == 5
    assert len(numbers(broker, "two")) == 5
    both = column(broker, "select n from pgps_queue.t_receive(array['one', 'two'], 100)")
    assert sorted(both) == [1, 2, 3, 4, 5, 11, 12, 13, 14, 15]


def test_the_share_of_a_consumer_that_is_presumed_dead_goes_to_the_others(
    broker: psycopg.Connection, clock: Clock
) -> None:
    start = value(broker, "select pgps._clock()")
    clock.set(start)
    call(broker, "configure", "buffer_events", "10")
    call(broker, "alter_subscription", "two", dead_after="1 minute")
    assert len(numbers(broker, "two")) == 5
    assert len(numbers(broker, "one")) == 5
    clock.set(start + timedelta(minutes=2))
    assert value(broker, "select state from pgps.subscriptions where name = 'two'") == "dead"
    assert len(numbers(broker, "one")) == 10
    assert call(broker, "ack", "one") == 10
    # It goes on where it was.
    assert numbers(broker, "two") == [1, 2, 3, 4, 5]
    assert call(broker, "ack", "two") == 5
    assert value(broker, "select state from pgps.subscriptions where name = 'two'") == "active"
    assert len(numbers(broker, "one")) == 5


def test_each_consumer_of_a_shared_subscription_has_its_own_share(broker: psycopg.Connection) -> None:
    for name in ("one", "two"):
        call(broker, "unsubscribe", name)
    call(broker, "subscribe", "work", "t", start="earliest", handler="any")
    rows(broker, "select pgps.dispatch()")
    call(broker, "configure", "buffer_events", "10")

    def lease(consumer: str) -> list[int]:
        query = "select (payload ->> 'n')::integer from pgps.receive('work', 100, %s)"
        return column(broker, query, [consumer])

    first = lease("ann")
    assert len(first) == 10
    assert lease("bob") == []
    assert call(broker, "ack", "work", None, "ann") == 10
    assert len(lease("ann")) == 10
    assert call(broker, "ack", "work", None, "ann") == 10
    second = lease("bob")
    assert len(second) == 10
    assert not set(first) & set(second)
