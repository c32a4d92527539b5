"""What the worker does for clients: requests, confirming events, direct events that reached nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import psycopg
import pytest

from pgps_worker.clients import calls, requests
from pgps_worker.clients.requests import Requests
from pgps_worker.config import WorkerConfig
from pgps_worker.connection import Connection
from pgps_worker.connection import connect as worker_connection
from pgps_worker.ears import Ears
from pgps_worker.stop import Stop
from pgps_worker.vitals import Vitals
from tests.fix_broker import call, column, make_type, publish, rows, value
from tests.fix_clients import Client
from tests.fix_clock import Clock
from tests.fix_db import Connect, lock_waiters, wait_until
from tests.fix_worker import RoleFactory, Workers
from tests.worker.test_lanes import NEVER


def replies(client: Client, count: int) -> list[str]:
    """Wait for replies and return how they ended: done, or the SQLSTATE."""
    query = """
        select coalesce(sqlstate, state) from pgps.requests where client = %s and state <> 'waiting' order by request_id
    """
    wait_until(lambda: len(column(client.connection, query, [client.name])) >= count, what=f"{count} replies")
    return column(client.connection, query, [client.name])


def test_requests_are_executed_with_the_rights_of_who_sent_them_and_none_holds_up_another(
    own_database: str, connect: Connect, role: RoleFactory, workers: Workers
) -> None:
    admin = connect(dsn=own_database)
    alice, bob = (Client(connect(role(who), dsn=own_database), who) for who in ("alice", "bob"))
    rows(admin, "create table public.done (n integer, who text)")
    rows(admin, "grant all on public.done to public")
    rows(admin, "create table public.secret as select 42 as n")
    call(admin, "configure", "request_timeout", "1 second")
    workers(own_database, "--concurrency", "2")
    alice.call("send_request", "select pg_sleep(100)")
    asleep = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
    state = "select state from pgps.requests"
    wait_until(lambda: value(admin, asleep) or value(admin, state) != "waiting", what="hers is, or was, executed")
    # His have no time limit that a busy machine could exceed.
    call(admin, "configure", "request_timeout", "1 hour")
    bob.call("send_request", "insert into public.done select 1, current_user")
    bob.call("send_request", "reset role; select n from public.secret")
    bob.call("send_request", "select n from public.secret")
    bob.call("send_request", "insert into public.done values (2); insert into public.done values (1/0)")
    bob.call("send_request", "select g from generate_series(1, 3) g")
    assert replies(bob, 5) == ["done", "42501", "42501", "22012", "done"]
    assert rows(admin, "select n, who from public.done") == [(1, bob.connection.info.user)]
    assert [(reply := bob.reply()) and reply["rows"] for _ in range(5)][-1] == [{"g": 1}, {"g": 2}, {"g": 3}]
    assert replies(alice, 1) == ["57014"]
    alice.call("send_request", "select 1")
    assert replies(alice, 2) == ["57014", "done"]


def test_requests_of_one_role_that_take_long_hold_up_those_of_no_other(
    own_database: str, connect: Connect, role: RoleFactory, workers: Workers
) -> None:
    admin = connect(dsn=own_database)
    alice, bob = role("alice"), role("bob")
    hers = [Client(connect(alice, dsn=own_database), f"alice{n}") for n in range(4)]
    rows(admin, "select pg_advisory_lock(80)")
    for client in hers:
        client.call("send_request", "select pg_advisory_xact_lock(80)")
    workers(own_database, "--concurrency", "2")
    wait_until(lambda: len(lock_waiters(admin, 80)) == 2, what="as many as there are sessions are executed")
    his = [Client(connect(bob, dsn=own_database), f"bob{n}") for n in range(2)]
    for client in his:
        for number in (1, 2):
            client.call("send_request", f"select {number}")
    for client in his:
        assert replies(client, 2) == ["done", "done"]
    assert len(lock_waiters(admin, 80)) == 2, "none of hers is executed in between"
    rows(admin, "select pg_advisory_unlock(80)")
    for client in hers:
        assert replies(client, 1) == ["done"]


@pytest.mark.anyio
async def test_one_session_more_waits_until_it_is_known_whose_requests_are_executed(
    own_database: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [Client(connect(dsn=own_database), f"client{n}") for n in range(3)]
    for client in clients:
        client.call("send_request", "select 1")
    ears, stop = Ears(), Stop()
    begun, looks, looked, gate = 0, 0, asyncio.Event(), asyncio.Event()
    cancel_running = calls.cancel_running

    @asynccontextmanager
    async def gated(config: WorkerConfig, service: str, *, statement_timeout: float) -> AsyncIterator[Connection]:
        nonlocal begun
        if service == "requester":
            begun += 1
            await gate.wait()
        async with worker_connection(config, service, statement_timeout=statement_timeout) as connection:
            yield connection

    async def counted(connection: Connection) -> int:
        nonlocal looks
        looks += 1
        if looks > 5:
            looked.set()
        else:
            ears.ring(calls.REQUEST_CHANNEL)
        return await cancel_running(connection)

    monkeypatch.setattr(requests, "connect", gated)
    monkeypatch.setattr(calls, "cancel_running", counted)
    config = WorkerConfig(dsn=own_database, name="t", concurrency=2)
    task = asyncio.create_task(Requests(config, stop, Vitals(), ears).run())
    await asyncio.wait_for(looked.wait(), 60)
    assert begun == 2
    gate.set()
    assert await asyncio.to_thread(lambda: [replies(client, 1) for client in clients]) == [["done"]] * 3
    stop.request()
    await asyncio.wait_for(task, 60)


def test_requests_of_many_roles_that_take_long_hold_up_those_of_no_other(
    own_database: str, connect: Connect, role: RoleFactory, workers: Workers
) -> None:
    admin = connect(dsn=own_database)
    theirs = [Client(connect(role(f"hog{n}"), dsn=own_database), f"hog{n}") for n in range(5)]
    rows(admin, "create sequence public.begun")
    rows(admin, "grant usage on sequence public.begun to public")
    rows(admin, "select pg_advisory_lock(81)")
    for client in theirs:
        client.call("send_request", "select nextval('public.begun'), pg_advisory_xact_lock_shared(81)")
    workers(own_database, "--concurrency", "2", "--time-slice", "1")
    wait_until(lambda: len(lock_waiters(admin, 81)) == 3, what="as many as there are sessions, and one, are executed")
    # From then on each of theirs is known to take long, so that his have ten slices, as many as a busy machine needs.
    wait_until(lambda: value(admin, "select last_value from public.begun") >= 5, what="each of theirs was begun")
    for number in (1, 2, 3):
        # Another role each time, as the worker knows of none yet how long its requests take.
        his = Client(connect(role("bob"), dsn=own_database), f"bob{number}")
        his.call("send_request", f"select {number}")
        assert replies(his, 1) == ["done"]
    rows(admin, "select pg_advisory_unlock(81)")
    for client in theirs:
        assert replies(client, 1) == ["done"]
    attempts = "select count(*) from pgps_internal.request_attempt"
    wait_until(lambda: value(admin, attempts) == 8, what="none counts as one that has ended its session")


def test_roles_whose_requests_take_long_take_turns(
    own_database: str, connect: Connect, role: RoleFactory, workers: Workers
) -> None:
    admin = connect(dsn=own_database)
    late, *hogs = (Client(connect(role(name), dsn=own_database), name) for name in ("late", "hog0", "hog1", "hog2"))
    workers(own_database, "--concurrency", "1", "--time-slice", "0.1")
    late.call("send_request", "select pg_sleep(0.5)")
    assert replies(late, 1) == ["done"]
    rows(admin, "create sequence public.begun")
    rows(admin, "grant usage on sequence public.begun to public")
    rows(admin, "select pg_advisory_lock(83)")
    for hog in hogs:
        hog.call("send_request", "select nextval('public.begun'), pg_advisory_xact_lock_shared(83)")
    # One is in the session that there is, and of the two others each has been ended.
    wait_until(lambda: value(admin, "select last_value from public.begun") >= 4, what="each was begun")
    late.call("send_request", "select 1")
    assert replies(late, 2) == ["done", "done"]
    rows(admin, "select pg_advisory_unlock(83)")
    for hog in hogs:
        assert replies(hog, 1) == ["done"]


def test_a_request_whose_backend_is_killed_is_executed_again_and_after_three_times_given_up(
    own_database: str, connect: Connect, workers: Workers
) -> None:
    admin = connect(dsn=own_database)
    client = Client(connect(dsn=own_database), "client")
    rows(admin, "create table public.done (n integer)")
    rows(admin, "create table public.tries (n integer)")
    client.call("send_request", "insert into public.done values (1); select pg_advisory_xact_lock(77)")
    client.call("send_request", "select pg_terminate_backend(pg_backend_pid())")
    client.call("send_request", "insert into public.done values (2)")
    rows(admin, "select pg_advisory_lock(77)")
    workers(own_database)
    wait_until(lambda: lock_waiters(admin, 77))
    killed = lock_waiters(admin, 77)
    rows(admin, "select pg_terminate_backend(pid) from unnest(%s::integer[]) pid", [killed])
    wait_until(lambda: set(lock_waiters(admin, 77)) - set(killed))
    rows(admin, "select pg_advisory_unlock(77)")
    assert replies(client, 3) == ["done", "57P02", "done"]
    assert column(admin, "select n from public.done order by n") == [1, 2]
    assert column(admin, "select attempts from pgps.requests order by request_id") == [2, 3, 1]


def test_a_cancelled_request_that_catches_its_cancellation_is_ended(
    own_database: str, connect: Connect, workers: Workers
) -> None:
    client = Client(connect(dsn=own_database), "app")
    workers(own_database)
    request = client.call("send_request", f"do $$ begin perform pg_advisory_xact_lock(82); {NEVER}; end $$")
    client.call("send_request", "select 1")
    running = """
        select count(*) = 1 from pg_locks
        where locktype = 'advisory' and (classid, objid, objsubid) = (0, 82, 1) and granted
            and database = (select oid from pg_database where datname = current_database())
    """
    wait_until(lambda: value(client.connection, running), what="it runs")
    assert client.call("cancel_request", request)
    assert replies(client, 2) == ["57014", "done"]


def test_a_worker_that_leaves_lets_its_request_go_and_another_executes_it(
    own_database: str, connect: Connect, workers: Workers
) -> None:
    admin = connect(dsn=own_database)
    client = Client(connect(dsn=own_database), "client")
    rows(admin, "select pg_advisory_lock(78)")
    client.call("send_request", "select pg_advisory_xact_lock(78)")
    first = workers(own_database)
    wait_until(lambda: lock_waiters(admin, 78))
    assert first.stop() == 0
    assert value(admin, "select attempts from pgps.requests") == 0
    rows(admin, "select pg_advisory_unlock(78)")
    workers(own_database)
    assert replies(client, 1) == ["done"]


def test_one_pass_for_cron_does_what_waits(own_database: str, connect: Connect, workers: Workers) -> None:
    client = Client(connect(dsn=own_database), "client")
    client.call("send_request", "select 1")
    client.call("send_request", "select 2")
    assert workers(own_database, "--once", ready=False).wait() == 0
    assert replies(client, 2) == ["done", "done"]


def test_a_confirming_event_comes_when_the_transaction_has_ended_also_when_its_backend_was_killed(
    own_database: str, connect: Connect, workers: Workers
) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "attempt", visibility="immediate")
    make_type(admin, "outcome", "attempt_id bigint, committed boolean")
    call(admin, "link_confirm_event", "outcome", "attempt")
    client = Client(connect(dsn=own_database), "manager")
    client.register("attempt", "direct")
    client.register("outcome")
    workers(own_database)
    sessions = [connect(dsn=own_database, autocommit=False) for _ in range(3)]
    for number, session in enumerate(sessions):
        publish(session, "attempt", number)
    wait_until(lambda: value(admin, "select open from pgps.confirm_events") == 3)
    assert client.receive() is None, "nothing is known yet"
    sessions[0].commit()
    sessions[1].rollback()
    rows(admin, "select pg_terminate_backend(%s)", [sessions[2].info.backend_pid])
    confirmed: dict[int, bool] = {}
    query = "select payload -> 'attempt_id', payload -> 'committed' from pgps.fetch_tuples('manager')"

    def all_known() -> bool:
        if client.one("select * from pgps.receive_event('manager')") is not None:
            confirmed.update(rows(client.connection, query))
        return len(confirmed) == 3

    wait_until(all_known)
    raised = rows(
        client.connection, "select event_id, payload -> 'n' from pgps.fetch_direct('manager', %s)", [client.notes()]
    )
    assert [confirmed[event] for event, _ in raised] == [True, False, False]


def test_a_direct_client_that_is_not_reached_is_tried_again_and_then_given_up(
    own_database: str, connect: Connect, workers: Workers, clock: Clock
) -> None:
    admin = connect(dsn=own_database)
    call(admin, "configure", "direct_retry_interval", "1 hour")
    make_type(admin, "tick")
    client = Client(psycopg.connect(own_database, autocommit=True), "client")
    client.register("tick", "direct")
    workers(own_database)
    pid = client.connection.info.backend_pid
    client.connection.close()
    gone = "select count(*) = 0 from pg_stat_activity where pid = %s"
    wait_until(lambda: value(admin, gone, [pid]), what="it has no session any more that could be taken for its own")
    standing = "select attempts, state from pgps.registrations"
    publish(admin, "tick", 1)
    wait_until(lambda: rows(admin, standing) == [(1, "valid")])
    client = Client(connect(dsn=own_database), "client")
    client.listen()
    clock.advance("1 hour")
    assert client.pushed(waits=True) == [1], "what it has missed is pushed once more"
    wait_until(lambda: rows(admin, standing) == [(0, "valid")], what="the worker notes that it was reached")
    rows(admin, "select pg_terminate_backend(%s, 60000)", [client.connection.info.backend_pid])
    publish(admin, "tick", 2)

    def tried(times: int) -> bool:
        return rows(admin, standing) == [(times, "valid")]

    for attempt in (1, 2, 3):
        wait_until(partial(tried, attempt))
        clock.advance("1 hour")
    wait_until(lambda: value(admin, "select state from pgps.registrations") == "invalid")
    assert "4 tries" in value(admin, "select reason from pgps.registrations")
    client = Client(connect(dsn=own_database), "client")
    client.register("tick", "direct")
    publish(admin, "tick", 3)
    assert client.pushed(waits=True) == [3]


def test_a_killed_worker_loses_no_request(own_database: str, connect: Connect, workers: Workers) -> None:
    admin = connect(dsn=own_database)
    client = Client(connect(dsn=own_database), "client")
    rows(admin, "create table public.done (n integer)")
    rows(admin, "select pg_advisory_lock(79)")
    for number in range(5):
        client.call(
            "send_request", f"insert into public.done values ({number}); select pg_advisory_xact_lock_shared(79)"
        )
    first = workers(own_database)
    wait_until(lambda: lock_waiters(admin, 79))
    first.kill9()
    workers(own_database)
    rows(admin, "select pg_advisory_unlock(79)")
    assert replies(client, 5) == ["done"] * 5
    assert column(admin, "select n from public.done order by n") == list(range(5))


def test_a_session_that_was_beaten_to_a_request_does_not_count_as_ended_by_it(
    own_database: str, connect: Connect, clock: Clock
) -> None:
    admin, quicker = connect(dsn=own_database), connect(dsn=own_database)
    client = Client(connect(dsn=own_database), "client")
    client.call("send_request", "select 1")
    config = WorkerConfig(dsn=own_database, name="t")

    async def be_beaten() -> None:
        session = Requests(config, Stop(), Vitals(), Ears())
        async with worker_connection(config, "requester", statement_timeout=60) as connection:
            claimed = await calls.claim_request(connection)
            assert claimed is not None
            clock.advance("2 seconds")
            assert rows(quicker, "select request_no from pgps.claim_request()") == [(claimed.number,)]
            rows(quicker, "begin")
            assert column(quicker, "select pgps.run_request(%s)", [claimed.number]) == ["done"]
            await session._execute(connection, claimed)

    asyncio.run(be_beaten())
    rows(quicker, "commit")
    assert value(admin, "select count(*) from pgps_internal.request_attempt") == 1
