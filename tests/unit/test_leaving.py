"""Tasks of a service that is ended: each is let go, and all at once when there is no more time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pgps_worker.links.together import leave


async def _left(count: int, *, at_once: bool, again: bool) -> tuple[list[asyncio.Task[None]], asyncio.Task[None]]:
    """Return tasks that go on until they are cancelled, and the one that has left them."""
    tasks = [asyncio.create_task(asyncio.sleep(3600), name=f"part-{number}") for number in range(count)]
    leaving = asyncio.create_task(leave(tasks, at_once=at_once))
    await asyncio.sleep(0.01)
    if again:
        leaving.cancel()
    await asyncio.wait([leaving], timeout=60)
    return tasks, leaving


@pytest.mark.parametrize("at_once", [True, False])
def test_who_is_cancelled_while_it_leaves_cancels_all(at_once: bool) -> None:
    async def scene() -> None:
        tasks, leaving = await _left(3, at_once=at_once, again=not at_once)
        assert all(task.cancelled() for task in tasks)
        assert leaving.done()
        assert leaving.cancelled() is not at_once, "its own end is not kept from it"

    asyncio.run(scene())


def test_what_failed_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("gone")

    async def scene() -> None:
        await leave([asyncio.create_task(fail(), name="link-far")], at_once=False)

    with caplog.at_level(logging.ERROR):
        asyncio.run(scene())
    assert "link-far failed" in caplog.text
    assert "gone" in caplog.text
