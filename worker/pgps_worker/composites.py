"""Detects composite events beside the dispatcher, and lets their timers fire; those of slow owners apart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString

from psycopg import Error, errors

from pgps_worker import calls
from pgps_worker.connection import connect, in_one_line
from pgps_worker.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pgps_worker.config import WorkerConfig
    from pgps_worker.ears import Ears
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["SHARE", "Composites", "SlowComposites", "detect_all", "detect_and_dispatch"]

log = logging.getLogger(__name__)

CHANNEL: LiteralString = "pgps_composite"
_STATEMENT_TIMEOUT = 300.0
_LOOK_FOR_STUCK = 5.0
_WATCH_TIMEOUT = 30.0
# Whoever alters or drops an event type in an open transaction is waited for by what reads that type (decision 74).
SHARE, _SLOW = "pgps.detect_share", "pgps.detect_slow"
_SETTINGS = {"lock_timeout": "2s"}
_ONLY_DETECT = "select steps, more, timer, slow from {function}()"
# Each statement sets the time limit of the other. A batch need not wait for the disk (dispatcher.py).
_LIMIT = "pg_catalog.set_config('statement_timeout', $1, false)"
_DETECT = (
    f"select (d).steps, (d).more, (d).timer, (d).slow, {_LIMIT} from (select {{function}}() as d"
    " from (select pg_catalog.set_config('pgps.dispatches', $2, false) offset 0) first offset 0) second"
)
_DISPATCH = (
    f"select pgps.dispatch_detected(), {_LIMIT}"
    " from (select pg_catalog.set_config('synchronous_commit', 'off', true) offset 0) first"
)


@dataclass(frozen=True, slots=True)
class Detected:
    """What a call has come to: how many steps it took, whether there is more to do, else when the next timer is due.

    slow: there are owners whose composite events take long, so that they are detected apart.
    """

    steps: int
    more: bool
    timer: float | None
    slow: bool = True


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
    slow: asyncio.Event

    @property
    def name(self) -> str:
        """Its name."""
        return "composites"

    async def run(self) -> None:
        """Detect until asked to stop."""
        loop = asyncio.get_running_loop()

        def tell(found: Detected) -> bool:
            if found.slow:
                loop.call_soon_threadsafe(self.slow.set)
            return True

        await Detecting(self.name, self.config, self.stop, self.vitals, self.ears, SHARE, tell).run()


@dataclass(frozen=True, slots=True)
class SlowComposites:
    """Detects the composite events of owners that are slow, in turn, for as long as there are.

    It has a session of its own only then.
    """

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    ears: Ears
    slow: asyncio.Event

    @property
    def name(self) -> str:
        """Its name."""
        return "slow-composites"

    async def run(self) -> None:
        """Detect until asked to stop, whenever there are slow owners."""
        self.vitals.up(self.name)
        while not self.stop.requested:
            async with self.stop.cuts_short():
                await self.slow.wait()
            if not self.stop.requested:
                self.slow.clear()
                detecting = Detecting(self.name, self.config, self.stop, self.vitals, self.ears, _SLOW, _is_slow)
                await detecting.run()


@dataclass(frozen=True, slots=True)
class Detecting:
    """A session that detects, by one function of the server, until it is told to stop or is needed no more."""

    name: str
    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    ears: Ears
    function: str
    goes_on: Callable[[Detected], bool]

    async def run(self) -> None:
        """Detect until asked to stop, or nothing is left to do for it."""
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
                return
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
        """Detect until interrupted or not needed, and in between wait: for a notification or timer, at most a poll."""
        while not wire.interrupted:
            call.began = time.monotonic()
            try:
                found = detect_and_dispatch(wire, self.function, self.vitals, self.config.dispatch_timeout)
            finally:
                call.began = None
            if not self.goes_on(found):
                return
            if not found.more:
                timer = self.config.poll if found.timer is None else found.timer
                wire.notified(min(self.config.poll, max(timer, 0.001)))


def detect_and_dispatch(wire: Wire, function: str, vitals: Vitals, dispatch_timeout: float) -> Detected:
    """Detect, and dispatch what that published, in one round trip: no session is woken in between.

    function: of the server, that detects. Another worker's leader is told instead: it would take the notifications of
    publishers whose events it does not find for a flood.
    """
    dispatches = "itself" if vitals.leading else ""
    found, dispatched = wire.rows(
        (_DETECT.format(function=function), [calls.milliseconds(dispatch_timeout), dispatches]),
        (_DISPATCH, [calls.milliseconds(_STATEMENT_TIMEOUT)]),
    )
    if isinstance(dispatched, Error):
        _leave_to_leader(wire, dispatched)
    elif (events := int(dispatched[0])) > 0:
        vitals.events_dispatched += events
        vitals.batches_dispatched += 1
    if isinstance(found, Error):
        raise found
    *told, _ = found
    return Detected(*told)


def _leave_to_leader(wire: Wire, error: Error) -> None:
    """Have the leader dispatch, which knows what to do about errors; a filter that hangs it asks no more."""
    calls.limit_session(wire, _STATEMENT_TIMEOUT)
    names = calls.blamed(wire) if isinstance(error, errors.QueryCanceled) else None
    if names is not None:
        log.warning("the filter of %s takes too long for the dispatcher, which asks it no more", names)
    else:
        log.warning("what was detected is left to the dispatcher: %s", in_one_line(error))
    calls.wake_leader(wire)


def _is_slow(found: Detected) -> bool:
    return found.slow


def detect_all(wire: Wire) -> int:
    """Detect what there is, for slow owners, too; return how many steps that took."""
    found = Detected(*wire.row(_ONLY_DETECT.format(function=SHARE)))
    steps = found.steps
    while found.slow:
        found = Detected(*wire.row(_ONLY_DETECT.format(function=_SLOW)))
        steps += found.steps
        if not found.steps:
            break
    return steps
