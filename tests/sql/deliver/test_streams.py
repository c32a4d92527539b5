"""Streams: a subscription read by position, by many sessions, acknowledged by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, endpoint, make_type, numbers, publish, queue, refused, rows, take, value
from tests.fix_clock import Clock
from tests.fix_db import Connect


def _read(connection: psycopg.Connection, name: str, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return attribute n of what lies between two positions."""
    slices = rows(
        connection,
        "select batch_id, event_type, ids from pgps.slice_stream(%s, %s, %s, %s, %s, %s::bigint[])",
        [name, start["batch"], start["event"], end["batch"], end["event"], end.get("retried", [])],
    )
    found = []
    for _, event_type, ids in slices:
        query = f"select n from {queue(event_type, 'log')} where event_id <@ %s::int8multirange order by event_id"
        found += [n for (n,) in rows(connection, query, [ids])]
    return found


def _end(connection: psycopg.Connection, name: str, start: dict[str, Any], most: int | None = None) -> dict[str, Any]:
    return dict(call(connection, "end_of_stream", name, start["batch"], start["event"], most))


def test_what_lies_between_two_positions_is_read_as_often_as_one_likes_and_then_acknowledged(
    admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    t, s = name(), name("reader")
    make_type(admin, t)
    call(admin, "subscribe", s, t, filter="n % 3 = 0")
    publish(admin, t, *range(30))
    rows(admin, "select pgps.dispatch()")
    start = call(admin, "open_stream", s)
    first = _end(admin, s, start, 4)
    assert first["events"] == 4
    assert _read(admin, s, start, first) == _read(admin, s, start, first) == [0, 3, 6, 9]
    rest = _end(admin, s, first)
    assert _read(admin, s, first, rest) == [12, 15, 18, 21, 24, 27]
    assert call(admin, "ack_stream", s, first["batch"], first["event"]) == 4
    assert numbers(admin, s) == [12, 15, 18, 21, 24, 27]
    assert call(admin, "ack_stream", s, rest["batch"], rest["event"]) == 6
    assert call(admin, "ack_stream", s, first["batch"], first["event"]) == 0
    assert value(admin, "select depth from pgps.subscriptions where name = %s", [s]) == 0
    assert _end(admin, s, rest)["events"] == 0


def test_a_step_takes_whole_batches_where_they_fit(admin: psycopg.Connection, name: Callable[..., str]) -> None:
    t, s = name(), name("reader")
    make_type(admin, t)
    call(admin, "subscribe", s, t)
    for lo in (0, 10, 20):
        publish(admin, t, *range(lo, lo + 10))
        rows(admin, "select pgps.dispatch()")
    start = call(admin, "open_stream", s)
    end = _end(admin, s, start, 25)
    assert _read(admin, s, start, end) == list(range(20))
    assert _read(admin, s, end, _end(admin, s, end)) == list(range(20, 30))


def test_an_event_put_back_from_the_exception_queue_comes_with_the_next_step(
    admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    t, s = name(), name("reader")
    make_type(admin, t)
    call(admin, "subscribe", s, t, max_attempts=1)
    publish(admin, t, 1, 2, 3)
    rows(admin, "select pgps.dispatch()")
    failed = value(admin, "select min(event_id) from pgps.receive(%s)", [s])
    call(admin, "nack", s, failed, "cannot")
    start = call(admin, "open_stream", s)
    end = _end(admin, s, start)
    assert _read(admin, s, start, end) == [2, 3]
    call(admin, "ack_stream", s, end["batch"], end["event"])
    assert call(admin, "retry_exception", t) == 1
    again = _end(admin, s, end)
    assert again["retried"] == [failed]
    assert _read(admin, s, end, again) == [1]
    assert value(admin, "select pgps.ack_stream(%s, %s, %s, %s::bigint[])", [s, *_place(again), [failed]]) == 1
    assert _end(admin, s, again)["retried"] == []


def _place(position: dict[str, Any]) -> tuple[int, int]:
    return position["batch"], position["event"]


def test_one_session_at_a_time_reads_a_subscription_as_a_stream(
    connect: Connect, admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    t, s = name(), name("reader")
    make_type(admin, t)
    call(admin, "subscribe", s, t)
    other = connect()
    call(other, "open_stream", s)
    call(other, "open_stream", s)
    with refused("55006", s, str(other.info.backend_pid), "subscribe once for each query"):
        call(admin, "open_stream", s)
    pid = other.info.backend_pid
    other.close()
    while value(admin, "select count(*) from pg_stat_activity where pid = %s", [pid]):
        pass
    call(admin, "open_stream", s)


def test_a_position_that_is_not_this_brokers_or_not_the_readers_any_more_is_refused(
    admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    t, s = name(), name("reader")
    make_type(admin, t)
    call(admin, "subscribe", s, t)
    publish(admin, t, 1, 2)
    start = call(admin, "open_stream", s)
    take(admin, s)
    with refused("55000", s, "acknowledged", "Another consumer"):
        _end(admin, s, start)
    with refused("55000", s, "acknowledged", "Another consumer"):
        _read(admin, s, start, start)
    with refused("55000", "no batch 999999", "checkpoint"):
        _end(admin, s, {"batch": 999999, "event": 1})
    with refused("55000", "999999"):
        call(admin, "ack_stream", s, 999999, 1)
    with refused("22023", "0"):
        _end(admin, s, {"batch": 999998, "event": 1}, 0)


def test_only_an_external_subscription_of_ones_own_with_an_order_is_a_stream(
    connect: Connect, admin: psycopg.Connection, name: Callable[..., str], role: Callable[..., str]
) -> None:
    t, shared, mine = name(), name("shared"), name("mine")
    make_type(admin, t)
    call(admin, "subscribe", shared, t, handler="any")
    call(admin, "subscribe", mine, t)
    with refused("55000", shared, "handler => 'all'"):
        call(admin, "open_stream", shared)
    with refused("42704", "nobody"):
        call(admin, "open_stream", "nobody")
    stranger = connect(role("stranger"))
    with refused("42501", mine):
        call(stranger, "open_stream", mine)
    with refused("42501", mine):
        _end(stranger, mine, {"batch": 0, "event": 0})
    with refused("42501", mine):
        call(stranger, "ack_stream", mine, 0, 0)


def test_a_policy_hides_events_from_a_stream(
    connect: Connect, admin: psycopg.Connection, name: Callable[..., str], role: Callable[..., str]
) -> None:
    t, s, reader = name(), name("reader"), role("reader")
    make_type(admin, t)
    call(admin, "create_policy", t, "even", reader, "n % 2 = 0")
    connection = connect(reader)
    call(connection, "subscribe", s, t)
    publish(admin, t, 1, 2, 3, 4)
    rows(admin, "select pgps.dispatch()")
    start = call(connection, "open_stream", s)
    assert _read(connection, s, start, _end(connection, s, start)) == [2, 4]
    assert rows(connect(role("other")), f"select n from {queue(t, 'log')}") == []


def test_a_load_publishes_the_tries_that_count_and_once(admin: psycopg.Connection, name: Callable[..., str]) -> None:
    t, s, load = name(), name("reader"), name("load")
    make_type(admin, t, "n integer not null check (n < 100)")
    call(admin, "subscribe", s, t)
    table = call(admin, "begin_load", t, load)
    assert call(admin, "begin_load", t, load) == table
    for part, lo in (("a", 10), ("lost", 10), ("b", 0)):
        rows(
            admin,
            f"insert into {table} (n, pgps_part) select g, %s from generate_series(%s::integer, %s) g",
            [part, lo, lo + 2],
        )
    with refused("23514"):
        rows(admin, f"insert into {table} (n, pgps_part) values (100, 'c')")
    publish_load = "select pgps.publish_load(%s, %s, %s::text[], '{n}', 'job', %s, %s)"
    with refused("55000", "6 events where 7"):
        rows(admin, publish_load, [t, load, ["b", "a"], 1, 7])
    assert value(admin, publish_load, [t, load, ["b", "a"], 1, 6]) == 6
    assert value(admin, publish_load, [t, load, ["b", "a"], 1, 6]) is None
    assert value(admin, publish_load, [t, load, [], 2, 0]) == 0
    assert take(admin, s) == [0, 1, 2, 10, 11, 12]
    assert value(admin, "select to_regclass(%s) is null", [table])


def test_a_load_is_published_though_a_lost_task_still_copies(
    connect: Connect, admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    """Its host is gone, and the server notices hours later: nobody waits for it, and its table goes afterwards."""
    t, s, load = name(), name("reader"), name("load")
    make_type(admin, t)
    call(admin, "subscribe", s, t)
    table = call(admin, "begin_load", t, load)
    rows(admin, f"insert into {table} (n, pgps_part) values (1, 'a')")
    lost = connect(autocommit=False)
    rows(lost, f"insert into {table} (n, pgps_part) values (1, 'lost')")
    rows(admin, "set statement_timeout = '60s'")
    try:
        publish_load = "select pgps.publish_load(%s, %s, '{a}', '{n}', 'job', 1, 1)"
        assert value(admin, publish_load, [t, load]) == 1
        other = name("load")
        given_up = call(admin, "begin_load", t, other)
        rows(lost, f"insert into {given_up} (n, pgps_part) values (1, 'lost')")
        assert call(admin, "discard_load", other) is True
        rows(admin, "select pgps_internal.reclaim_loads()")
    finally:
        rows(admin, "reset statement_timeout")
    lost.rollback()
    rows(admin, "select pgps_internal.reclaim_loads()")
    assert take(admin, s) == [1]
    assert value(admin, "select coalesce(to_regclass(%s), to_regclass(%s)) is null", [table, given_up])


def test_a_load_belongs_to_who_began_it_and_is_dropped_when_it_is_old(
    connect: Connect, admin: psycopg.Connection, name: Callable[..., str], role: Callable[..., str], clock: Clock
) -> None:
    t, load, other = name(), name("load"), role("other")
    make_type(admin, t)
    table = call(admin, "begin_load", t, load)
    stranger = connect(other)
    with refused("55000", "advertise"):
        call(stranger, "begin_load", t, load)
    call(stranger, "advertise", t)
    with refused("42501", load):
        call(stranger, "begin_load", t, load)
    assert call(stranger, "discard_load", load) is False
    with refused("42501"):
        rows(stranger, f"select * from {table}")
    with refused("22023"):
        call(admin, "begin_load", t, "")
    with refused("42704"):
        call(admin, "begin_load", "nothing", load)
    with refused("22023"):
        rows(admin, "select pgps.claim(%s, null, 1)", [t])
    with refused("22023"):
        rows(admin, "select pgps.last_claim(%s, null)", [t])
    assert call(admin, "last_claim", t, "job") is None
    assert [call(admin, "claim", t, "job", number) for number in (7, 5, 7)] == [True, True, False]
    assert call(admin, "last_claim", t, "job") == 7
    # Each role's numbers are its own.
    assert call(stranger, "last_claim", t, "job") is None
    rows(admin, f"revoke insert on {endpoint(t)} from public, {other}")
    with refused("42501"):
        call(stranger, "last_claim", t, "job")
    clock.advance("23 hours")
    rows(admin, "select pgps_internal.reclaim_loads()")
    assert value(admin, "select to_regclass(%s) is not null", [table])
    clock.advance("2 hours")
    rows(admin, "select pgps_internal.reclaim_loads()")
    assert value(admin, "select to_regclass(%s) is null", [table])
    left = call(admin, "begin_load", t, load)
    call(admin, "drop_event_type", t, cascade=True)
    rows(admin, "select pgps_internal.reclaim_loads()")
    assert value(admin, "select to_regclass(%s) is null", [left])
    assert endpoint(t)


@pytest.mark.parametrize("who", ["load", "reclaim"])
def test_a_load_under_way_stays_whoever_quotes_all_identifiers(
    admin: psycopg.Connection, connect: Connect, name: Callable[..., str], who: str
) -> None:
    t, s, load = name(), name("reader"), name("load")
    make_type(admin, t)
    call(admin, "subscribe", s, t)
    session = connect()
    rows(session, f"set quote_all_identifiers = {'on' if who == 'load' else 'off'}")
    table = call(session, "begin_load", t, load)
    rows(session, f"insert into {table} (n, pgps_part) values (1, 'a')")
    other = connect()
    rows(other, f"set quote_all_identifiers = {'on' if who == 'reclaim' else 'off'}")
    rows(other, "select pgps.reclaim()")
    assert call(session, "publish_load", t, load, ["a"], ["n"]) == 1
    assert take(admin, s) == [1]


def test_what_a_reader_cannot_represent_goes_to_the_exception_queue_and_comes_again_when_put_back(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    t, s = name(), name("reader")
    make_type(admin, t)
    call(admin, "subscribe", s, t, filter="n < 10")
    publish(admin, t, 0, 1, 10)
    first, second, unwanted = (i for (i,) in rows(admin, f"select event_id from {queue(t, 'log')} order by n"))
    rows(admin, "select pgps.dispatch()")
    start = call(admin, "open_stream", s)
    end = _end(admin, s, start)
    reject = "select pgps.reject_events(%s, %s::bigint[], %s::text[])"
    assert value(admin, reject, [s, [second, unwanted, 999999999], ["a", "b", "c"]]) == 1
    assert value(admin, reject, [s, [second], ["again"]]) == 0
    failed = f"select n, sqlstate, error, state from {queue(t, 'exception')} where subscription = %s"
    assert rows(admin, failed, [s]) == [(1, "22000", "a", "failed")]
    assert _read(admin, s, start, end) == [0]
    assert call(admin, "ack_stream", s, end["batch"], end["event"]) == 1
    # What is acknowledged cannot be rejected any more.
    assert value(admin, reject, [s, [first], ["late"]]) == 0
    assert call(admin, "retry_exception", t) == 1
    again = _end(admin, s, end)
    assert again["retried"] == [second]
    assert _read(admin, s, end, again) == [1]
    assert value(admin, reject, [s, [second], ["still"]]) == 1
    rows(
        admin,
        "select pgps.ack_stream(%s, %s, %s, %s::bigint[])",
        [s, again["batch"], again["event"], again["retried"]],
    )
    assert rows(admin, failed, [s]) == [(1, "22000", "still", "failed")]
    # Put back once more, it is no business of the step before.
    assert call(admin, "retry_exception", t) == 1
    rows(
        admin,
        "select pgps.ack_stream(%s, %s, %s, %s::bigint[])",
        [s, again["batch"], again["event"], again["retried"]],
    )
    last = _end(admin, s, again)
    assert _read(admin, s, again, last) == [1]
    rows(
        admin,
        "select pgps.ack_stream(%s, %s, %s, %s::bigint[])",
        [s, last["batch"], last["event"], last["retried"]],
    )
    # Each once, however often it was rejected.
    assert value(admin, "select delivered from pgps.subscriptions where name = %s", [s]) == 2
    for events, errors in (([second], []), (None, None)):
        with refused("22023", "same length"):
            rows(admin, reject, [s, events, errors])
    with refused("42501", s):
        rows(connect(role("stranger")), reject, [s, [second], ["x"]])


def test_of_one_large_delivery_what_was_rejected_is_not_counted_in_the_part_that_is_acknowledged(
    admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    t, s = name(), name("reader")
    make_type(admin, t)
    call(admin, "subscribe", s, t)
    publish(admin, t, *range(1000))
    rows(admin, "select pgps.dispatch()")
    ids = [i for (i,) in rows(admin, f"select event_id from {queue(t, 'log')} order by n")]
    start = call(admin, "open_stream", s)
    reject = "select pgps.reject_events(%s, %s::bigint[], %s::text[])"
    assert value(admin, reject, [s, [ids[0], ids[9], ids[700]], ["a", "b", "c"]]) == 3
    part, whole = {"batch": _end(admin, s, start)["batch"], "event": ids[9]}, _end(admin, s, start)
    assert _read(admin, s, start, part) == list(range(1, 9))
    assert call(admin, "ack_stream", s, *_place(part)) == 8
    assert call(admin, "ack_stream", s, *_place(whole)) == 989
    assert value(admin, "select delivered from pgps.subscriptions where name = %s", [s]) == 997
