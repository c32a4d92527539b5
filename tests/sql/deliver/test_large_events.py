"""Events that are too large to be handed out, alone or together, hold up nobody."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_db import Connect

# More than jsonb can hold; as text compressed to a few MB.
_HUGE = 280_000_000


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    session = connect(dsn=own_database)
    make_type(session, "big", "n integer, s text, b bytea")
    return session


def publish(broker: psycopg.Connection, *sizes: int, text: str = "x") -> None:
    """Publish events numbered from 1, each with a text of so many bytes."""
    for n, size in enumerate(sizes, 1):
        rows(broker, "insert into pgps_event.big (n, s) values (%s, repeat(%s, %s))", [n, text, size])
    rows(broker, "select pgps.dispatch()")


def drained(broker: psycopg.Connection, verb: str, max_events: int, name: str = "s") -> list[list[int]]:
    """Receive until nothing comes: the numbers that each call gave."""
    found: list[list[int]] = []
    while True:
        received = column(broker, f"select payload -> 'n' from pgps.{verb}(%s, %s)", [name, max_events])
        if not received:
            return found
        found.append(received)
        if verb == "receive":
            rows(broker, "select pgps.ack(%s)", [name])


@pytest.mark.parametrize("handler", ["all", "any"])
@pytest.mark.parametrize("verb", ["receive", "take"])
def test_an_event_that_is_too_large_goes_to_the_exception_queue_and_the_others_come(
    broker: psycopg.Connection, verb: str, handler: str
) -> None:
    call(broker, "subscribe", "s", "big", handler=handler)
    publish(broker, 1, 2, _HUGE, 4, 5)
    assert drained(broker, verb, 100) == [[1, 2], [4, 5]]
    found = rows(broker, "select n, attempts, sqlstate, error, state from pgps_queue.big_exception")
    ((number, _, sqlstate, error, state),) = found
    assert (number, sqlstate, state) == (3, "54000", "failed")
    assert "too large for JSON" in error
    assert "pgps_queue.big_receive" in error
    assert value(broker, "select pgps.retry_exception('big')") == 1
    assert drained(broker, verb, 100) == []
    assert column(broker, "select state from pgps_queue.big_exception") == ["failed"], "it is too large as it was"
    publish(broker, 1)
    assert drained(broker, verb, 1) == [[1]]


def test_a_subscription_to_a_prefix_gets_what_is_not_too_large(broker: psycopg.Connection) -> None:
    make_type(broker, "bigger", "n integer")
    call(broker, "subscribe", "s", "big*")
    rows(broker, "insert into pgps_event.bigger values (0)")
    publish(broker, 1, _HUGE)
    assert drained(broker, "receive", 100) == [[0, 1]]
    assert column(broker, "select n from pgps_queue.big_exception") == [2]


@pytest.mark.timeout(600)
def test_events_that_are_too_large_together_come_one_after_the_other(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "big")
    call(broker, "subscribe", "shared", "big", handler="any")
    publish(broker, *[45_000_000] * 4)
    for name in ("s", "shared"):
        found = drained(broker, "receive", 100, name)
        assert [n for numbers in found for n in numbers] == [1, 2, 3, 4]
        assert len(found) == 2, "128 MB at most are handed out at once"
    assert rows(broker, "select from pgps_queue.big_exception") == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_would_be_too_long_as_text_is_not_sent(broker: psycopg.Connection) -> None:
    """A byte of a string may become six."""
    call(broker, "subscribe", "s", "big")
    publish(broker, 190_000_000, text="\x01")
    publish(broker, 7)
    assert drained(broker, "receive", 100) == [[1]]
    assert column(broker, "select octet_length(s) from pgps_queue.big_exception") == [190_000_000]


def test_as_a_row_an_event_may_be_larger(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "big")
    publish(broker, 1, _HUGE, 3)
    receive = "select n, octet_length(s) from pgps_queue.big_receive(array['s'], 10)"
    assert rows(broker, receive) == [(1, 1), (2, _HUGE), (3, 3)]


@pytest.mark.timeout(600)
def test_rows_that_are_large_together_come_one_after_the_other(broker: psycopg.Connection) -> None:
    """A client has all of an answer in memory at once, however many rows it asks for."""
    for name in ("s", "twin", "behind"):
        call(broker, "subscribe", name, "big")
    publish(broker, 1, 2, *[110_000_000] * 4, 7)
    assert column(broker, "select n from pgps_queue.big_receive(array['behind'], 1)") == [1]
    call(broker, "ack", "behind")
    names = ["s", "twin", "behind"]
    receive = "select pgps_places, array_agg(n) from pgps_queue.big_receive(%s, 100) group by 1 order by 1"
    found = []
    while handed_out := rows(broker, receive, [names]):
        assert rows(broker, receive, [names]) == handed_out, "as long as it is not acknowledged it comes again"
        found.append([numbers for _, numbers in handed_out])
        rows(broker, "select pgps.ack(n) from unnest(%s::text[]) n", [names])
    # The first row is for the two that are at the same position.
    assert found == [[[1, 2, 3], [2, 3]], [[4]], [[5]], [[6, 7]]]
    assert rows(broker, "select from pgps_queue.big_exception") == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_row_that_is_too_large_for_a_message_to_the_client_goes_to_the_exception_queue(
    broker: psycopg.Connection,
) -> None:
    call(broker, "subscribe", "s", "big")
    rows(
        broker,
        "insert into pgps_event.big select n, repeat('x', case n when 2 then 560000000 else 1 end),"
        " case n when 2 then decode(repeat('00', 260000000), 'hex') end from generate_series(1, 3) n",
    )
    rows(broker, "select pgps.dispatch()")
    receive = "select n from pgps_queue.big_receive(array['s'], 10)"
    assert column(broker, receive) == [1]
    call(broker, "ack", "s")
    assert column(broker, receive) == [3]
    assert column(broker, "select n from pgps_queue.big_exception") == [2]
