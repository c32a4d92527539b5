"""One session of a worker listens for its services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psycopg
import pytest

from pgps_worker.config import WorkerConfig
from pgps_worker.connection import connect
from pgps_worker.ears import Ears, Listener
from pgps_worker.stop import Stop
from pgps_worker.supervisor import Supervisor
from pgps_worker.vitals import Vitals
from pgps_worker.wire import Wire
from tests.fix_broker import column, value
from tests.fix_db import wait_until

pytestmark = pytest.mark.anyio

LONG = 60.0
_PID = "select pid from pg_stat_activity where application_name = format('pgps-worker/%%s/listener', %s::text)"


@pytest.fixture
def config(dsn: str, name: Callable[..., str]) -> WorkerConfig:
    return WorkerConfig(dsn=dsn, name=name("worker"))


@asynccontextmanager
async def listening(config: WorkerConfig) -> AsyncIterator[tuple[Ears, Stop]]:
    """A worker that does nothing but listen, for as long as the block lasts."""
    stop, vitals, ears = Stop(), Vitals(), Ears()
    task = asyncio.create_task(Supervisor(stop, vitals).run([Listener(config, stop, vitals, ears)]))
    try:
        yield ears, stop
    finally:
        stop.request()
        await asyncio.wait_for(task, LONG)


async def test_who_waits_is_rung_when_his_channel_is_listened_to_and_then_by_each_notification(
    config: WorkerConfig, admin: psycopg.Connection
) -> None:
    async with listening(config) as (ears, stop):
        with ears.hear("ears_one", "ears_two") as ear, ears.hear("ears_two") as other:
            assert await ear.heard(LONG, stop=stop) == {"ears_one", "ears_two"}
            assert await other.heard(LONG, stop=stop) == {"ears_two"}
            assert not await ear.heard(0.01, stop=stop)
            admin.execute("notify ears_one; notify ears_three; notify ears_two")
            assert await other.heard(LONG, stop=stop) == {"ears_two"}
            assert await ear.heard(LONG, stop=stop) == {"ears_one", "ears_two"}, "they come together"
            admin.execute("notify ears_one")
            assert await ear.heard(LONG, stop=stop) == {"ears_one"}
            with ears.hear("ears_three") as third:
                assert await third.heard(LONG, stop=stop) == {"ears_three"}
                admin.execute("notify ears_three")
                assert await third.heard(LONG, stop=stop) == {"ears_three"}
            assert not await other.heard(0.01, stop=stop)


async def test_nothing_is_missed_while_the_session_that_listens_is_replaced(
    config: WorkerConfig, admin: psycopg.Connection
) -> None:
    async with listening(config) as (ears, stop):
        with ears.hear("ears_one") as ear, ears.hear("ears_two") as other:
            for one in (ear, other):
                assert await one.heard(LONG, stop=stop)
            assert value(admin, "select pg_terminate_backend(pid, 60000) from (" + _PID + ") p", [config.name])
            # Nobody hears it.
            admin.execute("notify ears_one")
            assert await ear.heard(LONG, stop=stop) == {"ears_one"}
            assert await other.heard(LONG, stop=stop) == {"ears_two"}, "there might have been one"


async def test_a_channel_that_nobody_waits_for_any_more_is_not_listened_to(
    config: WorkerConfig, admin: psycopg.Connection
) -> None:
    async with listening(config) as (ears, stop):
        with ears.hear("ears_one") as ear:
            assert await ear.heard(LONG, stop=stop)
            with ears.hear("ears_two") as other:
                assert await other.heard(LONG, stop=stop)
        query = "select query from pg_stat_activity where pid = (" + _PID + ") and state = 'idle'"

        def said() -> bool:
            return column(admin, query, [config.name]) == ['unlisten "ears_one"; unlisten "ears_two"']

        await asyncio.to_thread(wait_until, said, what="both are given up")


async def test_a_thread_hears_beside_what_else_it_waits_for(config: WorkerConfig, admin: psycopg.Connection) -> None:
    async with (
        listening(config) as (ears, _),
        connect(config, "tester", statement_timeout=LONG) as connection,
    ):
        with Wire(connection) as wire, ears.hear_in_thread("ears_one") as ear:
            wire.heed(ear)
            assert await wire.aside(lambda: wire.notified(LONG)) == 1
            assert await wire.aside(lambda: wire.notified(0.01)) == 0
            admin.execute("notify ears_one")
            assert await wire.aside(lambda: wire.notified(LONG)) == 1
            waiting = asyncio.create_task(wire.aside(lambda: wire.notified(LONG)))
            wire.interrupt()
            assert await waiting == 0


async def test_waiting_ends_when_asked_to_stop(config: WorkerConfig) -> None:
    stop = Stop()
    with Ears().hear("ears_one") as ear:
        waiting = asyncio.create_task(ear.heard(LONG, stop=stop))
        await asyncio.sleep(0)
        stop.request()
        assert not await waiting
