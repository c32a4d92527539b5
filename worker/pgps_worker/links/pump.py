"""Carries what one broker has for another: one remote transaction a batch, events as bytes that nobody looks at."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgps_worker.links import calls

if TYPE_CHECKING:
    from pgps_worker.connection import Connection
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["HEARTBEAT", "Pump", "Size"]

log = logging.getLogger(__name__)

HEARTBEAT = 1.0
"""Seconds between looks at what the other should know, and at the other side, while nothing happens."""


@dataclass(slots=True)
class Size:
    """How many events to carry at once: as many as take about as long as somebody would wait."""

    events: int = 1000
    least: int = 100
    most: int = 50_000

    def note(self, carried: int, seconds: float) -> None:
        """Adapt to a batch that took so long."""
        if seconds > 1.0:
            self.events = max(self.least, self.events // 2)
        elif seconds < 0.25 and carried >= self.events:
            self.events = min(self.most, self.events * 2)


@dataclass(slots=True)
class Pump:
    """One way of a link: what `source` has goes to `target`, behind the number `last`."""

    source: Connection
    target: Connection
    channel: str
    last: int
    mark: str | None
    stop: Stop
    vitals: Vitals
    size: Size = field(default_factory=Size)
    drained: bool = False
    other_way: Pump | None = None

    async def run(self) -> None:
        """Carry until asked to stop, or the link is drained.

        Raises psycopg.Error when one of the two brokers refuses or is gone.
        """
        await self.source.execute(f'listen "{self.channel}"; listen {calls.LINK_CHANNEL}'.encode())
        refresh, beat = True, time.monotonic()
        while not self.stop.requested:
            batch = await calls.next_batch(self.source, self.last, self.size.events, refresh=refresh, mark=self.mark)
            self.mark = None
            self.drained = batch.drained
            if self.drained and self.other_way is not None and self.other_way.drained:
                return
            if refresh:
                beat = time.monotonic()
            if not batch.is_empty:
                await self.carry(batch)
                # A long backlog must not keep the heart from beating.
                refresh = time.monotonic() - beat > HEARTBEAT
                continue
            told = await self._wait()
            refresh = not told or calls.LINK_CHANNEL in told
            if not told:
                await self.target.execute("select")

    async def carry(self, batch: calls.Batch) -> None:
        """Receive one batch, in one transaction."""
        began = time.monotonic()
        async with self.target.transaction():
            last, copies = await calls.begin(self.target, batch)
            if last > batch.after:
                self.last = last
                return
            for wire, copy in zip(batch.types, copies, strict=True):
                async with (
                    self.source.cursor().copy(calls.rows_of(batch, wire)) as reader,
                    self.target.cursor().copy(copy.encode()) as writer,
                ):
                    async for chunk in reader:
                        await writer.write(chunk)
            await calls.apply(self.target, batch)
        self.last = batch.upto
        self.vitals.events_carried += batch.events
        self.size.note(batch.events, time.monotonic() - began)

    async def _wait(self) -> set[str]:
        """Return the channels that were notified, after a heartbeat at the latest."""
        told = self._buffered()
        if told:
            return told
        async with self.stop.cuts_short():
            async for notify in self.source.notifies(timeout=HEARTBEAT, stop_after=1):
                told.add(notify.channel)
        return told

    def _buffered(self) -> set[str]:
        """Take what came together with the last answer; psycopg would wait for another."""
        told = set()
        while notify := self.source.pgconn.notifies():
            told.add(notify.relname.decode())
        return told
