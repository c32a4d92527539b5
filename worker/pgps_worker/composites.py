"""Detects composite events beside the dispatcher, and lets their timers fire."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString

from psycopg import Error, errors

from pgps_worker.connection import connect, in_one_line
from pgps_worker.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pgps_worker.config import WorkerConfig
    from pgps_worker.ears import Ears
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Composites"]

log = logging.getLogger(__name__)

CHANNEL: LiteralString = "pgps_composite"
_STATEMENT_TIMEOUT = 300.0
_LOOK_FOR_STUCK = 5.0
_WATCH_TIMEOUT = 30.0
# Whoever alters or drops an event type in an open transaction is waited for by what reads that type (decision 74).
_SETTINGS = {"lock_timeout": "2s"}


@dataclass(frozen=True, slots=True)
class Detected:
    """What a call has come to: how many steps it took, whether there is more to do, else when the next timer is due."""

    steps: int
    more: bool
    timer: float | None


@dataclass(slots=True)
class _Call:
    """Since when a call has been running, by the clock of `time.monotonic`; None: none is."""

    began: float | None = None


@dataclass(frozen=True, slots=True)
class Composites:
    """Looks when a dispatch brought something for a composite event, when its next timer is due, and once a poll.

    Several workers share out composite events and their keys: the session that detects has a part of them.
    """

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    ears: Ears

    @property
    def name(self) -> str:
        """Its name."""
        return "composites"

    async def run(self) -> None:
        """Detect until asked to stop."""
        async with connect(
            self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT, settings=_SETTINGS
        ) as connection:
            await connection.execute("select pgps.open_detection()")
            call = _Call()
            self.vitals.up(self.name)
            with (
                Wire(connection) as wire,
                self.stop.calls(wire.interrupt),
                self.ears.hear_in_thread(CHANNEL) as ear,
            ):
                wire.heed(ear)
                async with self._watched(call):
                    await self._detect(wire, call)

    async def _detect(self, wire: Wire, call: _Call) -> None:
        while not wire.interrupted:
            try:
                await wire.aside(lambda: self._look(wire, call))
            except errors.LockNotAvailable as error:
                log.warning("detection waits for another session: %s", in_one_line(error))
                await wire.aside(lambda: wire.notified(self.config.poll))

    @contextlib.asynccontextmanager
    async def _watched(self, call: _Call) -> AsyncIterator[None]:
        """While the block lasts, have a call ended whose code does not let itself be cancelled."""
        over = asyncio.Event()
        watching = asyncio.create_task(self._watch(call, over), name=f"{self.name}-watchdog")
        try:
            yield
        finally:
            # The session may be gone because this has ended it, and is about to say so.
            over.set()
            await watching

    async def _watch(self, call: _Call, over: asyncio.Event) -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_FOR_STUCK):
                    await over.wait()
            if call.began is None or time.monotonic() < call.began + _LOOK_FOR_STUCK:
                continue
            try:
                async with connect(self.config, f"{self.name}-watchdog", statement_timeout=_WATCH_TIMEOUT) as other:
                    found = await other.execute("select unnest(pgps.end_stuck_detection())")
                    for (told,) in await found.fetchall():
                        log.warning("%s", told or "a session that detected was ended")
            except Error as error:
                log.warning("%s-watchdog: %s", self.name, in_one_line(error))

    def _look(self, wire: Wire, call: _Call) -> None:
        """Detect until interrupted, and in between wait for a notification: up to the next timer, at most a poll."""
        while not wire.interrupted:
            call.began = time.monotonic()
            try:
                found = detect(wire)
            finally:
                call.began = None
            if not found.more:
                timer = self.config.poll if found.timer is None else found.timer
                wire.notified(min(self.config.poll, max(timer, 0.001)))


def detect(wire: Wire) -> Detected:
    """Detect what there is."""
    return Detected(*wire.row("select steps, more, timer from pgps.detect_share()"))
