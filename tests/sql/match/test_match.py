"""Matching: what a filter that raises, hangs or is cancelled does to its own events, and to nobody else's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, meanwhile, numbers, publish, rows, take, value
from tests.fix_db import Connect, wait_until

# Of the kinds plpgsql's "when others" does not catch, too.
ERRORS = {
    "raise exception 'not 2'": "P0001",
    "raise exception 'not 2' using errcode = 'query_canceled'": "57014",
    "raise exception 'canceling statement due to user request' using errcode = '57014'": "57014",
    "assert false": "P0004",
    "perform 1 / 0": "22012",
}


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    """A type tick, a subscription to all of it, and the function of a filter to be made."""
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    call(connection, "subscribe", "all", "tick")
    return connection


def make_filter(broker: psycopg.Connection, body: str) -> None:
    rows(
        broker,
        "create or replace function public.good(n integer) returns boolean language plpgsql as "
        f"$$ begin {body}; return true; end $$",
    )


@pytest.mark.parametrize("error", ERRORS)
def test_a_filter_that_raises_fails_for_its_event_only(broker: psycopg.Connection, error: str) -> None:
    make_filter(broker, f"if n = 2 then {error}; end if")
    call(broker, "subscribe", "picky", "tick", "public.good(n)")
    publish(broker, "tick", 1, 2, 3)
    rows(broker, "set statement_timeout = '1min'")
    assert call(broker, "dispatch") == 3
    assert numbers(broker, "picky") == [1, 3]
    assert numbers(broker, "all") == [1, 2, 3]
    failed = "select n, subscription, sqlstate, state from pgps_queue.tick_exception"
    assert rows(broker, failed) == [(2, "picky", ERRORS[error], "failed")]


def test_among_many_of_one_shape_each_filter_fails_for_its_own_event(broker: psycopg.Connection) -> None:
    filter_of_k = "format('100 / (n - %s) > 0', k)"
    rows(broker, f"select pgps.subscribe('s' || k, 'tick', {filter_of_k}) from generate_series(1, 40) k")
    publish(broker, "tick", *range(1, 61))
    assert call(broker, "dispatch") == 60
    failed = "select n, subscription, sqlstate from pgps_queue.tick_exception order by n"
    assert rows(broker, failed) == [(k, f"s{k}", "22012") for k in range(1, 41)]
    for k in (1, 20, 40):
        assert numbers(broker, f"s{k}") == list(range(k + 1, 61))
    assert numbers(broker, "all") == list(range(1, 61))


@pytest.mark.parametrize("error", ERRORS)
def test_a_failed_event_is_asked_again_when_it_is_retried(broker: psycopg.Connection, error: str) -> None:
    make_filter(broker, error)
    call(broker, "subscribe", "picky", "tick", "public.good(n)")
    publish(broker, "tick", 1, 2)
    assert take(broker, "picky") == []
    assert call(broker, "retry_exception", "tick") == 0
    assert column(broker, "select attempts from pgps_queue.tick_exception") == [2, 2]
    make_filter(broker, "if n = 1 then return false; end if")
    assert call(broker, "retry_exception", "tick") == 1
    assert take(broker, "picky") == [2]
    assert rows(broker, "select * from pgps_queue.tick_exception") == []


def test_a_filter_that_keeps_failing_is_suspended(broker: psycopg.Connection) -> None:
    call(broker, "configure", "filter_failures", "3")
    make_filter(broker, "raise exception 'never' using errcode = '57014'")
    call(broker, "subscribe", "picky", "tick", "public.good(n)")
    publish(broker, "tick", *range(10))
    rows(broker, "select pgps.dispatch()")
    state = "select state, last_error from pgps.subscriptions where name = 'picky'"
    assert rows(broker, state) == [("suspended", "filter: never")]
    assert value(broker, "select count(*) from pgps_queue.tick_exception") == 3
    make_filter(broker, "null")
    call(broker, "resume", "picky")
    publish(broker, "tick", 10)
    assert take(broker, "picky")[-1] == 10
    assert take(broker, "all") == [*range(11)]


def test_a_dispatch_that_is_cancelled_ends_and_has_done_nothing(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    make_filter(broker, "perform pg_advisory_xact_lock(4711)")
    call(broker, "configure", "dispatch_lane_timeout", "1 hour")
    call(broker, "subscribe", "waits", "tick", "public.good(n)")
    publish(broker, "tick", 1)
    blocker, dispatcher = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(blocker, "select pg_advisory_xact_lock(4711)")
    with (
        refused_by_cancel(),
        meanwhile(broker, dispatcher, lambda: rows(dispatcher, "select pgps.dispatch()")),
    ):
        rows(broker, "select pg_cancel_backend(%s)", [dispatcher.info.backend_pid])
    blocker.rollback()
    assert rows(broker, "select * from pgps_queue.tick_exception") == []
    assert take(broker, "waits") == [1]


# Milliseconds: the first limit is enough, unless the machine halts before a filter is asked.
LIMITS = [600 * 2**n for n in range(7)]


def limited(broker: psycopg.Connection, limit: int, query: str) -> Any:
    """Run a query, and nothing else, with a time limit."""
    with broker.transaction():
        rows(broker, f"set local statement_timeout = {limit}")
        return value(broker, query)


def strike(broker: psycopg.Connection, subscription: str) -> str:
    """Have the slow lane ask the filter for too long, once; return the subscription's state."""
    state = "select state from pgps.subscriptions where name = %s"
    counted = "select sum(failures) from pgps_internal.class where signature_id is not null"
    before = value(broker, counted)

    def is_noted() -> bool:
        # A run that is late before it asks the filter does not count.
        with contextlib.suppress(psycopg.errors.QueryCanceled):
            limited(broker, LIMITS[0], "select pgps.run_slow_lane(lane_id) from pgps_internal.lane")
        return bool(value(broker, counted) != before or value(broker, state, [subscription]) == "suspended")

    wait_until(is_noted, what="the filter took too long")
    return str(value(broker, state, [subscription]))


