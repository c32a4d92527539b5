"""Composite events under a worker: code of one owner that does not let itself be cancelled stops nobody else's."""

from __future__ import annotations

import psycopg
import pytest

from pgps_worker.composites import SHARE, detect_and_dispatch
from pgps_worker.config import WorkerConfig
from pgps_worker.connection import connect as connect_worker
from pgps_worker.vitals import Vitals
from pgps_worker.wire import Wire
from tests.fix_broker import call, make_type, rows, value
from tests.fix_db import Connect, notifications, wait_until
from tests.fix_worker import RoleFactory, Workers
from tests.worker.test_lanes import NEVER

GIVEN = {
    "filter": {"filter": "{owner}.endless(x.k)"},
    "attribute": {"attributes": "ends boolean = {owner}.endless(x.k)"},
}


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "a", "k integer")
    call(connection, "create_composite_event", "good", "a x")
    return connection


@pytest.mark.parametrize("what", sorted(GIVEN))
def test_code_that_swallows_its_cancellation_is_ended_and_its_composite_event_suspended(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: RoleFactory, workers: Workers, what: str
) -> None:
    owner = role("endless", "pgps_admin")
    rows(broker, f"create schema {owner} authorization {owner}")
    session = connect(owner, dsn=own_database)
    session.execute(
        f"create function {owner}.endless(k integer) returns boolean language plpgsql as "
        f"$$ begin if k = 2 then {NEVER}; end if; return true; end $$".encode()
    )
    given = {name: text.format(owner=owner) for name, text in GIVEN[what].items()}
    call(session, "create_composite_event", "bad", "a x", **given)
    detected = "select detected from pgps.composite_events where name = %s"
    state = "select state, last_error from pgps.composite_events where name = 'bad'"
    # What is well takes, the first time in a session and on a busy machine, longer than what is bad need be given.
    call(broker, "configure", "dispatch_lane_timeout", "1 minute")
    worker = workers(own_database)
    rows(broker, "insert into pgps_event.a (k) values (1)")
    wait_until(lambda: value(broker, detected, ["bad"]) == value(broker, detected, ["good"]) == 1, what="both detect")
    call(broker, "configure", "dispatch_lane_timeout", "200 milliseconds")
    rows(broker, "insert into pgps_event.a (k) values (2)")
    wait_until(lambda: rows(broker, state)[0][0] == "suspended", what="it is suspended")
    assert "do not let themselves be cancelled" in rows(broker, state)[0][1]
    wait_until(lambda: "suspended composite event" in worker.messages, what="the log says so")
    rows(broker, "insert into pgps_event.a (k) values (3)")
    wait_until(lambda: value(broker, detected, ["good"]) == 3, what="the other goes on")
    assert value(broker, detected, ["bad"]) == 1
    # Mended, it takes what it has not taken.
    call(broker, "configure", "dispatch_lane_timeout", "1 minute")
    session.execute(
        f"create or replace function {owner}.endless(k integer) returns boolean language sql as 'select true'".encode()
    )
    call(session, "alter_composite_event", "bad", enabled=True)
    wait_until(lambda: value(broker, detected, ["bad"]) == 3, what="it goes on")


