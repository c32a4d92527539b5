"""All links of a broker: those that are defined are served, those that are dropped or paused are let go."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgps_worker.connection import connect
from pgps_worker.links import calls
from pgps_worker.links.keeper import Keeper
from pgps_worker.links.together import leave
from pgps_worker.logs import about

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig
    from pgps_worker.connection import Connection
    from pgps_worker.ears import Ears
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Links"]

log = logging.getLogger(__name__)

_POLL = 5.0
_STATEMENT_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Links:
    """Serves the links that this broker has defined; a second worker finds them taken, and stands by."""

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    ears: Ears

    @property
    def name(self) -> str:
        """Its name."""
        return "links"

    async def run(self) -> None:
        """Keep a task for each link until asked to stop."""
        running: dict[calls.LinkRow, asyncio.Task[None]] = {}
        async with connect(self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT) as connection:
            self.vitals.up(self.name)
            try:
                with self.ears.hear(calls.LINK_CHANNEL) as ear:
                    while not self.stop.requested:
                        # First of all: what comes next could wait for them, too.
                        for told in await calls.end_stuck(connection):
                            log.warning("%s", told)
                        links = await calls.serve_links(connection)
                        for link in links:
                            if link.at_once:
                                await calls.note_link(connection, link.name, "defined")
                        await self._adjust(running, links)
                        await self._measure(connection)
                        await ear.heard(_POLL, stop=self.stop)
            finally:
                await self._leave(list(running.values()))

    async def _adjust(self, running: dict[calls.LinkRow, asyncio.Task[None]], links: list[calls.LinkRow]) -> None:
        wanted, at_once = set(links), {link for link in links if link.at_once}
        gone = [link for link, task in running.items() if link not in wanted or link in at_once or task.done()]
        await self._leave([running.pop(link) for link in gone])
        for link in wanted - running.keys():
            keeper = Keeper(self.config, link, self.stop, self.vitals, self.ears)
            running[link] = asyncio.create_task(keeper.run(), name=f"link-{link.name}")

    async def _measure(self, connection: Connection) -> None:
        """Note how the links are and how far behind, and tell what has become worse; forget those that are no more."""
        looks = await calls.read_links(connection)
        for name in self.vitals.links.keys() - {look.name for look in looks}:
            del self.vitals.links[name]
        for look in looks:
            link = self.vitals.link(look.name)
            lacks = look.state == "incomplete"
            if lacks and not link.lacks:
                _tell(look, f"does not carry everything: {look.last_error}", look.hint or f"pgps link show {look.name}")
            if look.gaps > link.gaps:
                _tell(look, f"{look.gaps} gaps: nobody has those events any more", "pgps exceptions ls")
            link.lacks, link.lag_events, link.lag_seconds = lacks, look.lag_events, look.lag_seconds
            link.refused, link.gaps = look.refused, look.gaps

    async def _leave(self, tasks: list[asyncio.Task[None]]) -> None:
        """Let tasks end; a batch that is half carried is rolled back and carried again."""
        await leave(tasks, at_once=not self.stop.requested)


def _tell(look: calls.LinkLook, error: str, hint: str) -> None:
    said = about(link=look.name, state=look.state, error=error, hint=hint)
    log.warning("link %s: %s (%s)", look.name, error, hint, extra=said)
