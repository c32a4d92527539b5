"""Detects composite events beside the dispatcher, and lets their timers fire."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString

from psycopg import errors

from pgps_worker.connection import connect, in_one_line
from pgps_worker.wire import Wire

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig
    from pgps_worker.ears import Ears
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Composites"]

log = logging.getLogger(__name__)

CHANNEL: LiteralString = "pgps_composite"
_STATEMENT_TIMEOUT = 300.0
# Whoever alters or drops an event type in an open transaction is waited for by what reads that type (decision 74).
_SETTINGS = {"lock_timeout": "2s"}


@dataclass(frozen=True, slots=True)
class Detected:
    """What a call has come to: how many steps it took, whether there is more to do, else when the next timer is due."""

    steps: int
    more: bool
    timer: float | None


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
            self.vitals.up(self.name)
            with (
                Wire(connection) as wire,
                self.stop.calls(wire.interrupt),
                self.ears.hear_in_thread(CHANNEL) as ear,
            ):
                wire.heed(ear)
                while not wire.interrupted:
                    try:
                        await wire.aside(lambda: self._look(wire))
                    except errors.LockNotAvailable as error:
                        log.warning("detection waits for another session: %s", in_one_line(error))
                        await wire.aside(lambda: wire.notified(self.config.poll))

    def _look(self, wire: Wire) -> None:
        """Detect until interrupted, and in between wait for a notification: up to the next timer, at most a poll."""
        while not wire.interrupted:
            found = detect(wire)
            if not found.more:
                timer = self.config.poll if found.timer is None else found.timer
                wire.notified(min(self.config.poll, max(timer, 0.001)))


def detect(wire: Wire) -> Detected:
    """Detect what there is."""
    return Detected(*wire.row("select steps, more, timer from pgps.detect_share()"))
