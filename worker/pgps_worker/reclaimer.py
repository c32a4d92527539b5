"""Gives back the space of events that nobody needs any more."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgps_worker import calls
from pgps_worker.connection import connect

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Reclaimer"]

_STATEMENT_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Reclaimer:
    """Reclaims every few seconds; it takes no lock that somebody else holds."""

    config: WorkerConfig
    stop: Stop
    vitals: Vitals

    @property
    def name(self) -> str:
        """Its name."""
        return "reclaimer"

    async def run(self) -> None:
        """Reclaim until asked to stop, segment by segment."""
        async with connect(self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT) as connection:
            self.vitals.up(self.name)
            while not self.stop.requested:
                segments = await calls.reclaim(connection)
                self.vitals.segments_reclaimed += segments
                self.vitals.beat(self.name, 2 * (_STATEMENT_TIMEOUT + self.config.reclaim_every))
                if not segments:
                    # The random part keeps several workers from meeting at the same locks each time.
                    await self.stop.sleep(self.config.reclaim_every * random.uniform(0.8, 1.2))  # noqa: S311
