"""What is subscribed, moved, filtered, given away or retried while others are at work: each event comes, and once."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, meanwhile, publish, refused, rows, take, value
from tests.fix_db import Connect
from tests.sql.match.lane_steps import cut, make_filter, run_lanes, take_only

SLOW_LANE = "select r.* from pgps_internal.lane l cross join lateral pgps.run_slow_lane(l.lane_id) r"


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    return connection


def dispatch(broker: psycopg.Connection) -> None:
    rows(broker, "select pgps.dispatch()")


def go_on(broker: psycopg.Connection, number: int) -> None:
    """Publish in the next segment of the log."""
    rows(broker, "select setval('pgps_internal.event_id_seq', 65536 + 10)")
    publish(broker, "tick", number)
    dispatch(broker)


def reclaim(broker: psycopg.Connection) -> None:
    """Let nothing be left of the segment before."""
    rows(broker, "select pgps.reclaim(10)")
    assert value(broker, "select count(*) from pgps_internal.tick_log") == 1


def test_what_came_back_from_the_archive_for_two_roles_at_once_comes_to_each_once(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    first = connect(role("alice"), dsn=own_database, autocommit=False)
    second = connect(role("bob"), dsn=own_database)
    call(broker, "alter_queue", "tick_in", auditable=True)
    publish(broker, "tick", 1, 2, 3)
    dispatch(broker)
    go_on(broker, 4)
    reclaim(broker)
    call(first, "subscribe", "x", "tick", start="earliest")
    with meanwhile(broker, second, lambda: call(second, "subscribe", "y", "tick", start="earliest")):
        first.commit()
    dispatch(broker)
    assert [take_only(first, "x"), take_only(second, "y")] == [[1, 2, 3, 4]] * 2


def test_an_old_event_that_two_retry_at_once_comes_to_each_once(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    first = connect(role("alice"), dsn=own_database, autocommit=False)
    second = connect(role("bob"), dsn=own_database)
    make_filter(broker, "if n = 2 then raise exception 'two'; end if")
    for session, name in [(first, "x"), (second, "y")]:
        call(session, "subscribe", name, "tick", "public.good(n)")
    first.commit()
    publish(broker, "tick", 2)
    dispatch(broker)
    go_on(broker, 4)
    assert [take_only(first, "x"), take_only(second, "y")] == [[4], [4]]
    first.commit()
    reclaim(broker)
    make_filter(broker)
    call(first, "retry_exception", "tick", subscription="x")
    with meanwhile(broker, second, lambda: call(second, "retry_exception", "tick", subscription="y")):
        first.commit()
    assert [take_only(first, "x"), take_only(second, "y")] == [[2], [2]]


def read_stream(session: psycopg.Connection, name: str) -> Callable[[], object]:
    """Read a stream to its end; return what acknowledges it."""
    at = call(session, "open_stream", name)
    end = rows(
        session, "select e->'batch', e->'event' from pgps.end_of_stream(%s, %s, %s) e", [name, at["batch"], at["event"]]
    )[0]
    rows(session, "select pgps.slice_stream(%s, %s, %s, %s, %s)", [name, at["batch"], at["event"], *end])
    return lambda: call(session, "ack_stream", name, *end)


def test_who_acknowledges_a_stream_acknowledges_nothing_that_a_new_filter_lets_pass(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    session = connect(dsn=own_database)
    call(broker, "subscribe", "s", "tick", "mod(n, 2) = 0")
    publish(broker, "tick", 1, 2, 3, 4)
    dispatch(broker)
    acknowledge = read_stream(session, "s")
    call(broker, "alter_subscription", "s", filter="mod(n, 2) = 1")
    dispatch(broker)
    with refused("55000"):
        acknowledge()
    assert take(broker, "s") == [1, 3]


def test_who_acknowledges_a_stream_acknowledges_nothing_that_was_gone_back_to(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    session = connect(dsn=own_database)
    call(broker, "subscribe", "s", "tick")
    publish(broker, "tick", 1)
    assert take(broker, "s") == [1]
    publish(broker, "tick", 2)
    dispatch(broker)
    acknowledge = read_stream(session, "s")
    call(broker, "seek", "s", "earliest")
    dispatch(broker)
    with refused("55000"):
        acknowledge()
    assert take(broker, "s") == [1, 2]


def test_a_lane_goes_on_when_nobody_wants_the_rest_of_its_batch(broker: psycopg.Connection) -> None:
    make_type(broker, "tock")
    make_filter(broker)
    call(broker, "subscribe", "s", "tick", "public.good(n)")
    call(broker, "subscribe", "other", "tock", "public.good(n)")
    with broker.transaction():
        publish(broker, "tick", 1, 2)
        publish(broker, "tock", 3, 4)
    cut(broker)
    # As after a filter that took too long: two events at once.
    rows(broker, "update pgps_internal.lane set is_slow = true, slow_until = 'infinity'")
    rows(broker, "insert into pgps_internal.lane_part (lane_id, events) select lane_id, 2 from pgps_internal.lane")
    rows(broker, SLOW_LANE)
    call(broker, "unsubscribe", "other")
    publish(broker, "tick", 5)
    cut(broker)
    for _ in range(4):
        rows(broker, SLOW_LANE)
    assert take_only(broker, "s") == [1, 2, 5]


def test_who_has_lost_a_subscription_while_he_waited_for_it_gets_no_rows_of_it(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    new = role("bob")
    old = role("alice", new)
    reader, giver = connect(old, dsn=own_database), connect(old, dsn=own_database, autocommit=False)
    call(reader, "subscribe", "s", "tick")
    publish(broker, "tick", 1)
    dispatch(broker)
    call(giver, "alter_subscription", "s", owner=new)
    with (
        refused("42501"),
        meanwhile(broker, reader, lambda: rows(reader, "select n from pgps_queue.tick_receive('{s}')")),
    ):
        rows(broker, f"revoke {new} from {old}")
        giver.commit()


def test_what_was_retried_and_is_older_than_the_log_is_there_for_who_goes_back_to_it(
    broker: psycopg.Connection,
) -> None:
    call(broker, "subscribe", "s", "tick", max_attempts=1)
    publish(broker, "tick", 1)
    dispatch(broker)
    event = value(broker, "select event_id from pgps.receive('s')")
    call(broker, "nack", "s", event)
    go_on(broker, 2)
    assert take(broker, "s") == [2]
    reclaim(broker)
    call(broker, "retry_exception", "tick")
    call(broker, "seek", "s", str(event))
    assert take(broker, "s") == [1, 2]


def test_who_subscribes_while_the_lane_is_behind_gets_no_exceptions_from_before(broker: psycopg.Connection) -> None:
    make_filter(broker, "if n = 2 then raise exception 'two'; end if")
    call(broker, "subscribe", "before", "tick", "public.good(n)")
    publish(broker, "tick", 1, 2)
    cut(broker)
    call(broker, "subscribe", "after", "tick", "public.good(n)")
    run_lanes(broker)
    assert rows(broker, "select n, subscription from pgps_queue.tick_exception") == [(2, "before")]
    make_filter(broker)
    call(broker, "retry_exception", "tick")
    assert [sorted(take_only(broker, who)) for who in ("before", "after")] == [[1, 2], []]
