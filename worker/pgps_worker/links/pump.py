"""Carries what one broker has for another: one remote transaction a batch, events as bytes that nobody looks at.

Two tasks a way: while one batch is written and committed the next is read, so that both brokers work. What is
read ahead is confirmed to the sender only when the receiver has committed it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import psycopg

from pgps_worker.links import calls, copy
from pgps_worker.links.buffer import Buffer
from pgps_worker.links.together import together
from pgps_worker.modes import Modes

if TYPE_CHECKING:
    from pgps_worker.connection import Connection
    from pgps_worker.ears import Ear, SessionEar
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals, WayVitals

__all__ = ["CARRYING", "HEARTBEAT", "Carrying", "Pump", "Size"]

log = logging.getLogger(__name__)

HEARTBEAT = 1.0
"""Seconds between looks at what the other should know, and at the other side, while nothing happens."""


_SMALL = 32
"""Up to so many events travel with what is said about them: that saves their COPY on either side."""

_CONFIRM = 0.05
"""Seconds until a batch is confirmed behind which nothing came; before that the next one confirms it."""


@dataclass(slots=True)
class Size:
    """How many events to carry at once: as many as take about as long as somebody would wait."""

    events: int = 1000
    least: int = 100
    most: int = 10_000

    def note(self, carried: int, seconds: float) -> None:
        """Adapt to a batch that took so long."""
        if seconds > 1.0:
            self.events = max(self.least, self.events // 2)
        elif seconds < 0.25 and carried >= self.events:
            self.events = min(self.most, self.events * 2)


@dataclass(frozen=True, slots=True)
class _End:
    """The events of a type, or of a batch, are complete; nothing more comes if it is the last."""

    of_all: bool = False


class Carrying(Enum):
    """One way of a link is always in one of these modes, from when it is opened until it breaks or is drained.

    The task that reads is ahead of the one that writes. In the modes that begin again both end: what was read ahead is
    thrown away, and both start behind the last batch that the target has.
    """

    STRAIGHT = "Batches go as they were read, each into the log by one COPY or one call."
    AGAIN = "The target had more than was known here: to begin again behind that."
    REFUSED = "The target has refused an event of the batch: to begin again, and go the long way."
    LONG_WAY = "The next batch goes through a stage, where the events that are refused are taken out one by one."


# For each mode: the modes that may follow, and what leads to them.
CARRYING = {
    Carrying.STRAIGHT: {
        Carrying.AGAIN: "the target has received up to another batch than the one before",
        Carrying.REFUSED: "an event breaks a constraint there, or cannot be read",
    },
    Carrying.AGAIN: {Carrying.STRAIGHT: "both tasks have ended"},
    Carrying.REFUSED: {Carrying.LONG_WAY: "both tasks have ended"},
    Carrying.LONG_WAY: {
        Carrying.STRAIGHT: "the batch is there",
        Carrying.AGAIN: "the batch was there already",
    },
}
_BEGIN_AGAIN = {Carrying.AGAIN: Carrying.STRAIGHT, Carrying.REFUSED: Carrying.LONG_WAY}


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
    carried: WayVitals
    size: Size = field(default_factory=Size)
    drained: bool = False
    other_way: Pump | None = None
    _buffer: Buffer[calls.Batch | bytes | _End] = field(default_factory=Buffer)
    _modes: Modes[Carrying] = field(default_factory=lambda: Modes(Carrying.STRAIGHT, CARRYING))

    async def run(self, ear: Ear | SessionEar) -> None:
        """Carry until asked to stop, or the link is drained; `ear` hears the channels of the source.

        Raises psycopg.Error when one of the two brokers refuses or is gone.
        """
        while not self.stop.requested and not self._is_over():
            self._modes.to(_BEGIN_AGAIN.get(self._modes.now, self._modes.now))
            await together({f"{self.channel}-read": self._read(ear), f"{self.channel}-write": self._write()})

    @property
    def _begins_again(self) -> bool:
        return self._modes.now in _BEGIN_AGAIN

    @property
    def _is_staged(self) -> bool:
        return self._modes.now is Carrying.LONG_WAY

    async def compare(self) -> None:
        """Let the source compare what the target has received with what it sent; nothing is carried.

        Raises psycopg.errors.ObjectNotInPrerequisiteState when one of the two was restored.
        """
        batch = await calls.next_batch(self.source, self.last, 1, confirmed=self.last, refresh=False, mark=self.mark)
        await calls.keep(self.source, batch)

    async def _read(self, ear: Ear | SessionEar) -> None:
        """Read what the source has for the target, and ahead of what is written while there is more than one batch."""
        after, confirmed = self.last, self.last
        # Events first: what a new session plans when it is asked what else to tell takes as long as thousands of them.
        refresh, beat, is_owed = False, time.monotonic(), True
        while not self.stop.requested and not self._begins_again:
            asked = self.size.events
            confirmed = self.last
            batch = await self._next_batch(after, asked, confirmed, refresh=refresh)
            self.drained = batch.drained
            if self._is_over():
                break
            if refresh:
                beat, is_owed = time.monotonic(), False
            if not batch.is_empty:
                await self._read_events(batch)
                after = batch.upto
            if batch.is_empty or batch.events < asked:
                # While a small batch is received, the next one is read, when there is one. Reading further ahead would
                # only make the batches smaller.
                await self._buffer.drained(but=1 if batch.is_small else 0)
            if is_owed and batch.all_there_is:
                refresh = True
                continue
            told_more = await self._pause(ear, batch, confirmed)
            # The regular look at the other side must take place during a long backlog, too.
            refresh = told_more or time.monotonic() - beat > HEARTBEAT
        await self._buffer.put(_End(of_all=True))

    async def _next_batch(self, after: int, asked: int, confirmed: int, *, refresh: bool) -> calls.Batch:
        """Ask the source for what comes next; what goes ahead is being received when this returns."""
        batch = await calls.next_batch(
            self.source,
            after,
            asked,
            confirmed=confirmed,
            refresh=refresh,
            mark=self.mark,
            with_rows=0 if self._is_staged else _SMALL,
        )
        self.mark = None
        if batch.goes_ahead:
            await self._buffer.put(batch, len(batch.text))
        await calls.keep(self.source, batch)
        return batch

    async def _pause(self, ear: Ear | SessionEar, batch: calls.Batch, confirmed: int) -> bool:
        """Wait while there is nothing to ask for; return whether there may be more to tell than events."""
        if batch.is_empty and not self._buffer.is_drained:
            # There may be more before what is being received is there, which is then confirmed.
            async with self._buffer.cuts_short():
                return calls.LINK_CHANNEL in await ear.heard(HEARTBEAT, stop=self.stop)
        if self._begins_again:
            return False
        if batch.is_empty and confirmed == self.last:
            told = await ear.heard(HEARTBEAT, stop=self.stop)
            return not told or calls.LINK_CHANNEL in told
        return batch.all_there_is and calls.LINK_CHANNEL in await ear.heard(_CONFIRM, stop=self.stop)

    def _is_over(self) -> bool:
        return self.drained and self.other_way is not None and self.other_way.drained

    async def _read_events(self, batch: calls.Batch) -> None:
        if not batch.goes_ahead:
            await self._buffer.put(batch, len(batch.text))
        if batch.is_small:
            return
        for wire in batch.types:
            async for part in copy.rows(self.source, calls.rows_of(batch, wire)):
                await self._buffer.put(part, len(part))
            await self._buffer.put(_End())

    async def _write(self) -> None:
        """Write batch after batch; behind one that has to be received in another way, let the rest go."""
        while isinstance(batch := await self._next(), calls.Batch):
            if not self._begins_again:
                await self.carry(batch)
            await self._buffer.done()
        await self._buffer.done()

    async def _next(self) -> calls.Batch | None:
        """Return the next batch, None at the end; what was not taken of the last is thrown away."""
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT):
                    found = await self._buffer.get()
            except TimeoutError:
                await self.target.execute("select")
                continue
            if isinstance(found, calls.Batch):
                return found
            if isinstance(found, _End) and found.of_all:
                return None
            await self._buffer.done()

    async def carry(self, batch: calls.Batch) -> None:
        """Receive one batch, in one transaction."""
        began = time.monotonic()
        try:
            if batch.is_small and not self._is_staged:
                last = await calls.take(self.target, batch)
                if last is not None:
                    self._begin_again(last)
                    return
                self._note(batch, began)
                return
            begun = await calls.begin(self.target, batch, staged=self._is_staged)
            if begun.last > batch.after:
                await self.target.rollback()
                self._begin_again(begun.last)
                return
            for statement in begun.copies:
                await self._write_events(statement)
            await calls.apply(self.target)
        except (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.SerializationFailure) as error:
            await self.target.rollback()
            if self._is_staged:
                raise
            log.info("batch %s goes the long way: %s", batch.upto, error)
            self._modes.to(Carrying.REFUSED)
            return
        self._note(batch, began)

    def _begin_again(self, last: int) -> None:
        self.last = last
        self._modes.to(Carrying.AGAIN)

    def _note(self, batch: calls.Batch, began: float) -> None:
        self._modes.to(Carrying.STRAIGHT)
        self.last = batch.upto
        self.vitals.events_carried += batch.events
        self.carried.events += batch.events
        self.carried.bytes += len(batch.text)
        self.carried.batches += 1
        self.size.note(batch.events, time.monotonic() - began)

    async def _write_events(self, statement: str) -> None:
        async with self.target.cursor().copy(statement.encode()) as writer:
            ended = False
            while not ended:
                part = await self._buffer.get()
                try:
                    if isinstance(part, bytes):
                        self.carried.bytes += len(part)
                        await writer.write(part)
                    else:
                        ended = True
                finally:
                    # The part counts as dealt with even if it was refused, since the reader waits until all parts are.
                    await self._buffer.done()
