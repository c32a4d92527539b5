"""External subscriptions: receive, ack and nack."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import (
    call,
    column,
    endpoint,
    ids,
    make_type,
    numbers,
    publish,
    refused,
    rows,
    sink,
    take,
    value,
)
from tests.fix_clock import Clock
from tests.fix_db import Connect

Name = Callable[..., str]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    """A type and a subscription of one name."""
    made = name("tick")
    make_type(admin, made)
    call(admin, "subscribe", made, made)
    return made


def ready(admin: psycopg.Connection, tick: str, *given: int) -> None:
    publish(admin, tick, *given)
    rows(admin, "select pgps.dispatch()")


def test_an_event_comes_with_what_is_known_of_it(admin: psycopg.Connection, tick: str) -> None:
    ready(admin, tick, 1)
    event = rows(admin, "select * from pgps.receive(%s)", [tick])
    event_id, event_type, payload, published_at, publisher, xid, origin, attempt = event[0]
    assert (event_type, payload, publisher, attempt) == (tick, {"n": 1}, admin.info.user, 1)
    assert origin == admin.info.dbname
    query = f"select xid, enqueued_at from pgps_queue.{tick}_in where event_id = %s"
    assert rows(admin, query, [event_id]) == [(xid, published_at)]


def test_events_are_repeated_until_they_are_acknowledged(admin: psycopg.Connection, tick: str) -> None:
    ready(admin, tick, 1, 2, 3)
    assert numbers(admin, tick, 2) == [1, 2]
    assert numbers(admin, tick) == [1, 2, 3]
    assert column(admin, "select attempt from pgps.receive(%s)", [tick]) == [2, 2, 2]
    assert call(admin, "ack", tick) == 3
    assert numbers(admin, tick) == []
    assert call(admin, "ack", tick) == 0


def test_ack_covers_what_was_received_and_no_more(admin: psycopg.Connection, tick: str) -> None:
    ready(admin, tick, 1, 2)
    assert numbers(admin, tick, 1) == [1]
    ready(admin, tick, 3)
    assert call(admin, "ack", tick) == 1
    assert numbers(admin, tick) == [2, 3]


def test_ack_up_to_an_event_covers_those_before_it(admin: psycopg.Connection, tick: str) -> None:
    ready(admin, tick, 1, 2)
    ready(admin, tick, 3, 4)
    got = ids(admin, tick)
    assert call(admin, "ack", tick, got[2]) == 3
    assert numbers(admin, tick) == [4]
    with refused("55000", str(got[0])):
        call(admin, "ack", tick, got[0])


def test_what_was_not_received_cannot_be_acknowledged(admin: psycopg.Connection, tick: str) -> None:
    ready(admin, tick, 1, 2)
    first = ids(admin, tick, 1)[0]
    for wrong in (first + 1, first + 1000, 0, -1):
        with refused("55000", str(wrong), "receive"):
            call(admin, "ack", tick, wrong)
        with refused("55000", str(wrong), "receive"):
            call(admin, "nack", tick, wrong)
    assert numbers(admin, tick) == [1, 2]


def test_acknowledgement_belongs_to_the_transaction(admin: psycopg.Connection, connect: Connect, tick: str) -> None:
    ready(admin, tick, 1)
    consumer = connect(autocommit=False)
    assert numbers(consumer, tick) == [1]
    assert call(consumer, "ack", tick) == 1
    consumer.rollback()
    assert numbers(admin, tick) == [1]
    assert call(consumer, "ack", tick) == 1
    consumer.commit()
    assert numbers(admin, tick) == []


def test_another_session_waits_for_the_transaction_that_received(
    admin: psycopg.Connection, connect: Connect, tick: str
) -> None:
    ready(admin, tick, 1, 2)
    first, second = connect(autocommit=False), connect()
    assert numbers(first, tick, 1) == [1]
    second.execute("set lock_timeout = '50ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        numbers(second, tick)
    call(first, "ack", tick)
    first.commit()
    assert numbers(second, tick) == [2]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_an_older_snapshot_cannot_receive_again(
    admin: psycopg.Connection, connect: Connect, tick: str, isolation: str
) -> None:
    ready(admin, tick, 1)
    older = connect(autocommit=False)
    rows(older, f"set transaction isolation level {isolation}")
    rows(older, "select 1")
    assert take(admin, tick) == [1]
    for function, args in (
        ("receive", (tick,)),
        ("ack", (tick,)),
        ("nack", (tick, 1)),
        ("nack_events", (tick, [1])),
        ("dispatch", ()),
    ):
        with refused("25001", isolation), older.transaction():
            call(older, function, *args)


def test_a_nacked_event_comes_again_and_the_others_are_acknowledged_over_it(
    admin: psycopg.Connection, tick: str
) -> None:
    ready(admin, tick, 1, 2, 3)
    call(admin, "nack", tick, ids(admin, tick)[1], "later")
    assert call(admin, "ack", tick) == 2
    again = rows(admin, "select payload ->> 'n', attempt from pgps.receive(%s)", [tick])
    assert again == [("2", 2)]
    assert numbers(admin, tick) == [2], "until it is acknowledged"
    assert call(admin, "ack", tick) == 1
    assert numbers(admin, tick) == []


def test_a_nacked_event_waits_as_long_as_it_was_told(admin: psycopg.Connection, tick: str, clock: Clock) -> None:
    ready(admin, tick, 1, 2)
    call(admin, "nack", tick, ids(admin, tick)[0], retry_in="1 hour")
    assert numbers(admin, tick) == [2]
    call(admin, "ack", tick)
    assert numbers(admin, tick) == []
    clock.advance("59 minutes")
    assert numbers(admin, tick) == []
    clock.advance("1 minute")
    assert numbers(admin, tick) == [1]
    with refused("22023"):
        call(admin, "nack", tick, ids(admin, tick)[0], retry_in="-1 s")
    with refused("22023"):
        call(admin, "nack", tick, None)


@pytest.mark.parametrize("handler", ["all", "any"])
def test_several_events_are_put_back_in_one_step_or_none(admin: psycopg.Connection, name: Name, handler: str) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, max_attempts=2, handler=handler)
    ready(admin, made, 1, 2, 3, 4)
    ready(admin, made, 5)
    given = ids(admin, made)
    put_back = [given[4], given[1], given[1], given[2]]
    with refused("55000", str(given[4] + 1)):
        call(admin, "nack_events", made, [*given, given[4] + 1])
    assert call(admin, "nack_events", made, put_back, "later") == 3
    assert call(admin, "ack", made) == 2
    with refused("55000", str(given[0])):
        call(admin, "nack_events", made, given[:1])
    again = rows(admin, "select event_id, attempt from pgps.receive(%s)", [made])
    assert again == [(given[1], 2), (given[2], 2), (given[4], 2)]
    assert call(admin, "nack_events", made, given[1:3], "never") == 2, "both have been tried often enough"
    assert call(admin, "ack", made) == 1
    assert rows(admin, f"select event_id, attempts, error from pgps_queue.{made}_exception order by 1") == [
        (given[1], 2, "never"), (given[2], 2, "never"),
    ]  # fmt: skip
    assert call(admin, "nack_events", made, []) == 0
    assert take(admin, made) == []


@pytest.mark.parametrize("handler", ["all", "any"])
def test_taking_receives_and_acknowledges_in_one_step(
    admin: psycopg.Connection, connect: Connect, name: Name, handler: str
) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, handler=handler)
    ready(admin, made, 1, 2, 3, 4)
    given = ids(admin, made, 2)
    taken = "select event_id, attempt from pgps.take(%s, %s)"
    consumer = connect(autocommit=False)
    if handler == "all":
        assert rows(consumer, taken, [made, 2]) == [(each, 2) for each in given], "they had been received before"
    else:
        assert [each[0] for each in rows(consumer, taken, [made, 2])] == [given[1] + 1, given[1] + 2], "two are held"
        assert call(admin, "ack", made) == 2
    consumer.rollback()
    left = given if handler == "all" else [given[1] + 1]
    call(admin, "nack_events", made, ids(admin, made, len(left))[-1:], "later")
    assert value(admin, "select count(*) from pgps.take(%s)", [made]) == (4 if handler == "all" else 2)
    assert rows(admin, taken, [made, 9]) == []
    assert call(admin, "ack", made) == 0
    assert rows(admin, "select * from pgps_internal.failure f where f.event_id >= %s", [given[0]]) == []
    assert value(admin, "select delivered from pgps.subscriptions where name = %s", [made]) == 4


def test_putting_back_asks_for_event_ids(admin: psycopg.Connection, tick: str) -> None:
    ready(admin, tick, 1)
    for wrong in ("null", "array[null]::bigint[]"):
        with refused("22023", "event_ids"):
            rows(admin, f"select pgps.nack_events(%s, {wrong})", [tick])
    with refused("22023", "-00:00:01"):
        call(admin, "nack_events", tick, ids(admin, tick), retry_in="-1 s")


@pytest.mark.parametrize("handler", ["all", "any"])
def test_after_max_attempts_an_event_goes_to_the_exception_queue(
    admin: psycopg.Connection, name: Name, handler: str
) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, max_attempts=3, handler=handler)
    ready(admin, made, 1, 2)
    for attempt in (1, 2, 3):
        event = ids(admin, made)[0]
        call(admin, "nack", made, event, f"no {attempt}")
    assert numbers(admin, made) == [2], "the other is held already"
    failed = rows(admin, f"select n, subscription, attempts, error, state from pgps_queue.{made}_exception")
    assert failed == [(1, made, 3, "no 3", "failed")]
    assert call(admin, "retry_exception", made) == 1
    assert sorted(numbers(admin, made)) == [1, 2]
    call(admin, "ack", made)
    assert rows(admin, f"select * from pgps_queue.{made}_exception") == []
    assert take(admin, made) == []


@pytest.mark.parametrize("handler", ["all", "any"])
def test_a_discarded_event_does_not_come_back(admin: psycopg.Connection, name: Name, handler: str) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, max_attempts=1, handler=handler)
    ready(admin, made, 1, 2)
    call(admin, "nack", made, ids(admin, made)[0])
    assert call(admin, "discard_exception", made) == 1
    assert numbers(admin, made) == [2]
    assert call(admin, "ack", made) == 1
    assert take(admin, made) == []


def test_a_retried_event_ahead_of_the_position_comes_once(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, max_attempts=1)
    ready(admin, made, 1, 2, 3)
    call(admin, "nack", made, ids(admin, made)[2])
    assert numbers(admin, made, 1) == [1]
    assert call(admin, "retry_exception", made) == 1
    assert numbers(admin, made, 1) == [3]
    assert call(admin, "ack", made) == 1, "only what came last"
    assert numbers(admin, made) == [1, 2]
    call(admin, "ack", made)
    assert take(admin, made) == []


def test_receive_asks_for_sensible_arguments(admin: psycopg.Connection, tick: str) -> None:
    ready(admin, tick, 1)
    for wrong in (0, -1):
        with refused("22023", str(wrong)):
            numbers(admin, tick, wrong)
    assert len(rows(admin, "select * from pgps.receive(%s, null)", [tick])) == 1
    for function, args in (("receive", ("no_such",)), ("ack", ("no_such",)), ("nack", ("no_such", 1))):
        with refused("42704", "no_such"):
            call(admin, function, *args)
        with refused("22023"):
            call(admin, function, None, *args[1:])


def test_only_the_owner_receives_and_acknowledges(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], tick: str
) -> None:
    other = connect(role("other"))
    for function, args in (
        ("receive", (tick,)),
        ("ack", (tick,)),
        ("nack", (tick, 1)),
        ("nack_events", (tick, [1])),
        ("seek", (tick, "now")),
    ):
        with refused("42501", tick):
            call(other, function, *args)


def test_an_internal_subscription_is_not_received_from(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, execute=sink(admin, made))
    for function in ("receive", "ack"):
        with refused("55000", made):
            call(admin, function, made)


def test_sessions_share_the_work_of_an_any_subscription(
    admin: psycopg.Connection, connect: Connect, name: Name
) -> None:
    made = name()
    make_type(admin, made, handler="any")
    call(admin, "subscribe", made, made)
    ready(admin, made, *range(6))
    first, second = connect(), connect(autocommit=False)
    held = {first: numbers(first, made, 2), second: numbers(second, made, 3)}
    assert held == {first: [0, 1], second: [2, 3, 4]}, "while the other has not even committed"
    assert numbers(admin, made) == [5]
    assert call(first, "ack", made) == 2
    second.rollback()
    assert numbers(first, made) == [2, 3, 4]
    with refused("55000", "not held"):
        call(admin, "ack", made, ids_of(admin, made, 2))
    assert call(first, "ack", made) == 3
    assert call(admin, "ack", made) == 1
    assert take(admin, made) == []


def ids_of(connection: psycopg.Connection, made: str, n: int) -> int:
    found = value(connection, f"select event_id from pgps_queue.{made}_out where n = %s", [n])
    assert isinstance(found, int)
    return found


def test_lost_rights_end_delivery(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Name
) -> None:
    made, reader = name(), role("reader")
    make_type(admin, made)
    consumer = connect(reader)
    call(consumer, "subscribe", made, made)
    ready(admin, made, 1)
    rows(admin, f"revoke select on {endpoint(made)} from public")
    with refused("42501", made):
        numbers(consumer, made)
    ready(admin, made, 2)
    rows(admin, f"grant select on {endpoint(made)} to {reader}")
    assert numbers(consumer, made) == [1], "what was published meanwhile was not for this role"
