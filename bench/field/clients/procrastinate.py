"""Producers and workers of procrastinate, with its psycopg connector."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from procrastinate import App, PsycopgConnector, RetryStrategy
from procrastinate.jobs import Job

from bench.field.clients.base import Config, Publish, Seen, event, main

_AT_ONCE = 10
"""Jobs that a worker runs at a time when it is to be quick; by default one."""


@contextlib.asynccontextmanager
async def publishers(config: Config) -> AsyncIterator[list[Publish]]:
    """Give each producer a connection."""
    async with AsyncExitStack() as stack:
        yield [_publisher(config, await _open(stack, config, 1)) for _ in config["indexes"]]


async def _open(stack: AsyncExitStack, config: Config, connections: int) -> App:
    app = App(connector=PsycopgConnector(conninfo=config["dsn"], min_size=1, max_size=connections))
    return await stack.enter_async_context(app.open_async())


def _publisher(config: Config, app: App) -> Publish:
    plan = config["plan"]

    async def publish(numbers: list[int]) -> None:
        jobs = [
            Job(queue=f"c{k}", task_name=f"c{k}", lock=None, queueing_lock=None, task_kwargs=event(config, number))
            for number in numbers
            for k in range(plan["subscribers"])
            # The producer has to know which consumers want an event.
            if plan["filters"] != "symbol" or number % plan["symbols"] == k % plan["symbols"]
        ]
        if len(jobs) == 1:
            await app.job_manager.defer_job_async(jobs[0])
        elif jobs:
            await app.job_manager.batch_defer_jobs_async(jobs)

    return publish


@contextlib.asynccontextmanager
async def subscribers(config: Config, seen: list[Seen]) -> AsyncIterator[None]:
    """Give each consumer a worker of its own."""
    plan = config["plan"]
    async with AsyncExitStack() as stack:
        tasks = []
        for one in seen:
            app = await _open(stack, config, 2)
            _register(plan, app, one)
            worker = app.run_worker_async(
                queues=[f"c{one.index}"], concurrency=_AT_ONCE if plan["eager"] else 1, install_signal_handlers=False
            )
            tasks.append(asyncio.create_task(worker))
        await asyncio.sleep(0.5)  # it does not say when it listens
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=20)


def _register(plan: Config, app: App, seen: Seen) -> None:
    @app.task(name=f"c{seen.index}", queue=f"c{seen.index}", retry=RetryStrategy(max_attempts=5, wait=0))
    async def handle(n: int, **_quote: object) -> None:
        if plan["fail_first"] and seen.refuse(n):
            raise RuntimeError("refused once")
        seen.add(n)


async def install(dsn: str) -> None:
    """Make its tables."""
    async with AsyncExitStack() as stack:
        app = await _open(stack, {"dsn": dsn}, 1)
        await app.schema_manager.apply_schema_async()


if __name__ == "__main__":
    if sys.argv[1:2] == ["install"]:
        asyncio.run(install(sys.argv[2]))
    else:
        main(publishers, subscribers)
