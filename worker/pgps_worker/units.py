"""Relays units of work: applies what other brokers sent, and tells them what became of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

from pgps_worker.connection import Connection, connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgps_worker.config import WorkerConfig
    from pgps_worker.ears import Ears
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Units", "relay"]

CHANNEL: LiteralString = "pgps_relay"
_STATEMENT_TIMEOUT = 60.0
# Lifetimes are kept to the second, and nobody says when one is over or a session has ended.
_LOOK = 1.0


@dataclass(frozen=True, slots=True)
class Units:
    """Looks when a dispatch brought something, and every second where services are used over links.

    Several workers take turns: the subscription is one session's at a time.
    """

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    ears: Ears

    @property
    def name(self) -> str:
        """Its name."""
        return "units"

    async def run(self) -> None:
        """Relay until asked to stop."""
        async with connect(self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT) as connection:
            self.vitals.up(self.name)
            with self.ears.hear(CHANNEL) as ear:
                while not self.stop.requested:
                    done = await relay(connection)
                    if not done:
                        patience = self.config.poll if done is None else min(self.config.poll, _LOOK)
                        await ear.heard(patience, stop=self.stop)


async def relay(connection: Connection) -> int | None:
    """Do what there is to do, in one transaction; return how much that was, None when nothing is relayed here."""
    row: Sequence[Any] | None = await (await connection.execute("select pgps.relay_units()")).fetchone()
    return None if row is None else row[0]
