"""Publishers and subscribers of pgps, with psycopg."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import psycopg

from bench.field.clients.base import Config, Publish, Seen, event, main

_POLL = 5.0
_INSERT = b"insert into pgps_event.quote (n, symbol, price, volume) values (%s, %s, %s, %s)"
_INSERT_MANY = b"""
insert into pgps_event.quote (n, symbol, price, volume)
select * from unnest(%s::bigint[], %s::text[], %s::numeric[], %s::bigint[])
"""
_STORE = b"insert into handled (subscriber, n, symbol, price, volume) values (%s, %s, %s, %s, %s)"

Connection = psycopg.AsyncConnection[Any]


@contextlib.asynccontextmanager
async def publishers(config: Config) -> AsyncIterator[list[Publish]]:
    """Give each publisher a connection; events of one transaction are one statement."""
    async with contextlib.AsyncExitStack() as stack:
        yield [_publisher(config, await _connect(stack, config)) for _ in config["indexes"]]


def _publisher(config: Config, connection: Connection) -> Publish:
    async def publish(numbers: list[int]) -> None:
        rows = [tuple(event(config, number).values()) for number in numbers]
        if len(rows) == 1:
            await connection.execute(_INSERT, rows[0])
        else:
            await connection.execute(_INSERT_MANY, [list(column) for column in zip(*rows, strict=True)])

    return publish


@contextlib.asynccontextmanager
async def subscribers(config: Config, seen: list[Seen]) -> AsyncIterator[None]:
    """Give each subscriber a connection of its own."""
    async with contextlib.AsyncExitStack() as stack:
        tasks = []
        for one in seen:
            connection = await _connect(stack, config)
            await connection.execute(f'listen "{config["channels"][one.index]}"'.encode())
            tasks.append(asyncio.create_task(_consume(config["plan"], connection, one)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _connect(stack: contextlib.AsyncExitStack, config: Config) -> Connection:
    connection = await psycopg.AsyncConnection.connect(config["dsn"], autocommit=True, prepare_threshold=0)
    return await stack.enter_async_context(connection)


async def _consume(plan: Config, connection: Connection, seen: Seen) -> None:
    while await seen.active.wait():
        # Refused events come again at once.
        while (received := await _receive(plan, connection, seen)) == plan["batch"] or (
            received and plan["fail_first"]
        ):
            pass
        async for _ in connection.notifies(timeout=_POLL, stop_after=1):
            pass


async def _receive(plan: Config, connection: Connection, seen: Seen) -> int:
    """Take events, which acknowledges them, and do the work in one transaction."""
    if plan["fail_first"]:
        return await _refuse(plan, connection, seen)
    # In a pipeline BEGIN, the call and what follows it are not waited for one by one, and the work is done while the
    # transaction that acknowledges is open: if it fails, the events come again.
    async with connection.pipeline(), connection.transaction():
        cursor = await connection.execute("select payload from pgps.take(%s, %s)", [f"s{seen.index}", plan["batch"]])
        rows = await cursor.fetchall()
        if plan["consume"] == "transaction":
            await _store(connection, seen, [payload for (payload,) in rows])
        else:
            for (payload,) in rows:
                seen.add(payload["n"])
    if plan["consume"] == "transaction":
        for (payload,) in rows:
            seen.add(payload["n"])
    return len(rows)


async def _refuse(plan: Config, connection: Connection, seen: Seen) -> int:
    """Receive, put back what comes for the first time, and acknowledge the others."""
    name = f"s{seen.index}"
    async with connection.transaction():
        cursor = await connection.execute("select event_id, payload from pgps.receive(%s, %s)", [name, plan["batch"]])
        events = await cursor.fetchall()
        refused = [event_id for event_id, payload in events if seen.refuse(payload["n"])]
        handled = [payload for event_id, payload in events if event_id not in set(refused)]
        async with connection.pipeline():
            if refused:
                await connection.execute("select pgps.nack_events(%s, %s, 'refused once')", [name, refused])
            if plan["consume"] == "transaction":
                await _store(connection, seen, handled)
            if handled:
                await connection.execute("select pgps.ack(%s)", [name])
    for payload in handled:
        seen.add(payload["n"])
    return len(events)


async def _store(connection: Connection, seen: Seen, payloads: list[Any]) -> None:
    if payloads:
        async with connection.cursor() as store:
            await store.executemany(
                _STORE, [(seen.index, p["n"], p["symbol"], p["price"], p["volume"]) for p in payloads]
            )


if __name__ == "__main__":
    main(publishers, subscribers)
