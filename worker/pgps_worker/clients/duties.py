"""Confirms events when their transactions have ended, and tries direct events again that reached nobody."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgps_worker.calls import wash
from pgps_worker.clients import calls
from pgps_worker.connection import connect

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig
    from pgps_worker.ears import Ears
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Duties"]

_STATEMENT_TIMEOUT = 30.0
# There is no notification of the end of a transaction that raised an immediate event.
_OPEN_POLL = 0.1


@dataclass(frozen=True, slots=True)
class Duties:
    """Looks when a dispatch brought something to confirm, often while a raising transaction runs, else once a poll."""

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    ears: Ears

    @property
    def name(self) -> str:
        """Its name."""
        return "clients"

    async def run(self) -> None:
        """Look until asked to stop."""
        async with connect(self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT) as connection:
            # What comes from here on and reaches nobody is noticed; only then is the worker ready.
            since, due = await calls.retry_direct(connection, None), 0.0
            self.vitals.up(self.name)
            with self.ears.hear(calls.CONFIRM_CHANNEL) as ear:
                while not self.stop.requested:
                    confirmed = await calls.raise_confirming(connection)
                    if confirmed.done:
                        self.vitals.events_confirmed += confirmed.done
                        # A constraint of a confirming event may have left something in the session.
                        await wash(connection)
                        continue
                    if time.monotonic() >= due:
                        since, due = await calls.retry_direct(connection, since), time.monotonic() + self.config.poll
                    await ear.heard(_OPEN_POLL if confirmed.open else self.config.poll, stop=self.stop)
