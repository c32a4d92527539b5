"""Detects composite events beside the dispatcher, and lets their timers fire."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

from psycopg import errors

from pgps_worker.connection import Connection, connect, in_one_line, notified

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgps_worker.config import WorkerConfig
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Composites"]

log = logging.getLogger(__name__)

CHANNEL: LiteralString = "pgps_composite"
_STATEMENT_TIMEOUT = 300.0
# Whoever alters or drops an event type in an open transaction is waited for by what reads that type (decision 74).
_SETTINGS = {"lock_timeout": "2s"}


@dataclass(frozen=True, slots=True)
class Composites:
    """Looks when a dispatch brought something for a composite event, when its next timer is due, and once a poll.

    Several workers share out composite events and their keys: the session that detects has a part of them.
    """

    config: WorkerConfig
    stop: Stop
    vitals: Vitals

    @property
    def name(self) -> str:
        """Its name."""
        return "composites"

    async def run(self) -> None:
        """Detect until asked to stop."""
        async with connect(
            self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT, settings=_SETTINGS
        ) as connection:
            await connection.execute("listen " + CHANNEL)
            self.vitals.up(self.name)
            while not self.stop.requested:
                if not await self._detect(connection):
                    await notified(connection, await self._patience(connection), stop=self.stop)

    async def _detect(self, connection: Connection) -> int:
        try:
            return await detect(connection)
        except errors.LockNotAvailable as error:
            log.warning("detection waits for another session: %s", in_one_line(error))
            return 0

    async def _patience(self, connection: Connection) -> float:
        """Return how long to wait for a notification: up to the next timer, at most a poll."""
        row: Sequence[Any] | None = await (await connection.execute("select pgps.next_timer()")).fetchone()
        seconds = row[0] if row else None
        return self.config.poll if seconds is None else min(self.config.poll, max(seconds, 0.001))


async def detect(connection: Connection) -> int:
    """Detect what there is; return how many steps that took."""
    row: Sequence[Any] | None = await (await connection.execute("select pgps.detect(shared => true)")).fetchone()
    return int(row[0]) if row else 0
