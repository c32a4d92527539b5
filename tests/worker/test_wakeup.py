"""The agreement of publishers and dispatcher on who tells whom, with the dispatcher's pace in the test's hands."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import psycopg
import pytest

from pgps_worker import dispatcher, pace
from pgps_worker.config import WorkerConfig
from pgps_worker.dispatcher import Dispatcher
from pgps_worker.pace import Pace
from pgps_worker.stop import Stop
from pgps_worker.vitals import Vitals
from tests.fix_db import Connect, lock_waiters, notifications, wait_until
from tests.fix_worker import RoleFactory, Ticks

pytestmark = pytest.mark.anyio

_GATE = 78


class GivenPace(Pace):
    """A pace that is busy when the test says so, and calm otherwise."""

    busy = False

    def is_busy(self, now: float) -> bool:
        return GivenPace.busy

    def is_calm(self, now: float) -> bool:
        return not GivenPace.busy


@pytest.fixture(autouse=True)
def given_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "Pace", GivenPace)
    # It would say every second that it sleeps: then what it did last would be that, and no look; see WAITING.
    monkeypatch.setattr(dispatcher._Leader._keep_leading, "__defaults__", (600.0,))
    GivenPace.busy = False


@asynccontextmanager
async def dispatching(dsn: str) -> AsyncIterator[Vitals]:
    """A dispatcher, for as long as the block lasts."""
    stop, vitals = Stop(), Vitals()
    task = asyncio.create_task(Dispatcher(WorkerConfig(dsn=dsn, name="t"), stop, vitals).run())
    try:
        yield vitals
    finally:
        stop.request()
        await asyncio.wait_for(task, 60)


async def until(condition: str, connection: psycopg.Connection) -> None:
    """Wait, without holding up the dispatcher, until a query returns a row."""
    await asyncio.to_thread(wait_until, lambda: connection.execute(condition.encode()).fetchone(), what=condition)


AWAKE = "select 1 from pgps_internal.wake_seq where is_called and last_value = 0"
# In _asleep a look is nothing but a dispatch.
WAITING = """
select 1 from pg_stat_activity
where datname = current_database() and application_name like 'pgps-worker/%'
    and query like 'select pgps.dispatch_batch%'
    and exists (select from pgps_internal.wake_seq where is_called and last_value > 0)
