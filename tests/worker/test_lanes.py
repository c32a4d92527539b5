"""Lanes under a worker: a filter that sleeps, loops or swallows its cancellation makes its owner alone late."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

import psycopg
import pytest

from pgps_worker import lanes
from tests.fix_db import Connect, wait_until
from tests.fix_worker import RoleFactory, Ticks, Workers, free_port, metrics

NEVER = """
loop
    begin
        perform pg_sleep(60);
    exception when query_canceled then
        null;
    end;
end loop
"""

Filter = Callable[..., psycopg.Connection]
_GATE = 76


@pytest.fixture
def subscriber(own_database: str, ticks: Ticks, connect: Connect, role: RoleFactory) -> Filter:
    """Return a function that has a new role subscribe with a filter of its own making."""

    def made(name: str, body: str, *, event_type: str = "tick", more: str = "") -> psycopg.Connection:
        owner = role(name)
        ticks.connection.execute(f"grant select on all tables in schema pgps_event to {owner}".encode())
        ticks.connection.execute(f"create schema {owner} authorization {owner}".encode())
        connection = connect(owner, dsn=own_database)
        connection.execute(
            f"create function {owner}.wanted(n integer) returns boolean language plpgsql as "
            f"$$ begin {body}; return true; end $$".encode()
        )
        connection.execute(f"select pgps.subscribe('{name}', '{event_type}', '{owner}.wanted(n)'{more})".encode())
        return connection

    return made


def state(ticks: Ticks, name: str) -> tuple[str, str]:
    query = "select state, coalesce(last_error, '') from pgps.subscriptions where name = %s"
    row = ticks.connection.execute(query, [name]).fetchone()
    assert row is not None
    return row


def taken(connection: psycopg.Connection, name: str) -> list[int]:
    rows = connection.execute("select (payload->>'n')::integer from pgps.take(%s, 1000)", [name]).fetchall()
    return [n for (n,) in rows]


def make_function(owner: psycopg.Connection, name: str, body: str, *, volatility: str = "volatile") -> None:
    owner.execute(
        f"create or replace function {name}(n integer) returns boolean language plpgsql {volatility} as "
        f"$$ begin {body} end $$".encode()
    )


def wait_for_all(connection: psycopg.Connection, name: str, last: int, *, timeout: float = 60) -> list[int]:
    """Take what comes to a subscription until the last number is among it; return all."""
    seen: list[int] = []

    def came() -> bool:
        seen.extend(taken(connection, name))
        return last in seen

    wait_until(came, timeout=timeout, what=f"{name} got {last}, and before {seen}")
    return seen


def keep_time(ticks: Ticks, numbers: range, *, within: float) -> None:
    """Publish numbers one by one and see them delivered on time to who has nothing to do with anybody's filter.

    On time as a rule: who is held up by a filter is so each time, a machine that has something else to do is not.
    """
    took = []
    for number in numbers:
        began = time.monotonic()
        ticks.publish(number)
        ticks.wait_for("all", number)
        took.append(time.monotonic() - began)
    assert statistics.median(took) < within, took


def quicker(ticks: Ticks, seconds: str = "1 second") -> None:
    ticks.connection.execute("select pgps.configure('lane_timeout', %s)", [seconds])


def test_a_filter_that_swallows_its_cancellation_stops_nobody_else(
    own_database: str, ticks: Ticks, subscriber: Filter, workers: Workers
) -> None:
    quicker(ticks)
    ticks.subscribe("all")
    ticks.subscribe("good", more=", filter => 'pg_catalog.age(now()) < interval ''1 day'' or n > 0'")
    subscriber("never", NEVER)
    workers(own_database, "--dispatch-timeout", "5")
    ticks.publish(1)
    keep_time(ticks, range(2, 12), within=3)
    wait_until(lambda: ticks.seen("good") == list(range(1, 12)))
    wait_until(lambda: state(ticks, "never")[0] == "suspended")
    assert "takes longer than" in state(ticks, "never")[1]


def test_a_filter_that_sleeps_delays_no_batch_of_others_and_is_seen(
    own_database: str, ticks: Ticks, subscriber: Filter, connect: Connect, role: RoleFactory, workers: Workers
) -> None:
    quicker(ticks, "10 minutes")
    ticks.subscribe("all")
    sleepy = subscriber("sleepy", f"perform pg_advisory_xact_lock_shared({_GATE})")
    ticks.connection.execute("select pg_advisory_lock(%s)", [_GATE])
    # Somebody else whose filter reads a table.
    ticks.connection.execute("create table public.wanted as select 1 as one")
    ticks.subscribe("reader", more=", filter => 'exists (select from public.wanted)'")
    port = free_port()
    worker = workers(own_database, "--health-port", str(port))
    for number in range(1, 8):
        ticks.publish(number)
        ticks.wait_for("all", number)
    wait_until(lambda: ticks.seen("reader") == list(range(1, 8)))
    lane = """
        select state, lag_events > 0, lag_seconds > 0, last_error like '%%takes longer%%'
        from pgps.lanes where role = %s
    """
    name = sleepy.info.user
    wait_until(lambda: sleepy.execute(lane, [name]).fetchone() == ("slow", True, True, True), what="it is seen")
    lag = "select lag_seconds > 1 from pgps.subscriptions where name = 'sleepy'"
    wait_until(lambda: sleepy.execute(lag).fetchone() == (True,))
    wait_until(lambda: f'pgps_lane_slow{{role="{name}"}} 1\n' in metrics(port))
    assert f'pgps_lane_lag_events{{role="{name}"}}' in metrics(port)
    wait_until(lambda: f"the filters of role {name} are slow, " in worker.messages, what=worker.messages)
    ticks.connection.execute("select pg_advisory_unlock(%s)", [_GATE])
    behind = "select count(*) from pgps.lanes where lag_batches > 0"
    wait_until(lambda: ticks.connection.execute(behind).fetchone() == (0,), what="it has caught up")
    assert taken(sleepy, "sleepy") == list(range(1, 8)), "late, and complete"


def test_a_pattern_with_an_expensive_constant_holds_up_nobody_who_creates_an_event_type(
    own_database: str, ticks: Ticks, subscriber: Filter, workers: Workers
) -> None:
    quicker(ticks)
    ticks.subscribe("all")
    owner = subscriber("pattern", "null", event_type="t*").info.user
    ticks.connection.execute(
        f"create or replace function {owner}.wanted(n integer) returns boolean language plpgsql immutable as "
        "$$ begin perform pg_sleep(600); return true; end $$".encode()
    )
    ticks.connection.execute(
        "update pgps_internal.subscription set filter = replace(filter, '(n)', '(7)') where name = 'pattern'"
    )
    workers(own_database)
    ticks.connection.execute("set statement_timeout = '60s'")
    ticks.connection.execute("select pgps.create_event_type('tock', 'n integer')")
    keep_time(ticks, range(1, 4), within=3)
    wait_until(lambda: state(ticks, "pattern")[0] == "suspended")
    assert "tock" in state(ticks, "pattern")[1]


def test_an_open_transaction_with_a_subscribe_holds_up_neither_dispatch_nor_new_event_types(
    own_database: str, ticks: Ticks, subscriber: Filter, connect: Connect, role: RoleFactory, workers: Workers
) -> None:
    ticks.subscribe("all")
    owner = subscriber("pattern", "null", event_type="t*").info.user
    workers(own_database)
    ticks.publish(1)
    ticks.wait_for("all", 1)
    for number, start in enumerate(("now", "earliest"), start=2):
        session = connect(owner, autocommit=False, dsn=own_database)
        session.execute(f"select pgps.subscribe('safe_{start}', 'tick', 'n > 0', start => '{start}')".encode())
        session.execute(
            f"select pgps.subscribe('own_{start}', 'tick', '{owner}.wanted(n)', start => '{start}')".encode()
        )
        session.execute(f"select pgps.subscribe('other_{start}', 't*', 'n > 0', start => '{start}')".encode())
        ticks.connection.execute("set statement_timeout = '60s'")
        ticks.connection.execute(f"select pgps.create_event_type('tack_{start}', 'n integer')".encode())
        keep_time(ticks, range(number, number + 1), within=20)
        session.commit()
    session = connect(owner, dsn=own_database)
    ticks.publish(4)
    ticks.wait_for("all", 4)
    # What was committed while the transaction was open is not lost for who wants everything.
    for name in ("safe_earliest", "own_earliest"):
        assert wait_for_all(session, name, 4) == [1, 2, 3, 4]
    for name in ("safe_now", "own_now"):
        assert wait_for_all(session, name, 4)[-1] == 4


def test_three_time_outs_suspend_a_filter_and_the_others_of_its_owner_go_on(
    own_database: str, ticks: Ticks, subscriber: Filter, workers: Workers
) -> None:
    quicker(ticks)
    owner = subscriber("slow", "perform pg_sleep(case when n = 3 then 60 else 0 end)")
    role = owner.info.user
    make_function(owner, f"{role}.fine", "return true;")
    owner.execute(f"select pgps.subscribe('fine', 'tick', '{role}.fine(n)')".encode())
    worker = workers(own_database)
    for number in range(1, 5):
        ticks.publish(number)
    wait_until(lambda: state(ticks, "slow")[0] == "suspended")
    wait_until(lambda: "suspended slow" in worker.messages)
    assert wait_for_all(owner, "fine", 4) == [1, 2, 3, 4]
    # Mended and resumed, it has what came meanwhile.
    make_function(owner, f"{role}.wanted", "return n <> 2;")
    owner.execute("select pgps.resume('slow')")
    ticks.publish(5)
    seen = wait_for_all(owner, "slow", 5)
    assert (seen[0], seen[-3:]) == (1, [3, 4, 5])


def test_two_workers_share_the_lanes_and_one_that_is_killed_loses_nothing(
    own_database: str, ticks: Ticks, subscriber: Filter, workers: Workers
) -> None:
    owners = [subscriber(f"s{number}", "null") for number in range(4)]
    first = workers(own_database)
    workers(own_database)
    for number in range(200):
        ticks.publish(number)
        if number == 60:
            ticks.connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and application_name like '%/lanes'"
            )
        if number == 120:
            first.kill9()
    for at, owner in enumerate(owners):
        assert wait_for_all(owner, f"s{at}", 199) == list(range(200))


def test_a_lane_whose_worker_is_frozen_is_ended_by_another(
    own_database: str, ticks: Ticks, subscriber: Filter, connect: Connect
) -> None:
    quicker(ticks, "10 minutes")
    subscriber("never", NEVER)
    ticks.publish(1)
    ticks.connection.execute("select pgps.dispatch_batch(100)")
    ticks.connection.execute("update pgps_internal.lane set is_slow = true, slow_until = now()")
    stuck = psycopg.connect(own_database, autocommit=True)
    stuck.execute("select pgps.open_lanes()")
    stuck.pgconn.send_query(b"select pgps.run_slow_lane(lane_id) from pgps.slow_lanes()")
    wait_until(
        lambda: (
            ticks.connection.execute(
                "select wait_event from pg_stat_activity where pid = %s", [stuck.info.backend_pid]
            ).fetchone()
            == ("PgSleep",)
        )
    )
    ended = "select cardinality(pgps.end_stuck_lanes())"
    assert ticks.connection.execute(ended).fetchone() == (0,), "not before its time"
    quicker(ticks, "100 milliseconds")
    wait_until(lambda: ticks.connection.execute(ended).fetchone() == (1,))
    assert state(ticks, "never")[0] == "suspended"
    stuck.close()


def test_only_workers_and_administrators_end_sessions_and_only_those_with_lanes(
    own_database: str, ticks: Ticks, connect: Connect, role: RoleFactory
) -> None:
    for call in (
        "pgps.end_lane(0)",
        "pgps.end_stuck_lanes()",
        "pgps.open_lanes()",
        "pgps.slow_lanes()",
        "pgps.run_slow_lane(1)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connect(role("stranger"), dsn=own_database).execute(f"select {call}".encode())
    worker = connect(role("worker", "pgps_worker"), dsn=own_database)
    assert worker.execute("select pgps.end_lane(0)").fetchone() == (None,)


def test_a_call_that_is_cancelled_has_ended_before_its_connection_is_closed() -> None:
    asyncio.run(_is_cancelled())


async def _is_cancelled() -> None:
    begun, ending, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def asks() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            # As psycopg does, which waits until the server has answered.
            ending.set()
            await answered.wait()

    task = asyncio.create_task(lanes._Session(None, "lanes", None, 0).call(asks(), 60.0))  # type: ignore[arg-type]
    await begun.wait()
    task.cancel()
    await ending.wait()
    task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done(), "somebody would close the connection"
    answered.set()
    with pytest.raises(asyncio.CancelledError):
        await task
