"""Internal subscriptions: callbacks, their order, their failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, refused, rows, sink, sunk, take, value
from tests.fix_db import Connect

Name = Callable[..., str]
FAILURES = {
    "raise exception 'no three'": "P0001",
    "raise exception 'no three' using errcode = 'query_canceled'": "57014",
    "perform 1 / 0": "22012",
    "assert false, 'no three'": "P0004",
    "commit": "2D000",
    "insert into no_such_table values (1)": "42P01",
}


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    made = name("tick")
    make_type(admin, made)
    return made


def run(admin: psycopg.Connection) -> None:
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")


@pytest.mark.parametrize("batch", [False, True])
def test_a_callback_gets_the_events_in_order(admin: psycopg.Connection, tick: str, batch: bool) -> None:
    table = sink(admin, tick, batch=batch)
    call(admin, "subscribe", tick, tick, execute=table, filter="n > 1")
    publish(admin, tick, 1, 2, 3)
    publish(admin, tick, 4)
    run(admin)
    publish(admin, tick, 5)
    run(admin)
    assert sunk(admin, table) == [2, 3, 4, 5]
    assert rows(admin, "select kind, delivered, depth from pgps.subscriptions where name = %s", [tick]) == [
        ("internal", 4, 0)
    ]


def test_subscriptions_run_by_priority(admin: psycopg.Connection, tick: str) -> None:
    rows(admin, f"create table public.{tick}_order (place bigint generated always as identity, who text)")
    for who, priority in (("low", -1), ("high", 9), ("middle", 0)):
        rows(
            admin,
            f"create function public.{tick}_{who}(pgps_event.{tick}) returns void language sql as "
            f"$$ insert into public.{tick}_order (who) values ('{who}') $$",
        )
        call(admin, "subscribe", f"{tick}_{who}", tick, execute=f"public.{tick}_{who}", priority=priority)
    publish(admin, tick, 1)
    run(admin)
    assert [w for (w,) in rows(admin, f"select who from public.{tick}_order order by place")] == [
        "high",
        "middle",
        "low",
    ]


@pytest.mark.parametrize("body", FAILURES)
def test_a_callback_that_fails_fails_for_its_event_only(admin: psycopg.Connection, tick: str, body: str) -> None:
    table = sink(admin, tick, body=f"if ($1).n = 3 then {body}; end if;")
    call(admin, "subscribe", tick, tick, execute=table, max_attempts=2)
    call(admin, "subscribe", f"{tick}_b", tick)
    publish(admin, tick, 1, 3, 2)
    run(admin)
    assert sunk(admin, table) == [1, 2]
    exception = f"select n, attempts, sqlstate, state from pgps_queue.{tick}_exception"
    assert rows(admin, exception) == [(3, 1, FAILURES[body], "retrying")]
    run(admin)
    assert rows(admin, exception) == [(3, 2, FAILURES[body], "failed")]
    run(admin)
    assert rows(admin, exception) == [(3, 2, FAILURES[body], "failed")]
    assert take(admin, f"{tick}_b") == [1, 3, 2], "nobody else is disturbed"


def test_a_mended_callback_gets_the_retried_event(admin: psycopg.Connection, tick: str) -> None:
    table = sink(admin, tick, body="if ($1).n = 3 then raise exception 'no'; end if;")
    call(admin, "subscribe", tick, tick, execute=table, max_attempts=1)
    publish(admin, tick, 3, 4)
    run(admin)
    rows(
        admin,
        f"create or replace function {table}(event pgps_event.{tick}) returns void language sql as "
        f"$$ insert into {table} (n) select ($1).n $$",
    )
    assert call(admin, "retry_exception", tick, subscription=tick) == 1
    run(admin)
    assert sunk(admin, table) == [4, 3]
    assert rows(admin, f"select * from pgps_queue.{tick}_exception") == []
    run(admin)
    assert sunk(admin, table) == [4, 3]


def test_a_dropped_callback_suspends_and_loses_nothing(admin: psycopg.Connection, tick: str) -> None:
    table = sink(admin, tick)
    call(admin, "subscribe", tick, tick, execute=table)
    publish(admin, tick, 1, 2)
    definition = value(admin, "select pg_get_functiondef(%s::regproc)", [table])
    rows(admin, f"drop function {table}")
    run(admin)
    state, error = rows(admin, "select state, last_error from pgps.subscriptions where name = %s", [tick])[0]
    assert state == "suspended"
    assert "does not exist" in error
    publish(admin, tick, 3)
    run(admin)
    rows(admin, definition)
    call(admin, "resume", tick)
    run(admin)
    assert sorted(sunk(admin, table)) == [1, 2, 3]
    run(admin)
    assert len(sunk(admin, table)) == 3


def test_callbacks_run_as_the_owner_of_the_subscription(
    admin: psycopg.Connection, connect: Connect, role: Any, tick: str
) -> None:
    owner = role("owner")
    rows(admin, f"create table public.{tick}_who (who name)")
    rows(admin, f"grant insert on public.{tick}_who to {owner}")
    rows(
        admin,
        f"create function public.{tick}_f(pgps_event.{tick}) returns void language sql as "
        f"$$ insert into public.{tick}_who values (current_user) $$",
    )
    call(connect(owner), "subscribe", tick, tick, execute=f"{tick}_f")
    publish(admin, tick, 1)
    rows(connect(role("worker", "pgps_worker")), "select pgps.dispatch()")
    rows(connect(role("worker", "pgps_worker")), "call pgps.run_subscribers()")
    assert rows(admin, f"select who from public.{tick}_who") == [(owner,)]


def test_two_sessions_do_not_run_one_subscription_at_once(
    admin: psycopg.Connection, connect: Connect, tick: str
) -> None:
    table = sink(admin, tick)
    call(admin, "subscribe", tick, tick, execute=table)
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    first = connect(autocommit=False)
    assert call(first, "run_subscriber", tick) == 1
    assert call(admin, "run_subscriber", tick) == 0
    first.rollback()
    assert call(admin, "run_subscriber", tick) == 1
    assert sunk(admin, table) == [1]


def test_a_callback_may_publish(admin: psycopg.Connection, tick: str) -> None:
    table = sink(admin, tick, body=f"if ($1).n > 1 then insert into pgps_event.{tick} values (($1).n - 1); end if;")
    call(admin, "subscribe", tick, tick, execute=table)
    publish(admin, tick, 3)
    for _ in range(4):
        run(admin)
    assert sunk(admin, table) == [3, 2, 1]


@pytest.mark.parametrize("condition", ["10 / n > 0", "public.{}_assert(n)"])
def test_a_filter_that_raises_hurts_nobody_else(admin: psycopg.Connection, tick: str, condition: str) -> None:
    rows(
        admin,
        f"create function public.{tick}_assert(n integer) returns boolean language plpgsql as "
        "$$ begin assert n <> 0; return true; end $$",
    )
    call(admin, "subscribe", tick, tick, filter=condition.format(tick))
    call(admin, "subscribe", f"{tick}_b", tick)
    publish(admin, tick, 1, 0, 2)
    assert take(admin, tick) == [1, 2]
    assert take(admin, f"{tick}_b") == [1, 0, 2]
    assert rows(admin, f"select n, subscription, state from pgps_queue.{tick}_exception") == [(0, tick, "failed")]


def test_a_filter_that_keeps_failing_is_suspended_and_resumes_without_loss(
    admin: psycopg.Connection, tick: str
) -> None:
    rows(admin, f"create table public.{tick}_t (n integer)")
    rows(admin, f"insert into public.{tick}_t select generate_series(1, 9)")
    call(admin, "subscribe", tick, tick, filter=f"n in (select n from public.{tick}_t)")
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    rows(admin, f"alter table public.{tick}_t rename to {tick}_away")
    publish(admin, tick, 2, 3)
    rows(admin, "select pgps.dispatch()")
    assert value(admin, "select state from pgps.subscriptions where name = %s", [tick]) == "suspended"
    with refused("55000", "suspended", "resume"):
        rows(admin, "select pgps.receive(%s)", [tick])
    publish(admin, tick, 4)
    rows(admin, "select pgps.dispatch()")
    rows(admin, f"alter table public.{tick}_away rename to {tick}_t")
    call(admin, "resume", tick)
    call(admin, "retry_exception", tick)
    assert sorted(take(admin, tick)) == [1, 2, 3, 4]
    assert take(admin, tick) == []


def test_a_failure_is_filed_for_the_event_it_names_and_for_no_successor(admin: psycopg.Connection, tick: str) -> None:
    table = sink(admin, tick)
    call(admin, "subscribe", tick, tick, execute=table, max_attempts=1)
    publish(admin, tick, 1, 2, 3)
    rows(admin, "select pgps.dispatch()")
    first = call(admin, "next_delivery", tick)
    assert call(admin, "run_subscriber", tick, 1) == 1, "another worker has done it meanwhile"
    assert call(admin, "fail_delivery", tick, "57014", "too long", event_id=first) is None
    second = call(admin, "next_delivery", tick)
    assert call(admin, "fail_delivery", tick, "57014", "too long", event_id=second) == second
    assert call(admin, "fail_delivery", tick, "57014", "too long", event_id=second) is None
    run(admin)
    assert sunk(admin, table) == [1, 3]
    assert call(admin, "next_delivery", tick) is None
    assert rows(admin, f"select event_id, sqlstate from pgps_queue.{tick}_exception") == [(second, "57014")]
    for function, args in (("next_delivery", ()), ("fail_delivery", ("57014", "too long"))):
        with refused("42704", "no_such"):
            call(admin, function, "no_such", *args)


def test_owners_take_turns_whatever_priority_one_gives_itself(connect: Connect, own_database: str, role: Any) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick")
    call(admin, "configure", "run_batch_events", "2")
    rows(admin, "create table public.runs (place bigint generated always as identity, who text)")
    rows(admin, "grant insert on public.runs to public")
    owners = {"loud": role("loud"), "quiet": role("quiet")}
    for who, owner, priority in (("loud1", "loud", 1_000_000), ("loud2", "loud", 900_000), ("quiet", "quiet", 0)):
        rows(
            admin,
            f"create function public.{who}(pgps_event.tick[]) returns void language sql as "
            f"$$ insert into public.runs (who) values ('{who}') $$",
        )
        theirs = connect(owners[owner], dsn=own_database)
        call(theirs, "subscribe", who, "tick", execute=f"public.{who}", priority=priority)
    publish(admin, "tick", *range(6))
    rows(admin, "select pgps.dispatch()")
    assert rows(admin, "select subscription, owner from pgps.pending_subscribers()") == [
        ("loud1", owners["loud"]), ("quiet", owners["quiet"]), ("loud2", owners["loud"]),
    ]  # fmt: skip
    rows(admin, "call pgps.run_subscribers()")
    runs = [who for (who,) in rows(admin, "select who from public.runs order by place")]
    assert runs == ["loud1", "quiet"] * 3 + ["loud2"] * 3
