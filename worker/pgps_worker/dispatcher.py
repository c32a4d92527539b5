"""Turns what was committed into deliveries, as soon as it is committed."""

from __future__ import annotations

import logging
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from psycopg import errors

from pgps_worker import calls
from pgps_worker.bell import hang
from pgps_worker.connection import connect, in_one_line
from pgps_worker.guard import guarded
from pgps_worker.hearing import Hearing
from pgps_worker.large import dispatch_large
from pgps_worker.modes import Modes
from pgps_worker.pace import ALL_ENDED_POLLS, CONFIRM, RUNG_POLLS, SAFETY, Pace, Round, confirm
from pgps_worker.wire import Wire

if TYPE_CHECKING:
    from pgps_worker.bell import Bell
    from pgps_worker.config import WorkerConfig
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["LEADING", "Dispatcher", "Leading"]

log = logging.getLogger(__name__)

# From the leader's death to the take-over less than two seconds pass, including the time until the server notices that
# the leader's connection is dead.
_STANDBY_POLL = (0.7, 1.0)

# A batch that is lost in a crash of the server is dispatched again, and whatever was built on it is lost with it, since
# the flush of any later durable commit covers the batch, too. Waiting for the disk here would only add latency.
#
# Whoever alters or drops an event type in an open transaction has its log locked: then the others are dispatched
# without it (decision 74).
_SETTINGS = {"synchronous_commit": "off", "lock_timeout": "2s"}


class Leading(Enum):
    """The dispatcher that leads is always in one of these modes, until it is interrupted or has lost the lead.

    Publishers read in pgps_internal.wake_seq (sql/code/dispatch/leader.sql) in which mode the leader is. After the
    commit of an event, either the leader will look again by itself, or a NOTIFY is on its way to it.
    """

    AWAKE = "It looks again and again; publishers are spared the NOTIFY."
    FALLING_ASLEEP = "Publishers notify from now on; it looks until all have ended that were committing without."
    ASLEEP = "It waits to be told, and looks now and then, should a notification be lost."


# For each mode: the modes that may follow, and what leads to them.
LEADING = {
    # The leader goes this way when it is interrupted, too: publishers must notify whoever leads next.
    Leading.AWAKE: {
        Leading.FALLING_ASLEEP: "nothing has come for a while, or it is to stop",
        Leading.ASLEEP: "another session leads now, and publishers are not told anything; soon it gives up",
    },
    Leading.FALLING_ASLEEP: {
        Leading.ASLEEP: "all have ended that ran when it began to, or it has waited for half a minute",
        Leading.AWAKE: "somebody rang who has not committed yet, or events come as fast as before",
    },
    Leading.ASLEEP: {Leading.AWAKE: "publishers notify too often, or somebody rang who has not committed yet"},
}


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
                    async with guarded(self.config, self.name, wire):
                        await self._lead(wire)
            finally:
                self.vitals.leading = False
                self.vitals.rest(self.name)

    async def _lead(self, wire: Wire) -> None:
        async with AsyncExitStack() as stack:
            bell = None if wire.interrupted else await hang(self.config, wire.connection, stack)
            if bell:
                wire.heed(bell)
            hearing = Hearing(self.config, wire, calls.DISPATCH_CHANNEL)
            stack.callback(hearing.close)
            pace = Pace(self.config.cores)
            await self._dispatch(wire, _Leader(wire, self.vitals, pace, self.config.dispatch_timeout, bell, hearing))

    async def _dispatch(self, wire: Wire, leader: _Leader) -> None:
        if not wire.interrupted:
            self.vitals.leading = True
            self.vitals.beat(self.name, self.config.dispatch_timeout)
            log.info("dispatching")
        while not wire.interrupted:
            try:
                await wire.aside(leader.lead)
            except errors.QueryCanceled:
                names = await calls.blame(wire.connection)
                if names is not None:
                    log.warning("the filter of %s takes too long for the dispatcher, which asks it no more", names)
                    continue
                # No filter is at fault. There is more work than fits into the time limit, and with the same limit the
                # next attempt would fail like this one.
                seconds = leader.be_patient()
                log.warning("a dispatch was cancelled and no filter is to blame: it may take %g s now", seconds)
            except errors.LockNotAvailable as error:
                log.warning("a dispatch waits for another session: %s", in_one_line(error))


def _stand_by(wire: Wire) -> None:
    waiting = False
    while not wire.interrupted and not calls.try_lead(wire):
        if not waiting:
            log.info("standing by: another worker dispatches")
            waiting = True
        wire.pause(random.uniform(*_STANDBY_POLL))  # noqa: S311