@pytest.mark.parametrize("caught", ["", "raise;", "raise exception 'mine' using errcode = '57014';"])
def test_the_statement_timeout_ends_a_dispatch_whatever_the_filter_makes_of_it(
    broker: psycopg.Connection, caught: str
) -> None:
    handler = f"exception when query_canceled then {caught}" if caught else ""
    make_filter(broker, f"begin perform pg_sleep(60); {handler} end")
    call(broker, "configure", "dispatch_lane_timeout", "1 hour")
    call(broker, "subscribe", "sleeps", "tick", "public.good(n)")
    publish(broker, "tick", 1)
    limits = iter(LIMITS)

    def is_dispatched() -> bool:
        try:
            assert limited(broker, next(limits), "select pgps.dispatch()") == 1
        except psycopg.errors.QueryCanceled:
            return False  # before the filter was asked
        return True

    wait_until(is_dispatched)
    assert take(broker, "all") == [1]
    assert value(broker, "select state from pgps.lanes") == "slow"
    assert value(broker, "select count(*) from pgps.slow_lanes()") == 1
    assert [strike(broker, "sleeps") for _ in range(3)] == ["slow", "slow", "suspended"]
    make_filter(broker, "null")
    call(broker, "resume", "sleeps")
    rows(broker, "call pgps.run_lanes()")
    assert numbers(broker, "sleeps") == [1]


def test_the_statement_timeout_ends_a_dispatch_that_asks_a_filter_over_the_event_alone(
    broker: psycopg.Connection,
) -> None:
    call(broker, "subscribe", "long", "tick", "n = 1")
    signature = value(broker, "select signature_id from pgps_internal.signature")
    rows(
        broker,
        f"create or replace function pgps_internal.match_{signature}"
        "(pgps_batch bigint, pgps_ids int8multirange, pgps_only int8range) "
        "returns bigint[] language plpgsql as $$ begin perform pg_sleep(60); return null; end $$",
    )
    publish(broker, "tick", 1)
    limits = iter(LIMITS)

    def is_asked() -> bool:
        with refused_by_cancel():
            limited(broker, next(limits), "select pgps.dispatch()")
        return bool(value(broker, "select last_value from pgps_internal.matching_seq"))

    wait_until(is_asked)
    assert call(broker, "blame") == "long"
    assert call(broker, "blame") is None, "once"
    place = "select asked_in from pgps.classes where subscription = 'long'"
    assert value(broker, place) == "lane", "where it holds up nobody else"
    call(broker, "configure", "dispatch_lane_timeout", "200 milliseconds")
    assert take(broker, "all") == [1]
    assert [strike(broker, "long") for _ in range(3)] == ["slow", "slow", "suspended"]


def refused_by_cancel() -> pytest.RaisesExc[psycopg.errors.QueryCanceled]:
    return pytest.raises(psycopg.errors.QueryCanceled)


def test_a_null_result_is_no_match(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "some", "tick", "n > 1")
    publish(broker, "tick", 1, None, 2)
    assert take(broker, "some") == [2]


def test_one_class_serves_all_with_the_same_filter_and_one_statement_all_constants(broker: psycopg.Connection) -> None:
    for at in range(5):
        call(broker, "subscribe", f"a{at}", "tick", "n = 1")
        call(broker, "subscribe", f"b{at}", "tick", f"n = {at}")
    assert value(broker, "select count(*) from pgps_internal.signature") == 1
    assert value(broker, "select count(*) from pgps_internal.class where signature_id is not null") == 5
    publish(broker, "tick", *range(5))
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select count(*) from pgps_internal.delivery") == 6
    assert [numbers(broker, f"b{at}") for at in range(5)] == [[at] for at in range(5)]
    assert [numbers(broker, f"a{at}") for at in range(5)] == [[1]] * 5


def test_nobody_but_workers_and_administrators_assigns_blame(
    broker: psycopg.Connection, connect: Connect, role: Callable[..., str], own_database: str
) -> None:
    assert call(connect(role("w", "pgps_worker"), dsn=own_database), "blame") is None
    with refused_by_rights():
        call(connect(role("stranger"), dsn=own_database), "blame")


def refused_by_rights() -> pytest.RaisesExc[psycopg.errors.InsufficientPrivilege]:
    return pytest.raises(psycopg.errors.InsufficientPrivilege)
