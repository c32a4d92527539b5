"""The dispatcher's short way to the server: answers, errors, notifications, cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psycopg
import pytest
from psycopg import errors

from pgps_worker import calls
from pgps_worker.config import WorkerConfig
from pgps_worker.connection import connect
from pgps_worker.stop import Stop
from pgps_worker.wire import Wire
from tests.fix_db import wait_until
from tests.fix_worker import Ticks

pytestmark = pytest.mark.anyio
T = TypeVar("T")


async def begun(wire: Wire, waits: Callable[[Wire], T]) -> asyncio.Task[T]:
    """Have the wire wait; return once its thread has come to that."""
    there = threading.Event()

    def work() -> T:
        there.set()
        return waits(wire)

    task = asyncio.create_task(wire.aside(work))
    assert await asyncio.to_thread(there.wait, 60)
    return task


@pytest.fixture
def config(dsn: str) -> WorkerConfig:
    return WorkerConfig(dsn=dsn, name="wire")


async def test_a_row_has_the_types_that_psycopg_gives(config: WorkerConfig) -> None:
    async with connect(config, "wire", statement_timeout=60) as connection:
        with Wire(connection) as wire:
            row = wire.row("select 1, true, null, 'é', $1::pg_snapshot::text", ["1:1:"])
            assert row == (1, True, None, "é", "1:1:")
            assert wire.row("select false, 2") == (False, 2)


async def test_what_is_larger_than_the_sockets_buffers_comes_through(config: WorkerConfig) -> None:
    async with connect(config, "wire", statement_timeout=60) as connection:
        text = "x" * 8_000_000
        with Wire(connection) as wire:
            assert wire.row("select $1::text || 'y'", [text]) == (text + "y",)


async def test_an_error_is_that_of_its_sqlstate_and_the_connection_goes_on(config: WorkerConfig) -> None:
    async with connect(config, "wire", statement_timeout=60) as connection:
        with Wire(connection) as wire:
            with pytest.raises(errors.DivisionByZero, match="division by zero"):
                wire.row("select 1 / $1::integer", ["0"])
            assert wire.row("select 2") == (2,)
        assert await (await connection.execute("select 3")).fetchone() == (3,)


async def test_statements_that_are_sent_at_once_are_transactions_of_their_own(config: WorkerConfig) -> None:
    xid = "select pg_current_xact_id()::text, $1::integer / $2::integer"
    async with connect(config, "wire", statement_timeout=60) as connection:
        with Wire(connection) as wire:
            one, failed, two = wire.rows((xid, ["4", "2"]), (xid, ["1", "0"]), (xid, ["9", "3"]))
            assert isinstance(failed, errors.DivisionByZero)
            assert not isinstance(one, psycopg.Error)
            assert not isinstance(two, psycopg.Error)
            assert (one[1], two[1]) == (2, 3)
            assert one[0] != two[0]
            assert wire.row("select 5") == (5,)
        assert await (await connection.execute("select 3")).fetchone() == (3,)


async def test_a_session_that_ends_while_statements_are_sent_at_once_is_noticed(config: WorkerConfig) -> None:
    async with connect(config, "wire", statement_timeout=60) as connection:
        with Wire(connection) as wire, pytest.raises(psycopg.OperationalError):
            wire.rows(("select pg_terminate_backend(pg_backend_pid())", []), ("select 1", []))


async def test_a_statement_that_takes_too_long_is_cancelled(config: WorkerConfig) -> None:
    async with connect(config, "wire", statement_timeout=0.05) as connection:
        with Wire(connection) as wire, pytest.raises(errors.QueryCanceled):
            wire.row("select pg_sleep(60)")


async def test_a_cancelled_task_cancels_its_statement(config: WorkerConfig, admin: psycopg.Connection) -> None:
    async with connect(config, "wire", statement_timeout=60) as connection:
        with Wire(connection) as wire:
            task = asyncio.create_task(wire.aside(lambda: wire.row("select pg_sleep(60)")))
            running = "select 1 from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
            pid = connection.info.backend_pid
            await asyncio.to_thread(
                wait_until, lambda: admin.execute(running, [pid]).fetchone(), what="the statement runs"
            )
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 60)
            assert wire.interrupted
            assert wire.row("select 1") == (1,)


@pytest.mark.parametrize("waits", [lambda wire: wire.notified(60), lambda wire: wire.pause(60)])
async def test_a_cancelled_task_leaves_its_waits(config: WorkerConfig, waits: Callable[[Wire], object]) -> None:
    async with connect(config, "wire", statement_timeout=60) as connection:
        with Wire(connection) as wire:
            task = await begun(wire, waits)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 60)


async def test_what_is_done_aside_has_its_result_and_its_error(config: WorkerConfig) -> None:
    async with connect(config, "wire", statement_timeout=60) as connection:
        with Wire(connection) as wire:
            assert await wire.aside(lambda: wire.row("select 1")) == (1,)
            with pytest.raises(errors.UndefinedTable):
                await wire.aside(lambda: wire.row("select * from no_such_table"))


async def test_a_wire_that_waits_takes_no_thread_of_the_event_loops(config: WorkerConfig) -> None:
    """It has few, and needs them to look up hosts: many dispatchers in one process would leave it none."""
    with ThreadPoolExecutor(1) as only:
        asyncio.get_running_loop().set_default_executor(only)
        async with connect(config, "wire", statement_timeout=60) as connection:
            with Wire(connection) as wire:
                waiting = await begun(wire, lambda wire: wire.notified(60))
                assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 60) == 1
                assert not waiting.done()
                wire.interrupt()
                assert await waiting == 0


async def test_a_server_that_hangs_up_is_noticed_by_statements_and_waits(
    config: WorkerConfig, admin: psycopg.Connection
) -> None:
    for waits in (True, False):
        async with connect(config, "wire", statement_timeout=60) as connection:
            with Wire(connection) as wire:
                admin.execute("select pg_terminate_backend(%s, 60000)", [connection.info.backend_pid])
                with pytest.raises(psycopg.OperationalError):
                    _ = wire.notified(60) if waits else wire.row("select 1")


async def test_notifications_are_counted_also_those_that_came_while_a_statement_ran(
    config: WorkerConfig, admin: psycopg.Connection
) -> None:
    async with connect(config, "wire", statement_timeout=60) as connection:
        await connection.execute("listen wire_test")
        with Wire(connection) as wire:
            for _ in range(3):
                admin.execute("notify wire_test")
            wire.row("select 1")
            assert wire.notified(60) == 3
            assert wire.notified(0.01) == 0
            waiting = asyncio.create_task(wire.aside(lambda: wire.notified(60)))
            await asyncio.to_thread(admin.execute, "notify wire_test")
            assert await waiting == 1


@pytest.mark.parametrize("requested", ["before", "meanwhile"])
async def test_a_request_to_leave_ends_the_wait(config: WorkerConfig, requested: str) -> None:
    stop = Stop()
    if requested == "before":
        stop.request()
    async with connect(config, "wire", statement_timeout=60) as connection:
        with Wire(connection) as wire, stop.calls(wire.interrupt):
            waiting = await begun(wire, lambda wire: wire.notified(60))
            stop.request()
            assert await asyncio.wait_for(waiting, 60) == 0
            assert wire.interrupted


async def test_a_dispatch_tells_how_many_events_it_found_and_subscriptions_it_woke(
    own_database: str, ticks: Ticks
) -> None:
    for name in ("first", "second", "third"):
        ticks.subscribe(name)
    ticks.publish(1)
    ticks.publish(2)
    async with connect(WorkerConfig(dsn=own_database), "wire", statement_timeout=60) as connection:
        with Wire(connection) as wire:
            assert calls.dispatch(wire) == calls.Batch(events=2, woken=3)
            assert calls.dispatch(wire) == calls.Batch(events=0, woken=0)
