"""Producers and consumers of pgqueuer, with asyncpg."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.errors import RetryRequested
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from bench.field.clients.base import Config, Publish, Seen, event, main


@contextlib.asynccontextmanager
async def publishers(config: Config) -> AsyncIterator[list[Publish]]:
    """Give each producer a connection."""
    connections = [await asyncpg.connect(config["dsn"]) for _ in config["indexes"]]
    try:
        yield [_publisher(config, Queries(AsyncpgDriver(connection))) for connection in connections]
    finally:
        for connection in connections:
            await connection.close()


def _publisher(config: Config, queries: Queries) -> Publish:
    plan = config["plan"]

    async def publish(numbers: list[int]) -> None:
        entrypoints, payloads = [], []
        for number in numbers:
            payload = json.dumps(event(config, number)).encode()
            for k in range(plan["subscribers"]):
                # The producer has to know which consumers want an event.
                if plan["filters"] != "symbol" or number % plan["symbols"] == k % plan["symbols"]:
                    entrypoints.append(f"c{k}")
                    payloads.append(payload)
        if entrypoints:
            await queries.enqueue(entrypoints, payloads, [0] * len(entrypoints))

    return publish


@contextlib.asynccontextmanager
async def subscribers(config: Config, seen: list[Seen]) -> AsyncIterator[None]:
    """Give each consumer a connection and a queue manager of its own."""
    managers, tasks = [], []
    for one in seen:
        manager = QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(config["dsn"]))))
        _register(config["plan"], manager, one)
        managers.append(manager)
        tasks.append(asyncio.create_task(manager.run(batch_size=config["plan"]["batch"])))
    await asyncio.sleep(0.5)  # it does not say when it listens
    try:
        yield
    finally:
        for manager in managers:
            manager.shutdown.set()
        await asyncio.wait(tasks, timeout=20)


def _register(plan: Config, manager: QueueManager, seen: Seen) -> None:
    @manager.entrypoint(f"c{seen.index}")
    async def handle(job: Job) -> None:
        number = json.loads(job.payload or b"{}")["n"]
        if plan["fail_first"] and seen.refuse(number):
            raise RetryRequested(delay=timedelta(0))
        seen.add(number)


async def install(dsn: str) -> None:
    """Make its tables."""
    connection = await asyncpg.connect(dsn)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["install"]:
        asyncio.run(install(sys.argv[2]))
    else:
        main(publishers, subscribers)
