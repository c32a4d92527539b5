"""Publishers and consumers of PgQ, with psycopg: the calls that its own Python framework makes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg

from bench.field.clients.base import Config, Publish, Seen, event, main

_LOOP_DELAY = {True: 0.05, False: 1.0}
"""How long it sleeps when there is no batch: eager, or the framework's default."""
_INSERT = b"select pgq.insert_event('quote', 'quote', %s, %s, null, null, null)"
_INSERT_MANY = b"""
select pgq.insert_event('quote', 'quote', u.data, u.symbol, null, null, null)
from unnest(%s::text[], %s::text[]) u(data, symbol)
"""
_STORE = b"insert into handled (subscriber, n, symbol, price, volume) values (%s, %s, %s, %s, %s)"

Connection = psycopg.AsyncConnection[Any]


@contextlib.asynccontextmanager
async def publishers(config: Config) -> AsyncIterator[list[Publish]]:
    """Give each publisher a connection."""
    async with contextlib.AsyncExitStack() as stack:
        yield [_publisher(config, await _connect(stack, config)) for _ in config["indexes"]]


def _publisher(config: Config, connection: Connection) -> Publish:
    async def publish(numbers: list[int]) -> None:
        rows = [(json.dumps(quote), quote["symbol"]) for quote in (event(config, number) for number in numbers)]
        if len(rows) == 1:
            await connection.execute(_INSERT, rows[0])
        else:
            await connection.execute(_INSERT_MANY, [list(column) for column in zip(*rows, strict=True)])

    return publish


@contextlib.asynccontextmanager
async def subscribers(config: Config, seen: list[Seen]) -> AsyncIterator[None]:
    """Give each consumer a connection of its own."""
    async with contextlib.AsyncExitStack() as stack:
        tasks = [asyncio.create_task(_consume(config, await _connect(stack, config), one)) for one in seen]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _connect(stack: contextlib.AsyncExitStack, config: Config) -> Connection:
    connection = await psycopg.AsyncConnection.connect(config["dsn"], autocommit=True, prepare_threshold=0)
    return await stack.enter_async_context(connection)


async def _consume(config: Config, connection: Connection, seen: Seen) -> None:
    while await seen.active.wait():
        if not await _batch(config["plan"], connection, seen):
            await asyncio.sleep(_LOOP_DELAY[config["plan"]["eager"]])


async def _batch(plan: Config, connection: Connection, seen: Seen) -> bool:
    """Take a batch, which is what came between two ticks; filter in the server; finish it."""
    name = f"s{seen.index}"
    async with connection.transaction():
        cursor = await connection.execute("select pgq.next_batch('quote', %s)", [name])
        batch = ((await cursor.fetchone()) or (None,))[0]
        if batch is None:
            return False
        where = f"ev_extra1 = 'S{seen.index % plan['symbols']}'" if plan["filters"] == "symbol" else None
        if where is None:
            cursor = await connection.execute("select ev_id, ev_data from pgq.get_batch_events(%s)", [batch])
            rows = await cursor.fetchall()
        else:
            # The cursor ends with this transaction, so all events are fetched at once.
            cursor = await connection.execute(
                "select ev_id, ev_data from pgq.get_batch_cursor(%s, 'batch', 1000000, %s)", [batch, where]
            )
            rows = await cursor.fetchall()
            await connection.execute("close batch")
        events = [(number, json.loads(data)) for number, data in rows]
        if plan["fail_first"]:
            refused = {number for number, quote in events if seen.refuse(quote["n"])}
            for number in refused:
                await connection.execute("select pgq.event_retry(%s::bigint, %s::bigint, 0)", [batch, number])
            events = [one for one in events if one[0] not in refused]
        if plan["consume"] == "transaction" and events:
            values = [(seen.index, q["n"], q["symbol"], q["price"], q["volume"]) for _, q in events]
            async with connection.cursor() as store:
                await store.executemany(_STORE, values)
        await connection.execute("select pgq.finish_batch(%s)", [batch])
    for _, quote in events:
        seen.add(quote["n"])
    return True


if __name__ == "__main__":
    main(publishers, subscribers)
