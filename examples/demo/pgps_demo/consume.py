"""The external subscribers: receive, write and acknowledge in one transaction, which is sometimes rolled back."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, LiteralString

from psycopg import AsyncConnection, sql
from psycopg.rows import namedtuple_row
from psycopg.types.json import set_json_loads

from pgps_demo.tally import Tally

__all__ = ["CHART", "TICKET", "Consumer"]

_MOST = 500
_POLL = 0.25
_ROLLED_BACK = 0.04


@dataclass(frozen=True, slots=True)
class Table:
    """Where a subscriber writes events: which attributes it keeps, after subscription, session, event and publisher."""

    insert: LiteralString
    attributes: tuple[str, ...]


CHART = Table(
    """
    insert into ward.chart (subscription, session, event_id, publisher, patient, taken_at, glucose, isig)
    values (%s, %s, %s, %s, %s, %s, %s, %s)
    """,
    ("patient", "taken_at", "glucose", "isig"),
)
TICKET = Table(
    """
    insert into trading.ticket (subscription, session, event_id, publisher, symbol, day, close)
    values (%s, %s, %s, %s, %s, %s, %s)
    """,
    ("symbol", "day", "close"),
)


@dataclass(frozen=True, slots=True)
class Consumer:
    """One session on one external subscription; what it receives goes into `table`."""

    dsn: str
    subscription: str
    session: str
    table: Table
    tally: Tally
    chance: random.Random
    stop: asyncio.Event

    async def run(self) -> None:
        """Consume until asked to stop."""
        async with await AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            # Numbers are read as Decimal, so that a price keeps every digit.
            set_json_loads(partial(json.loads, parse_float=Decimal), connection)
            query = "select channel from pgps.subscriptions where name = %s"
            row = await (await connection.execute(query, [self.subscription])).fetchone()
            assert row is not None
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(row[0])))
            while not self.stop.is_set():
                if not await self._turn(connection):
                    async for _ in connection.notifies(timeout=_POLL, stop_after=1):
                        pass

    async def _turn(self, connection: AsyncConnection) -> int:
        """Receive, write and acknowledge once; return the number of events received."""
        async with connection.cursor(row_factory=namedtuple_row) as cursor:
            fails = self.chance.random() < _ROLLED_BACK
            async with connection.transaction(force_rollback=fails):
                await cursor.execute("select * from pgps.receive(%s, %s)", [self.subscription, _MOST])
                events = await cursor.fetchall()
                if not events:
                    return 0
                await cursor.executemany(self.table.insert, [self._row(event) for event in events])
                await cursor.execute("select pgps.ack(%s)", [self.subscription])
        if fails:
            # The rollback takes back the writes and the acknowledgement, so the events come again.
            self.tally.consumer_rollbacks += 1
        else:
            self._note(events)
        return len(events)

    def _row(self, event: Any) -> tuple[Any, ...]:
        kept = (event.payload[attribute] for attribute in self.table.attributes)
        return self.subscription, self.session, event.event_id, event.publisher, *kept

    def _note(self, events: Sequence[Any]) -> None:
        now = dt.datetime.now(dt.UTC)
        self.tally.received[self.subscription] += len(events)
        self.tally.latencies.extend((now - event.published_at).total_seconds() for event in events)
