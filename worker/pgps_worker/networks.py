"""The long haul: carries what is spooled for other networks to their contact points, one task for each.

Where a contact point stands both brokers know, so the death of either, or of the worker, costs nothing but the time
until somebody connects again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg

from pgps.errors import ConfigError
from pgps_worker.connection import connect, in_one_line
from pgps_worker.links.together import leave, leave_if_cancelled
from pgps_worker.logs import about
from pgps_worker.outward import UNREACHED, outward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgps_worker.config import WorkerConfig
    from pgps_worker.connection import Connection
    from pgps_worker.ears import Ear, Ears
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Contact", "Line", "Networks"]

log = logging.getLogger(__name__)

CHANNEL: LiteralString = "pgps_network"
_POLL = 5.0
_STATEMENT_TIMEOUT = 10.0
# The other broker may need any time to commit a batch, so the only limit is the one that notices a dead connection.
_NO_TIMEOUT = 0.0
# Between looks at both ends of a connection over which nothing goes, and at a manager that may have died.
_HEARTBEAT = 1.0
# The first attempt to connect again is made at once.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

_HINTS = {
    "": UNREACHED,
    "3F000": "There is no pgps in that database: pgps install DSN",
    "42883": "The pgps there has no networks: pgps upgrade DSN",
    "42501": "Over there: grant pgps_link to the role of the contact point",
}
_HINT = "Try it: psql with the connection string of the contact point."


@dataclass(frozen=True, slots=True)
class Contact:
    """A contact point of a network; user and passfile are the network's, for a connection string without them."""

    number: int
    network: str
    conninfo: str
    user: str | None
    passfile: str | None
    channel: str

    @classmethod
    def of(cls, row: dict[str, Any]) -> Contact:
        """Read a row of pgps.serve_networks."""
        return cls(row["contact"], row["network"], row["conninfo"], row["username"], row["passfile"], row["channel"])


@dataclass(frozen=True, slots=True)
class Networks:
    """Serves the contact points of all networks; a second worker finds them managed, and stands by."""

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    ears: Ears

    @property
    def name(self) -> str:
        """Its name."""
        return "networks"

    async def run(self) -> None:
        """Keep a task for each contact point until asked to stop."""
        running: dict[Contact, asyncio.Task[None]] = {}
        async with connect(self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT) as connection:
            self.vitals.up(self.name)
            try:
                with self.ears.hear(CHANNEL) as ear:
                    while not self.stop.requested:
                        wanted = {Contact.of(row) for row in await _value(connection, "select pgps.serve_networks()")}
                        await self._adjust(running, wanted)
                        await ear.heard(_POLL, stop=self.stop)
            finally:
                await self._leave(list(running.values()))

    async def _adjust(self, running: dict[Contact, asyncio.Task[None]], wanted: set[Contact]) -> None:
        gone = [contact for contact, task in running.items() if contact not in wanted or task.done()]
        await self._leave([running.pop(contact) for contact in gone])
        for contact in wanted - running.keys():
            line = Line(self.config, contact, self.stop, self.ears)
            running[contact] = asyncio.create_task(line.run(), name=f"network-{contact.network}-{contact.number}")

    async def _leave(self, tasks: list[asyncio.Task[None]]) -> None:
        await leave(tasks, at_once=not self.stop.requested)


