"""Turns what was committed into deliveries, as soon as it is committed."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import errors

from pgps_worker import broker
from pgps_worker.connection import connect
from pgps_worker.large import dispatch_large
from pgps_worker.pace import ALL_ENDED_POLLS, CONFIRM, SAFETY, Pace, Round, confirm
from pgps_worker.wire import Wire

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Dispatcher"]

log = logging.getLogger(__name__)

# Under two seconds from the leader's death to the take-over, with room for the connection to be noticed dead.
_STANDBY_POLL = (0.7, 1.0)

# A batch that is lost in a crash of the server is cut again, and what was built on it was lost with it: the
# flush of any later durable commit covers it. Waiting for the disk here would only be latency.
_SETTINGS = {"synchronous_commit": "off"}


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Leads, or stands by until the leader's session has ended."""

    config: WorkerConfig
    stop: Stop
    vitals: Vitals

    @property
    def name(self) -> str:
        """Its name."""
        return "dispatcher"

    async def run(self) -> None:
        """Become the leader, then dispatch until asked to stop."""
        async with connect(
            self.config, self.name, statement_timeout=self.config.dispatch_timeout, settings=_SETTINGS
        ) as connection:
            self.vitals.up(self.name)
            try:
                with Wire(connection) as wire, self.stop.calls(wire.interrupt):
                    await wire.aside(lambda: _stand_by(wire))
                    await self._lead(wire)
            finally:
                self.vitals.leading = False
                self.vitals.rest(self.name)

    async def _lead(self, wire: Wire) -> None:
        leader = _Leader(wire, self.vitals, Pace(self.config.cores), self.config.dispatch_timeout)
        if not wire.interrupted:
            await wire.connection.execute("listen " + broker.DISPATCH_CHANNEL)
            self.vitals.leading = True
            self.vitals.beat(self.name, self.config.dispatch_timeout)
            log.info("dispatching")
        while not wire.interrupted:
            try:
                await wire.aside(leader.lead)
            except errors.QueryCanceled:
                names = await broker.blame(wire.connection)
                if names is not None:
                    log.warning("suspended %s: the filter ran longer than the dispatch timeout", names)
                    continue
                # Nobody's fault: there is more work than fits, and tried again with the same limit it would never end.
                seconds = leader.be_patient()
                log.warning("a dispatch was cancelled and no filter is to blame: it may take %g s now", seconds)


def _stand_by(wire: Wire) -> None:
    waiting = False
    while not wire.interrupted and not broker.try_lead(wire):
        if not waiting:
            log.info("standing by: another worker dispatches")
            waiting = True
        wire.pause(random.uniform(*_STANDBY_POLL))  # noqa: S311


class _Leader:
    """The loop of the dispatcher that leads, in a thread. Nothing is logged in it, and a batch costs one round trip."""

    def __init__(self, wire: Wire, vitals: Vitals, pace: Pace, timeout: float) -> None:
        self._wire = wire
        self._vitals = vitals
        self._pace = pace
        self._timeout = self._patience = timeout

    def _beat(self) -> None:
        # As long as the first limit, however patient it has become: who watches is to know.
        self._vitals.beat("dispatcher", self._timeout + SAFETY)

    def be_patient(self) -> float:
        """Double the time a dispatch may take, until one has ended; return it, in seconds."""
        self._patience *= 2
        return self._patience

    def lead(self) -> None:
        """Dispatch until interrupted."""
        if self._patience > self._timeout:
            broker.limit_session(self._wire, self._patience)
        while not self._wire.interrupted:
            # Awake first: who commits now may have seen the last leader awake, and will not notify.
            self._awake()
            self._asleep()

    def _awake(self) -> None:
        """Look again and again, sparing publishers the NOTIFY, until nothing has come for a while."""
        awake = False
        checked = time.monotonic()
        while not self._wire.interrupted:
            began = time.monotonic()
            if awake:
                batch = broker.dispatch(self._wire)
            else:
                awake, batch = broker.stay_awake_and_dispatch(self._wire)
            now = self._note(batch, began)
            if not batch.events and self._pace.is_calm(now):
                break
            if now - checked > SAFETY:
                self._still_leading()
                checked = now
            self._wire.pause(self._pace.linger())
        if awake:
            self._fall_asleep()

    def _fall_asleep(self) -> None:
        """Let publishers notify again, and look until none is left that was committing without."""
        began = time.monotonic()
        running, batch = broker.fall_asleep_and_dispatch(self._wire)
        self._note(batch, began)
        for poll in ALL_ENDED_POLLS:
            began = time.monotonic()
            ended, batch = broker.all_ended_and_dispatch(self._wire, running)
            now = self._note(batch, began)
            if ended or self._wire.interrupted or self._pace.is_busy(now):
                return
            self._wire.notified(poll)

    def _asleep(self) -> None:
        """Wait for publishers to notify, until they do it too often."""
        timeout = CONFIRM
        while not self._wire.interrupted:
            told = self._wire.notified(timeout)
            if not told and timeout == SAFETY:
                self._still_leading()
            began = time.monotonic()
            batch = broker.dispatch(self._wire)
            if self._pace.is_busy(self._note(batch, began, commits=told)):
                return
            timeout = confirm(batch.events)

    def _still_leading(self) -> None:
        """Take the leader lock back should a filter's function have released the session's locks."""
        if not broker.try_lead(self._wire):
            raise LeadershipLostError

    def _note(self, batch: broker.Batch, began: float, *, commits: int = 1) -> float:
        """Count what a look found, once it is dispatched, and return the time."""
        if batch.large:
            batch = dispatch_large(self._wire, batch.large, timeout=self._patience, progress=self._beat)
        self._beat()
        now = time.monotonic()
        if batch.events:
            if self._patience > self._timeout:
                self._patience = self._timeout
                broker.limit_session(self._wire, self._timeout)
            self._pace.note(Round(began, now, batch.events, batch.woken, max(1, commits)))
            self._vitals.events_dispatched += batch.events
            self._vitals.batches_dispatched += 1
        return now


class LeadershipLostError(OSError):
    """Another session holds the leader lock."""

    def __str__(self) -> str:
        return "another session dispatches now"