def test_an_owner_whose_code_is_slow_is_late_alone(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: RoleFactory, workers: Workers
) -> None:
    call(broker, "configure", "dispatch_lane_timeout", "10 minutes")
    owner = role("slow", "pgps_admin")
    rows(broker, f"create schema {owner} authorization {owner}")
    session = connect(owner, dsn=own_database)
    body = """
        create or replace function {}.slow(k integer) returns integer language plpgsql set lock_timeout = '0' as
        $$ begin {} end $$
    """
    # As slow as this test likes: nothing of it is detected as long as the lock is held, and each takes its time then.
    slow = "perform pg_advisory_xact_lock_shared(75); perform pg_sleep(1.2); return k;"
    session.execute(body.format(owner, slow).encode())
    for n in range(4):
        given = {"filter": f"{owner}.slow(x.k) > 0"} if n % 2 else {"attributes": f"v integer = {owner}.slow(x.k)"}
        call(session, "create_composite_event", f"slow{n}", "a x", **given)
    call(session, "create_composite_event", "plain", "a x")
    rows(broker, "select pg_advisory_lock(75)")
    worker = workers(own_database)
    found = """select (select detected from pgps.composite_events where name = 'good'),
        (select detected from pgps.composite_events where name = 'plain'),
        (select sum(detected) from pgps.composite_events where name like 'slow%')"""
    for n in range(1, 4):
        rows(broker, "insert into pgps_event.a (k) values (%s)", [n])
        seen: list[tuple[int, int, int]] = []

        def good_is_detected(n: int = n, seen: list[tuple[int, int, int]] = seen) -> bool:
            seen[:] = rows(broker, found)
            return seen[0][0] >= n

        wait_until(good_is_detected, what="what waits for nobody is detected")
        assert worker.is_running()
        # What is waited for would be there with it.
        assert seen == [(n, n, 0)]
    wait_until(lambda: f"the composite events of role {owner} are slow" in worker.messages, what="the log says so")
    assert [role for role, *_ in rows(broker, "select * from pgps.slow_detection()")] == [owner]
    rows(broker, "select pg_advisory_unlock(75)")
    wait_until(lambda: rows(broker, found)[0] == (3, 3, 12), what="the slow ones are detected, too")
    assert value(broker, "select bool_and(state = 'active') from pgps.composite_events")
    # Mended, they are detected with the others again.
    session.execute(body.format(owner, "return k;").encode())
    wait_until(lambda: _detects_quickly(broker), what="it is slow no more")
    wait_until(lambda: f"the composite events of role {owner} are quick again" in worker.messages, what="the log")


def test_owners_whose_code_is_slow_together_are_late_alone(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: RoleFactory, workers: Workers
) -> None:
    owners = [role(f"slow{n}", "pgps_admin") for n in range(5)]
    for owner in owners:
        rows(broker, f"create schema {owner} authorization {owner}")
        session = connect(owner, dsn=own_database)
        # Below a second each, which is what there is for all.
        rows(
            session,
            f"create function {owner}.slow(k integer) returns integer language plpgsql as "
            "$$ begin perform pg_sleep(0.6); return k; end $$",
        )
        call(session, "create_composite_event", f"{owner}_seen", "a x", attributes=f"v integer = {owner}.slow(x.k)")
    workers(own_database)
    rows(broker, "insert into pgps_event.a (k) values (1)")
    names = [f"{owner}_seen" for owner in owners]
    found = "select sum(detected) from pgps.composite_events where name = any (%s)"
    wait_until(lambda: value(broker, found, [names]) == 5, what="all are detected")
    slow = "select count(*) from pgps_internal.slow_detection"
    assert value(broker, slow) >= 2, "who has taken long beside the others is detected apart"
    assert value(broker, "select bool_and(state = 'active') from pgps.composite_events")


MUCH = {
    # 9 to the 4th are made of each four of six: few enough not to be suspended for it, on however quick a machine.
    "combinations": ("any(4, b u, b v, b w, b x, b y, b z)", "unrestricted", 9),
    "ticks": ("P(b x, '10 milliseconds', b (k < 0) y)", "continuous", 4000),
}


@pytest.mark.parametrize("what", sorted(MUCH))
def test_an_owner_of_whose_events_much_is_made_is_late_alone(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: RoleFactory, workers: Workers, what: str
) -> None:
    make_type(broker, "b", "k integer")
    expression, context, events = MUCH[what]
    owner = role("greedy", "pgps_admin")
    session = connect(owner, dsn=own_database)
    for n in range(3):
        call(session, "create_composite_event", f"much{n}", expression, context=context, max_open=10_000 - n)
    # What is detected apart comes to no end, which might be that it is suspended, before the test has looked.
    rows(
        broker,
        "create function public.stay() returns trigger language plpgsql set lock_timeout = '0' as "
        "$$ begin perform pg_advisory_xact_lock_shared(76); return new; end $$",
    )
    rows(
        broker,
        "create trigger stay before update on pgps_internal.slow_detection for each row execute function public.stay()",
    )
    rows(broker, "select pg_advisory_lock(76)")
    worker = workers(own_database)
    rows(broker, "insert into pgps_event.b (k) select 1 from generate_series(1, %s)", [events])
    slow = "select role from pgps.slow_detection()"
    wait_until(lambda: rows(broker, slow) == [(owner,)], what="it is slow")
    assert rows(broker, "select name from pgps.composite_events where state <> 'active'") == []
    rows(broker, "insert into pgps_event.a (k) values (1)")
    found = "select detected from pgps.composite_events where name = 'good'"
    wait_until(lambda: value(broker, found) == 1, what="the other one is detected")
    assert rows(broker, slow) == [(owner,)]
    assert worker.is_running()
    rows(broker, "select pg_advisory_unlock(76)")
    for n in range(3):
        call(session, "alter_composite_event", f"much{n}", enabled=False)


