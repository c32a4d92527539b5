"""Waits that are cut short."""

import asyncio

import pytest

from pgps_worker.stop import Stop

pytestmark = pytest.mark.anyio


async def _slow_to_leave(stop: Stop, started: asyncio.Event, done: asyncio.Event) -> None:
    """Wait for nothing, and take until `done` to leave, as a session does whose statement is being cancelled."""
    async with stop.cuts_short(after=0):
        try:
            await asyncio.Event().wait()
        finally:
            started.set()
            await done.wait()


async def _patient(stop: Stop) -> None:
    async with stop.cuts_short(after=3600):
        await asyncio.Event().wait()


async def test_a_wait_that_is_being_left_does_not_keep_others_from_being_cut_short() -> None:
    stop, started, done = Stop(), asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(_slow_to_leave(stop, started, done))
        others = [group.create_task(_patient(stop)) for _ in range(20)]
        await started.wait()
        stop.request()
        await asyncio.wait(others, timeout=50)
        cut_short = all(other.done() for other in others)
        for other in others:
            other.cancel()
        done.set()
    assert cut_short