"""
ASLEEP = "select 1 from pgps_internal.wake_seq where last_value > 0"


def believe_it(connection: psycopg.Connection) -> None:
    """Have publishers believe for an hour that the dispatcher sleeps, which has just said so; else for 5 seconds."""
    connection.execute(
        "select setval('pgps_internal.wake_seq', last_value + 3600) from pgps_internal.wake_seq where last_value > 0"
    )


async def test_publishers_tell_a_sleeping_dispatcher_and_spare_one_that_is_awake(
    own_database: str, ticks: Ticks, connect: Connect
) -> None:
    listener = connect(dsn=own_database)
    listener.execute("listen pgps_dispatch")

    def told() -> int:
        return len(notifications(listener))

    ticks.subscribe("all")
    async with dispatching(own_database) as vitals:
        await until(WAITING, listener)
        believe_it(listener)
        await asyncio.to_thread(ticks.publish, 1)
        assert await asyncio.to_thread(told) == 1
        GivenPace.busy = True
        await asyncio.to_thread(ticks.publish, 2)
        await until(AWAKE, ticks.connection)
        await asyncio.to_thread(told)
        for number in range(3, 10):
            await asyncio.to_thread(ticks.publish, number)
        assert await asyncio.to_thread(told) == 0
        GivenPace.busy = False
        await until(ASLEEP, ticks.connection)
        believe_it(ticks.connection)
        await asyncio.to_thread(ticks.publish, 10)
        assert await asyncio.to_thread(told) == 1
        await asyncio.to_thread(wait_until, lambda: vitals.events_dispatched == 10)


EAR = "select 1 from pg_stat_activity where datname = current_database() and application_name like '%/dispatcher-ear'"


def _is_deaf_by(stranger: psycopg.Connection, watcher: psycopg.Connection) -> bool:
    """Flood the channel; true when nobody listens any more. On a busy machine a flood may be read over seconds."""
    stranger.execute("select count(pg_notify('pgps_dispatch', n::text)::text) from generate_series(1, 1000) n")
    deadline = time.monotonic() + 1
    while watcher.execute(EAR.encode()).fetchone():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


async def test_who_floods_its_channel_is_not_listened_to_and_delays_nobody(
    own_database: str, ticks: Ticks, connect: Connect, role: RoleFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pace, dispatcher):
        monkeypatch.setattr(module, "SAFETY", 600.0)
    ticks.subscribe("all")
    stranger = connect(role("stranger"), dsn=own_database)
    async with dispatching(own_database) as vitals:
        for number in (1, 2):
            await until(WAITING, ticks.connection)
            await until(EAR, ticks.connection)
            await asyncio.to_thread(wait_until, partial(_is_deaf_by, stranger, ticks.connection), what="it is deaf")
            believe_it(ticks.connection)
            # Whether it listens again or not by now.
            await asyncio.to_thread(ticks.publish, 2 * number - 1)
            await asyncio.to_thread(wait_until, lambda: vitals.events_dispatched == 2 * number - 1)  # noqa: B023
            await until(EAR, ticks.connection)
            believe_it(ticks.connection)
            await asyncio.to_thread(ticks.publish, 2 * number)
            await asyncio.to_thread(wait_until, lambda: vitals.events_dispatched == 2 * number)  # noqa: B023


async def test_a_dispatcher_whose_ear_is_ended_hears_again(
    own_database: str, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pace, dispatcher):
        monkeypatch.setattr(module, "SAFETY", 600.0)
    ticks.subscribe("all")
    async with dispatching(own_database) as vitals:
        await until(WAITING, ticks.connection)
        await until(EAR, ticks.connection)
        ticks.connection.execute(EAR.replace("select 1", "select pg_terminate_backend(pid, 60000)").encode())
        believe_it(ticks.connection)
        await asyncio.to_thread(ticks.publish, 1)
        await asyncio.to_thread(wait_until, lambda: vitals.events_dispatched == 1)
        await until(EAR, ticks.connection)
        believe_it(ticks.connection)
        await asyncio.to_thread(ticks.publish, 2)
        await asyncio.to_thread(wait_until, lambda: vitals.events_dispatched == 2)


async def test_who_found_it_awake_and_commits_when_it_sleeps_does_not_wait_for_the_safety_poll(
    own_database: str, ticks: Ticks, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher stands between its commit trigger and its commit while the dispatcher falls asleep."""
    for module in (pace, dispatcher):
        monkeypatch.setattr(module, "SAFETY", 600.0)
    ticks.connection.execute("create table public.gate (n integer)")
    ticks.connection.execute(
        f"""
        create function public.wait_at_gate() returns trigger language plpgsql as
        $$ begin perform pg_advisory_xact_lock_shared({_GATE}); return null; end $$
        """.encode()
    )
    ticks.connection.execute(
        """
        create constraint trigger gate after insert on public.gate deferrable initially deferred
        for each row execute function public.wait_at_gate()
        """
    )
    keeper, publisher = connect(dsn=own_database), connect(dsn=own_database)
    GivenPace.busy = True
    async with dispatching(own_database) as vitals:
        await until(AWAKE, ticks.connection)
        keeper.execute("select pg_advisory_lock(%s)", [_GATE])

        def publish() -> None:
            with publisher.transaction():
                publisher.execute("insert into pgps_event.tick (n) values (1)")
                publisher.execute("insert into public.gate values (1)")

        thread = threading.Thread(target=publish)
        thread.start()
        await asyncio.to_thread(wait_until, lambda: lock_waiters(ticks.connection, _GATE))
        GivenPace.busy = False
        await until(ASLEEP, ticks.connection)
        keeper.execute("select pg_advisory_unlock(%s)", [_GATE])
        await asyncio.to_thread(thread.join)
        await asyncio.to_thread(wait_until, lambda: vitals.events_dispatched == 1)


async def test_a_notification_that_never_comes_is_made_up_for_by_the_safety_poll(
    own_database: str, ticks: Ticks, connect: Connect
) -> None:
    """As if the commit had found somebody else awake who died."""
    idle = connect(dsn=own_database)
    async with dispatching(own_database) as vitals:
        await until(WAITING, idle)
        idle.execute("select setval('pgps_internal.wake_seq', 0)")
        await asyncio.to_thread(ticks.publish, 1)
        await asyncio.to_thread(wait_until, lambda: vitals.events_dispatched == 1)