@dataclass(slots=True)
class Line:
    """The connection to one contact point."""

    config: WorkerConfig
    contact: Contact
    stop: Stop
    ears: Ears
    was_up: bool = False
    stands_by: bool = False

    async def run(self) -> None:
        """Serve it until asked to stop, or cancelled; whatever breaks, begin again."""
        failures = 0
        while not self.stop.requested:
            self.was_up = False
            try:
                await self._serve()
            except (psycopg.Error, OSError, ConfigError) as error:
                # A statement that fails in the moment in which it is cancelled raises its own error.
                leave_if_cancelled()
                failures = 0 if self.was_up else failures + 1
                longest = min(_FIRST_PAUSE * 2**failures, _LONGEST_PAUSE) if failures else 0.0
                pause = longest * random.random()  # noqa: S311 - so that workers do not all connect at once
                text = in_one_line(error)
                said = about(network=self.contact.network, error=text)
                log.warning("network %s: %s; again in %.1f s", self.contact.network, text, pause, extra=said)
                # That of another worker is up all the same, or it says itself why not.
                if not self.stands_by:
                    await self._note("waiting", error)
                await self.stop.sleep(pause)

    async def _serve(self) -> None:
        name = f"network-{self.contact.network}"[:24]
        contact = self.contact
        async with connect(self.config, name, statement_timeout=_NO_TIMEOUT) as here:
            while not await _value(here, "select pgps.network_open(%s)", [self.contact.number]):
                self.stands_by = True
                await self.stop.sleep(_HEARTBEAT)
                if self.stop.requested:
                    return
            self.stands_by = False
            remote = outward(self.config, contact.conninfo, user=contact.user, passfile=contact.passfile)
            async with connect(remote, name, statement_timeout=_NO_TIMEOUT) as there:
                with self.ears.hear(self.contact.channel) as ear:
                    await self._carry(here, there, ear)

    async def _carry(self, here: Connection, there: Connection, ear: Ear) -> None:
        """Begin behind what the contact point has, and go on while both ends live."""
        batch, _ = await self._next(here)
        try:
            reached = str(await _value(there, "select pgps.network_reached(%s::jsonb)::text", [batch]))
        except psycopg.errors.UndefinedFunction:
            # An older release, which says no more than a number.
            if not await _value(there, "select to_regproc('pgps.network_take') is not null"):
                raise
        else:
            batch, _ = await self._next(here, reached=reached)
        upto = await self._take(there, batch)
        await self._note("up")
        log.info("network %s: up", self.contact.network)
        while not self.stop.requested:
            batch, has_messages = await self._next(here, upto)
            if has_messages:
                upto = await self._take(there, batch)
            elif not await ear.heard(_HEARTBEAT, stop=self.stop):
                await there.execute("select")
            # Not before: a connection that breaks again at the same place is made again later and later.
            self.was_up = True

    async def _next(self, here: Connection, upto: int | None = None, reached: str | None = None) -> tuple[str, bool]:
        """Return the next batch, and whether there are messages in it.

        It goes on as the text that it is: Python would round numbers, and take none of more than 4300 digits.
        """
        query: LiteralString = """
            select n.batch::text, coalesce(jsonb_typeof(n.batch -> 'messages') = 'array', false)
            from pgps.network_next(%s, %s, reached => %s::jsonb) n(batch)
        """
        row = await (await here.execute(query, [self.contact.number, upto, reached])).fetchone()
        assert row is not None
        return str(row[0]), bool(row[1])

    async def _take(self, there: Connection, batch: str) -> int:
        return int(await _value(there, "select pgps.network_take(%s::jsonb)", [batch]))

    async def _note(self, state: str, error: BaseException | None = None) -> None:
        """Record the state; when this broker is away itself there is nobody to tell."""
        said = in_one_line(error) if error else None
        hint = getattr(error, "hint", None)
        if isinstance(error, psycopg.Error):
            hint = error.diag.message_hint or _HINTS.get(error.sqlstate or "", _HINT)
        with contextlib.suppress(psycopg.Error, OSError):
            async with connect(self.config, "networks", statement_timeout=5.0) as connection:
                query: LiteralString = "select pgps.note_contact(%s, %s, %s, %s)"
                await connection.execute(query, [self.contact.number, state, said, hint])


async def _value(connection: Connection, query: LiteralString, params: Sequence[object] | None = None) -> Any:
    row = await (await connection.execute(query, params)).fetchone()
    assert row is not None
    return row[0]
