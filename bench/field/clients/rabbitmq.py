"""Publishers, relay and consumers of RabbitMQ beside PostgreSQL, with psycopg and aio-pika.

Publishers insert into the outbox. The relay deletes up to 500 rows, publishes them as persistent messages, waits
for the broker's confirmations, and commits. When there were no rows it looks again after 10 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import psycopg

from bench.field.clients.base import Config, Publish, Seen, event, main

_EXCHANGE = "quotes"
_POLL = 0.01
_INSERT = b"insert into outbox (n, symbol, price, volume) values (%s, %s, %s, %s)"
_INSERT_MANY = b"""
insert into outbox (n, symbol, price, volume)
select * from unnest(%s::bigint[], %s::text[], %s::numeric[], %s::bigint[])
"""
_TAKE = """
with taken as (
    delete from outbox where id in (select id from outbox order by id limit 500)
    returning id, n, symbol, price, volume
)
select n, symbol, price, volume from taken order by id
"""


@contextlib.asynccontextmanager
async def publishers(config: Config) -> AsyncIterator[list[Publish]]:
    """Give each publisher a connection to the database."""
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for _ in config["indexes"]:
            connection = await psycopg.AsyncConnection.connect(config["dsn"], autocommit=True, prepare_threshold=0)
            made.append(_publisher(config, await stack.enter_async_context(connection)))
        yield made


def _publisher(config: Config, connection: psycopg.AsyncConnection[Any]) -> Publish:
    async def publish(numbers: list[int]) -> None:
        rows = [tuple(event(config, number).values()) for number in numbers]
        if len(rows) == 1:
            await connection.execute(_INSERT, rows[0])
        else:
            await connection.execute(_INSERT_MANY, [list(column) for column in zip(*rows, strict=True)])

    return publish


@contextlib.asynccontextmanager
async def subscribers(config: Config, seen: list[Seen]) -> AsyncIterator[None]:
    """Give each consumer a connection, a durable queue, and a prefetch of two batches."""
    async with contextlib.AsyncExitStack() as stack:
        for one in seen:
            connection = await stack.enter_async_context(await aio_pika.connect(config["broker"]))
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=2 * config["plan"]["batch"])
            queue = await channel.get_queue(f"q{one.index}")
            await queue.consume(_Consumer(config["plan"], one).take)
        yield


class _Consumer:
    """Acknowledges whole batches, and a smaller batch when nothing more comes for a moment."""

    def __init__(self, plan: Config, seen: Seen) -> None:
        self._plan = plan
        self._seen = seen
        self._pending: list[aio_pika.abc.AbstractIncomingMessage] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        number = json.loads(message.body)["n"]
        if self._plan["fail_first"] and self._seen.refuse(number):
            await message.reject(requeue=True)
            return
        self._seen.add(number)
        if self._plan["fail_first"]:
            await message.ack()
            return
        self._pending.append(message)
        if len(self._pending) >= self._plan["batch"]:
            await self._acknowledge()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_POLL, self._idle)

    def _idle(self) -> None:
        task = asyncio.create_task(self._acknowledge())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _acknowledge(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, []
        if pending:
            await pending[-1].ack(multiple=True)


async def relay(dsn: str, broker: str, kind: str, consumers: int, symbols: int) -> None:
    """Declare the exchange and the queues, then move rows until ended."""
    link = await aio_pika.connect(broker)
    channel = await link.channel(publisher_confirms=True)
    exchange = await channel.declare_exchange(_EXCHANGE, kind, durable=True)
    for k in range(consumers):
        queue = await channel.declare_queue(f"q{k}", durable=True)
        await queue.bind(exchange, routing_key=f"S{k % symbols}" if kind == "direct" else "")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        print("{}", flush=True)
        while True:
            async with connection.transaction():
                rows = await (await connection.execute(_TAKE.encode())).fetchall()
                await asyncio.gather(*(exchange.publish(*_message(row)) for row in rows))
            if not rows:
                await asyncio.sleep(_POLL)


def _message(row: tuple[Any, ...]) -> tuple[aio_pika.Message, str]:
    n, symbol, price, volume = row
    body = json.dumps({"n": n, "symbol": symbol, "price": float(price), "volume": volume}).encode()
    return aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), symbol


if __name__ == "__main__":
    if sys.argv[1:2] == ["relay"]:
        asyncio.run(relay(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6])))
    else:
        main(publishers, subscribers)
