"""The run: publishers and external subscribers at once, while the worker dispatches and runs the internal ones."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import AsyncConnection
from psycopg.rows import class_row

from pgps.errors import PgpsError
from pgps_demo import scene
from pgps_demo.broker import Broker
from pgps_demo.consume import CHART, TICKET, Consumer
from pgps_demo.data import Data
from pgps_demo.publish import Publisher
from pgps_demo.tally import Tally

__all__ = ["Standing", "play", "settle"]

_STANDINGS: LiteralString = """
    select s.name, s.depth, s.delivered, s.retrying, s.failed, a.undispatched
    from pgps.subscriptions s cross join (select sum(waiting)::bigint as undispatched from pgps.activity) a
    order by s.name
"""
_LOOK_EVERY = 0.3
# If nothing changes for so many seconds, something is wrong.
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What pgps.subscriptions says of one subscription, and how many events wait for dispatch."""

    name: str
    depth: int
    delivered: int
    retrying: int
    failed: int
    undispatched: int

    @property
    def settled(self) -> bool:
        """Return whether every event that was published is delivered or has failed for good here."""
        return not (self.depth or self.retrying or self.undispatched)


Watch = Callable[[list[Standing]], None]


async def play(broker: Broker, data: Data, tally: Tally, *, speed: float, seed: int, watch: Watch) -> None:
    """Publish all of the data, at `speed` events a second altogether, and return when everything has settled.

    `watch` is told how things stand a few times a second. Raises PgpsError
    when the worker ends or nothing moves any more.
    """
    stop = asyncio.Event()
    streams = data.streams()
    total = sum(map(len, streams.values()))
    try:
        async with asyncio.TaskGroup() as group:
            for consumer in _consumers(broker, tally, seed, stop):
                group.create_task(consumer.run(), name=f"{consumer.subscription} {consumer.session}")
            publishers = [
                group.create_task(
                    Publisher(broker.dsn(name), stream, speed * len(stream) / total, tally, _chance(seed, name)).run(),
                    name=name,
                )
                for name, stream in streams.items()
            ]
            await settle(broker, watch, first=publishers)
            stop.set()
    except* PgpsError as errors:
        raise errors.exceptions[0] from None


async def settle(broker: Broker, watch: Watch, *, first: Sequence[asyncio.Task[None]] = ()) -> None:
    """Return when `first` are done, and what was published has been delivered, or has failed for good."""
    moved, before = time.monotonic(), list[Standing]()
    async with await AsyncConnection.connect(broker.dsn("broker_admin"), autocommit=True) as connection:
        cursor = connection.cursor(row_factory=class_row(Standing))
        while True:
            broker.check_worker()
            published = all(task.done() for task in first)
            standings = await (await cursor.execute(_STANDINGS)).fetchall()
            watch(standings)
            if published and all(standing.settled for standing in standings):
                return
            if standings != before:
                moved, before = time.monotonic(), standings
            elif time.monotonic() - moved > _PATIENCE:
                raise PgpsError(f"nothing has moved for {_PATIENCE:.0f} seconds: {standings}")
            await asyncio.sleep(_LOOK_EVERY)


def _consumers(broker: Broker, tally: Tally, seed: int, stop: asyncio.Event) -> list[Consumer]:
    sessions = [("ward", "ward_chart", "chart")]
    sessions += [("trader", f"portfolio_{number}", "desk") for number in scene.PORTFOLIOS]
    sessions += [("trader", "slump", "desk 1"), ("trader", "slump", "desk 2")]
    return [
        Consumer(
            dsn=broker.dsn(role),
            subscription=subscription,
            session=session,
            table=CHART if role == "ward" else TICKET,
            tally=tally,
            chance=_chance(seed, subscription, session),
            stop=stop,
        )
        for role, subscription, session in sessions
    ]


def _chance(*seed: object) -> random.Random:
    return random.Random(repr(seed))  # noqa: S311 - nothing secret
