"""Notices which internal subscriptions have events, and puts them on the agenda of the runners."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgps_worker import calls
from pgps_worker.connection import Connection, connect

if TYPE_CHECKING:
    from pgps_worker.agenda import Agenda
    from pgps_worker.config import WorkerConfig
    from pgps_worker.ears import Ears
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["LOOK_LIMIT", "Watcher"]

log = logging.getLogger(__name__)

LOOK_LIMIT = 1000
"""How many of the subscriptions that wait are held in memory at a time."""

_STATEMENT_TIMEOUT = 30.0
_FULL_POLL = 0.05
# With many subscriptions a look takes long, and must not take the processor from the callbacks that run.
_LONG_LOOK = 0.005
_REST = 2.0


@dataclass(frozen=True, slots=True)
class Watcher:
    """Looks when it is notified that a dispatch made work, and once in each poll for retries that have become due."""

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    agenda: Agenda
    ears: Ears

    @property
    def name(self) -> str:
        """Its name."""
        return "subscribers"

    async def run(self) -> None:
        """Look until asked to stop."""
        async with connect(self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT) as connection:
            self.vitals.up(self.name)
            self._warn_of_superuser(connection)
            with self.ears.hear(calls.INTERNAL_CHANNEL) as ear:
                while not self.stop.requested:
                    began = time.monotonic()
                    pending = await calls.pending_subscribers(connection, LOOK_LIMIT)
                    self.agenda.offer(pending)
                    self.vitals.beat(self.name, 2 * _STATEMENT_TIMEOUT)
                    took = time.monotonic() - began
                    if took > _LONG_LOOK:
                        await self.stop.sleep(_REST * took)
                    timeout = _FULL_POLL if len(pending) == LOOK_LIMIT else self.config.poll
                    await ear.heard(timeout, stop=self.stop)

    def _warn_of_superuser(self, connection: Connection) -> None:
        if connection.info.parameter_status("is_superuser") == "on" and not self.vitals.is_superuser:
            self.vitals.is_superuser = True
            log.warning(
                "users' code runs in sessions of a superuser; better: create role broker_worker login in role"
                " pgps_worker, and --dsn 'user=broker_worker …'"
            )