class _Leader:
    """The loop of the dispatcher that leads. It runs in a thread and logs nothing; a batch needs one round trip."""

    def __init__(
        self, wire: Wire, vitals: Vitals, pace: Pace, timeout: float, bell: Bell | None, hearing: Hearing
    ) -> None:
        self._wire = wire
        self._hearing = hearing
        self._vitals = vitals
        self._counted = vitals.events_dispatched
        self._pace = pace
        self._timeout = self._patience = timeout
        self._bell = bell
        self._led = 0.0

    def _beat(self) -> None:
        # The first limit counts, however patient the leader has become, so that whoever watches learns of the delay.
        self._vitals.beat("dispatcher", self._timeout + SAFETY)

    def be_patient(self) -> float:
        """Double the time a dispatch may take, until one has ended; return it, in seconds."""
        self._patience *= 2
        return self._patience

    def lead(self) -> None:
        """Dispatch until interrupted."""
        if self._patience > self._timeout:
            calls.limit_session(self._wire, self._patience)
        self._hearing.listen()
        self._keep_leading(patience=0)
        turns = {
            Leading.AWAKE: self._awake,
            Leading.FALLING_ASLEEP: self._fall_asleep,
            Leading.ASLEEP: self._asleep,
        }
        # The leader begins awake: whoever commits now may have seen the last leader awake, and will not notify.
        modes = Modes(Leading.AWAKE, LEADING)
        while modes.now is Leading.FALLING_ASLEEP or not self._wire.interrupted:
            modes.to(turns[modes.now]())

    def _awake(self) -> Leading:
        """Look again and again, sparing publishers the NOTIFY, until nothing has come for a while."""
        awake = False
        while not self._wire.interrupted:
            began = time.monotonic()
            if awake:
                batch = calls.dispatch(self._wire)
            else:
                awake, batch = calls.stay_awake_and_dispatch(self._wire)
            now = self._note(batch, began)
            if not batch.events and self._pace.is_calm(now):
                break
            self._keep_leading()
            self._wire.pause(self._pace.linger())
        return Leading.FALLING_ASLEEP if awake else Leading.ASLEEP

    def _fall_asleep(self) -> Leading:
        """Have publishers wake the leader again, and look until nobody commits without a NOTIFY any more."""
        began = time.monotonic()
        running, batch = calls.fall_asleep_and_dispatch(self._wire)
        self._note(batch, began)
        for poll in RUNG_POLLS if self._bell else ALL_ENDED_POLLS:
            began = time.monotonic()
            ended, batch = calls.all_ended_and_dispatch(self._wire, running)
            now = self._note(batch, began)
            if ended or self._wire.interrupted:
                break
            if self._pace.is_busy(now):
                return Leading.AWAKE
            self._keep_leading()
            if self._hearing.notified(poll) and self._bell:
                # Publishers that came in the meantime believe that the leader is awake, and have not notified it.
                return Leading.AWAKE
        return Leading.ASLEEP

    def _asleep(self) -> Leading:
        """Wait for publishers to notify, until they do it too often; or for the bell."""
        timeout = CONFIRM
        while not self._wire.interrupted:
            told = self._hearing.notified(timeout)
            if self._bell and (told or (timeout == SAFETY and calls.is_told_awake(self._wire))):
                # Whoever rang has not committed yet, and publishers that came in the meantime have not rung.
                return Leading.AWAKE
            began = time.monotonic()
            batch = calls.dispatch(self._wire)
            if self._pace.is_busy(self._note(batch, began, commits=told)):
                return Leading.AWAKE
            # After the batch, since whoever waits for it has no use for this.
            self._keep_leading()
            timeout = confirm(batch.events)
        return Leading.ASLEEP

    def _keep_leading(self, patience: float = SAFETY) -> None:
        """Say every second that this session leads, and make sure of it."""
        if time.monotonic() - self._led >= patience:
            if not calls.try_lead(self._wire, self._bell.pid if self._bell else None):
                raise LeadershipLostError
            self._led = time.monotonic()

    def _note(self, batch: calls.Batch, began: float, *, commits: int = 1) -> float:
        """Count what a look found, once it is dispatched, and return the time."""
        if batch.large:
            batch = dispatch_large(self._wire, batch.large, timeout=self._patience, progress=self._beat)
        self._beat()
        now = time.monotonic()
        if batch.events:
            if self._patience > self._timeout:
                self._patience = self._timeout
                calls.limit_session(self._wire, self._timeout)
            self._pace.note(Round(began, now, batch.events, batch.woken, max(1, commits)))
            self._vitals.events_dispatched += batch.events
            self._vitals.batches_dispatched += 1
        # Who detects dispatches, too, and takes what publishers have told the leader of.
        self._hearing.found(self._vitals.events_dispatched - self._counted)
        self._counted = self._vitals.events_dispatched
        return now


class LeadershipLostError(OSError):
    """Another session has taken the lead."""

    def __str__(self) -> str:
        return "another session dispatches now"
