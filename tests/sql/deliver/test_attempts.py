"""Attempts: how often an event has come already."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, queue, rows

Name = Callable[..., str]


def ready(admin: psycopg.Connection, tick: str, *given: int) -> None:
    publish(admin, tick, *given)
    rows(admin, "select pgps.dispatch()")


@pytest.mark.parametrize("rows_function", [False, True])
@pytest.mark.parametrize("handler", ["all", "any"])
def test_the_attempt_says_whether_an_event_comes_for_the_first_time_however_many_are_asked_for(
    admin: psycopg.Connection, name: Name, handler: str, rows_function: bool
) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, handler=handler)
    ready(admin, made, *range(6))
    query = "select attempt from pgps.receive(%s, %s)"
    if rows_function:
        query = f"select pgps_attempt from {queue(made, 'receive')}(array[%s]::text[], %s)"

    def attempts(most: int) -> list[int]:
        return column(admin, query, [made, most])

    assert [attempts(most) for most in (4, 2, 5)] == [[1] * 4, [2] * 2, [2] * 4 + [1]]
    assert attempts(1) == [2]
    assert call(admin, "ack", made) == 1
    assert attempts(9) == [2] * 4 + [1]
    assert attempts(2) == [2] * 2
    assert column(admin, "select attempt from pgps.take(%s, 1)", [made]) == [2]
    assert attempts(9) == [2] * 4


DEPTH = "select depth from pgps.subscriptions where name = %s"


def received(admin: psycopg.Connection, made: str) -> dict[int, int]:
    return {n: one for one, n in rows(admin, "select event_id, (payload ->> 'n')::int from pgps.receive(%s)", [made])}


@pytest.mark.parametrize("last", ["take", "ack", "nack"])
def test_what_failed_and_came_again_or_was_given_up_does_not_wait(
    admin: psycopg.Connection, name: Name, last: str
) -> None:
    """Also when nothing behind it has been acknowledged: nobody is shown as late for what he has had."""
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, max_attempts=1 if last == "nack" else 3)
    ready(admin, made, 1, 2, 3)
    ids = received(admin, made)
    call(admin, "ack", made, up_to=ids[1])
    rows(admin, "select pgps.nack_events(%s, %s)", [made, [ids[2], ids[3]]])
    if last == "take":
        assert column(admin, "select event_id from pgps.take(%s)", [made]) == [ids[2], ids[3]]
    elif last == "ack":
        assert list(received(admin, made).values()) == [ids[2], ids[3]]
        assert column(admin, DEPTH, [made]) == [2]
        assert call(admin, "ack", made) == 2
    assert column(admin, DEPTH, [made]) == [0]
    ready(admin, made, 4)
    assert list(received(admin, made)) == [4]
    assert call(admin, "ack", made) == 1


def test_what_was_not_received_before_one_that_failed_still_waits(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, max_attempts=3)
    ready(admin, made, 1, 2, 3)
    ids = received(admin, made)
    rows(admin, "select pgps.nack_events(%s, %s)", [made, [ids[2]]])
    assert column(admin, "select event_id from pgps.take(%s, 1)", [made]) == [ids[2]]
    assert column(admin, "select event_id from pgps.take(%s)", [made]) == [ids[1], ids[3]]
    assert column(admin, DEPTH, [made]) == [0]


@pytest.mark.parametrize("settled", ["before", "after"])
def test_what_was_settled_ahead_does_not_come_again_by_the_way_of_another_filter(
    admin: psycopg.Connection, name: Name, settled: str
) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, "n > 0", max_attempts=10)
    publish(admin, made, 1, 2, 3)
    rows(admin, "select pgps.dispatch()")
    query = "select event_id from pgps.receive(%s, %s)"
    first, second, third = column(admin, query, [made, 10])
    call(admin, "nack", made, second, "later", "0")
    assert column(admin, query, [made, 1]) == [second]

    def change(text: str) -> None:
        call(admin, "alter_subscription", made, filter=text)
        rows(admin, "select pgps.dispatch()")

    if settled == "after":
        change("n <> 2")
        assert column(admin, query, [made, 1]) == [second]
    assert call(admin, "ack", made, second) == 1
    change("n <> 2 and true")
    # Something else is settled, which forgets what is behind.
    assert column(admin, query, [made, 10]) == [first, third]
    call(admin, "nack", made, third, "later", "0")
    assert column(admin, query, [made, 1]) == [third]
    assert call(admin, "ack", made, third) == 1
    change("n > 0")
    assert column(admin, query, [made, 10]) == [first]
    assert call(admin, "ack", made) == 1
    assert column(admin, query, [made, 10]) == []