def _detects_quickly(broker: psycopg.Connection) -> bool:
    rows(broker, "insert into pgps_event.a (k) values (1)")
    return not rows(broker, "select role from pgps.slow_detection()")


def test_what_is_detected_is_dispatched_by_who_detects(
    broker: psycopg.Connection, own_database: str, connect: Connect, workers: Workers
) -> None:
    call(broker, "subscribe", "s", "good")
    ear = connect(dsn=own_database)
    rows(ear, "listen pgps_dispatch; listen pgps_composite")
    workers(own_database)
    dispatched = (
        "select count(*) from pgps_internal.delivery join pgps_internal.event_type using (type_id) where name = 'good'"
    )
    for number in range(20):
        rows(broker, "insert into pgps_event.a (k) values (%s)", [number])
        wait_until(lambda number=number: value(broker, dispatched) == number + 1, what="it is dispatched")  # type: ignore[misc]
    told = [one.channel for one in notifications(ear)]
    assert told.count("pgps_dispatch") <= 20 <= told.count("pgps_composite"), "of the publisher's events alone"


@pytest.mark.anyio
async def test_a_filter_that_hangs_where_somebody_detects_goes_to_its_lane_and_stops_nobody_else(
    broker: psycopg.Connection, own_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    call(broker, "create_composite_event", "other", "a x", attributes="k integer = x.k")
    call(broker, "subscribe", "all", "other")
    call(broker, "subscribe", "hangs", "other", "k = 1")
    signature = value(broker, "select max(signature_id) from pgps_internal.signature")
    rows(
        broker,
        f"create or replace function pgps_internal.match_{signature}(pgps_batch bigint, pgps_ids int8multirange, "
        "pgps_only int8range) returns bigint[] language sql as 'select null::bigint[] from (select pg_sleep(600) "
        f"from pgps_internal.class where signature_id = {signature} and is_active) s'",
    )
    rows(broker, "select pgps.try_lead(); listen pgps_dispatch; insert into pgps_event.a (k) values (1)")
    rows(broker, "select pgps.dispatch_batch()")
    assert len([*broker.notifies(timeout=0)]) == 1
    config, vitals = WorkerConfig(dsn=own_database, name="detects"), Vitals(leading=True)
    async with connect_worker(config, "composites", statement_timeout=60) as connection:
        with Wire(connection) as wire:
            found = await wire.aside(lambda: detect_and_dispatch(wire, SHARE, vitals, 5))
            assert (found.steps, vitals.events_dispatched) == (2, 0)
            assert wire.row("show statement_timeout") == ("5min",)
    assert value(broker, "select in_lane from pgps_internal.signature where signature_id = %s", [signature])
    assert "the filter of hangs takes too long for the dispatcher" in caplog.text
    rows(broker, "select")
    assert len([*broker.notifies(timeout=0)]) == 1, "the leader is told"
    assert value(broker, "select pgps.dispatch_batch()") == 2
    assert value(broker, "select depth from pgps.subscriptions where name = 'all'") == 1


@pytest.mark.anyio
async def test_who_detects_beside_another_workers_leader_has_that_dispatch(
    broker: psycopg.Connection, own_database: str
) -> None:
    call(broker, "subscribe", "all", "good")
    rows(broker, "select pgps.try_lead(); listen pgps_dispatch")
    config = WorkerConfig(dsn=own_database, name="detects")
    async with connect_worker(config, "composites", statement_timeout=60) as connection:
        with Wire(connection) as wire:
            for leads in (False, True, False):
                vitals = Vitals(leading=leads)
                rows(broker, "insert into pgps_event.a (k) values (1)")
                rows(broker, "select pgps.dispatch_batch()")
                assert len([*broker.notifies(timeout=0)]) == 1
                found = await wire.aside(lambda vitals=vitals: detect_and_dispatch(wire, SHARE, vitals, 60))  # type: ignore[misc]
                rows(broker, "select")
                told = len([*broker.notifies(timeout=0)])
                assert (found.steps, vitals.events_dispatched, told) == (1, int(leads), int(not leads))
                assert value(broker, "select pgps.dispatch_batch()") == int(not leads)
