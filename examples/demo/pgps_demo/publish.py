"""The publishers: one connection each; transactions of all sizes, some rolled back, some committed late."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, LiteralString

from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from pgps_demo.data import Event, Reading
from pgps_demo.tally import Tally

__all__ = ["Publisher"]

_INSERT_READINGS: LiteralString = """
    insert into pgps_event.glucose_reading (patient, taken_at, glucose, isig)
    select * from unnest(%s::integer[], %s::timestamp[], %s::integer[], %s::numeric[])
"""
_INSERT_QUOTES: LiteralString = """
    insert into pgps_event.stock_quote (symbol, day, open, high, low, close, volume, adjusted_close)
    select * from unnest(%s::text[], %s::date[], %s::numeric[], %s::numeric[], %s::numeric[], %s::numeric[],
        %s::bigint[], %s::numeric[])
"""

# What share of the transactions is treated in each way.
_ROLLED_BACK = 0.04
_SAVEPOINT = 0.04
_LATE = 0.04
_JSON = 0.1
_LATE_SECONDS = (0.1, 0.8)
_SIZES = (1, 1, 2, 5, 12, 40, 100)


@dataclass(frozen=True, slots=True)
class Publisher:
    """Publishes one stream in order, at `rate` events a second; 0 is as fast as it goes."""

    dsn: str
    stream: Sequence[Event]
    rate: float
    tally: Tally
    chance: random.Random

    async def run(self) -> None:
        """Publish all of it."""
        began, done = time.monotonic(), 0
        async with await AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            for piece in self._pieces():
                if self.chance.random() < _ROLLED_BACK:
                    await self._publish_in_vain(connection, piece)
                await self._publish(connection, piece)
                done += len(piece)
                if self.rate:
                    await asyncio.sleep(max(0.0, began + done / self.rate - time.monotonic()))

    def _pieces(self) -> Iterator[Sequence[Event]]:
        place = 0
        while place < len(self.stream):
            size = self.chance.choice(_SIZES)
            yield self.stream[place : place + size]
            place += size

    async def _publish_in_vain(self, connection: AsyncConnection, piece: Sequence[Event]) -> None:
        """Publish some events in a transaction that is rolled back: no subscriber may ever see them."""
        async with connection.transaction(force_rollback=True):
            await self._insert(connection, piece)
        self.tally.rolled_back += 1
        self.tally.rolled_back_events += len(piece)

    async def _publish(self, connection: AsyncConnection, piece: Sequence[Event]) -> None:
        async with connection.transaction():
            if self.chance.random() < _SAVEPOINT:
                # A rollback to a savepoint removes the events that were published after it.
                async with connection.transaction(force_rollback=True):
                    await self._insert(connection, piece)
                self.tally.savepoints += 1
            await self._insert(connection, piece)
            if self.chance.random() < _LATE:
                # Others publish and commit meanwhile, with higher event ids.
                await asyncio.sleep(self.chance.uniform(*_LATE_SECONDS))
                self.tally.late += 1
        self.tally.transactions += 1
        self.tally.published["readings" if isinstance(piece[0], Reading) else "quotes"] += len(piece)

    async def _insert(self, connection: AsyncConnection, piece: Sequence[Event]) -> None:
        """Publish one set of events: with an INSERT, now and then as JSON."""
        rows = [asdict(event) for event in piece]
        is_reading = isinstance(piece[0], Reading)
        if self.chance.random() < _JSON:
            event_type = "glucose_reading" if is_reading else "stock_quote"
            await connection.execute("select pgps.publish(%s, %s)", [event_type, _json(rows)])
            return
        columns = [list(column) for column in zip(*(row.values() for row in rows), strict=True)]
        await connection.execute(_INSERT_READINGS if is_reading else _INSERT_QUOTES, columns)


def _json(rows: list[dict[str, Any]]) -> Jsonb:
    # Numerics as text: PostgreSQL reads every digit of them, a JSON number would go through a float.
    return Jsonb(rows, dumps=lambda value: json.dumps(value, default=str))
