"""Asks the filters that may read more than the event, role by role, beside the dispatcher.

Quick lanes share one session. Each has a transaction of its own, and all of them
together have a second; the lane that is being asked when the second is over counts
as slow. Slow lanes are asked one by one, in another session, with the time limit of
the setting lane_timeout. If a filter does not let itself be cancelled, its session
is ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar

import psycopg
from psycopg import errors

from pgps_worker.connection import Connection, connect, in_one_line
from pgps_worker.links.together import ended

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from pgps_worker.config import WorkerConfig
    from pgps_worker.ears import Ear, Ears
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["QuickLanes", "SlowLanes", "run_all_lanes"]

log = logging.getLogger(__name__)

CHANNEL: LiteralString = "pgps_lanes"

# How long the quick lanes may take together before one of them counts as slow, and after what part of this time no
# further one is begun.
_QUICK = 1.0
_BEGIN = 0.25
# At the time limit the server cancels the statement; if that has no effect, the session is ended this many seconds
# later.
_GRACE = 1.0
_STATEMENT_TIMEOUT = 10.0
_LOOK_FOR_STUCK = 10.0

# What a crash takes away is matched again, and whatever was built on it is lost with it, as with a batch (see
# dispatcher.py).
_SETTINGS = {"synchronous_commit": "off"}

T = TypeVar("T")


class _SessionEndedError(Exception):
    """The session was ended, since a filter in it did not let itself be cancelled."""


@dataclass(frozen=True, slots=True)
class _Session:
    """A session that the server knows as one that asks filters."""

    config: WorkerConfig
    service: str
    connection: Connection
    slot: int

    async def call(self, work: Coroutine[Any, Any, T], limit: float) -> T:
        """Await a statement; if it goes on after its time limit, end the session and raise _SessionEndedError."""
        running = asyncio.create_task(work, name=f"{self.service}-call")
        try:
            done, _ = await asyncio.wait([running], timeout=limit + _GRACE)
            if done:
                return await running
            log.warning("%s: a filter does not let itself be cancelled: %s", self.service, await self._end())
            await asyncio.wait([running], timeout=_GRACE)
            raise _SessionEndedError
        finally:
            # Whoever called closes the connection.
            running.cancel()
            if await ended([running]):
                raise asyncio.CancelledError

    async def _end(self) -> str:
        async with connect(self.config, f"{self.service}-watchdog", statement_timeout=_STATEMENT_TIMEOUT) as other:
            told = (await _row(other, "select pgps.end_lane(%s)", [self.slot]))[0]
        return str(told or "nobody is to blame")


@dataclass(frozen=True, slots=True)
class QuickLanes:
    """Asks the quick lanes as soon as a dispatch says that they have something."""

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    ears: Ears

    @property
    def name(self) -> str:
        """Its name."""
        return "lanes"

    async def run(self) -> None:
        """Ask until asked to stop, in a new session when one had to be ended."""
        while not self.stop.requested:
            try:
                async with connect(self.config, self.name, statement_timeout=_QUICK, settings=_SETTINGS) as connection:
                    session = _Session(self.config, self.name, connection, await _open(connection))
                    self.vitals.up(self.name)
                    with self.ears.hear(CHANNEL) as ear:
                        await self._serve(session, ear)
            except _SessionEndedError:
                continue

    async def _serve(self, session: _Session, ear: Ear) -> None:
        seen = 0
        while not self.stop.requested:
            try:
                seen, late = await session.call(_run_quick(session.connection, seen), _QUICK)
            except errors.QueryCanceled:
                # The statement was not cancelled inside a filter, or the server would have noted it.
                late = True
            if not late and not await ear.heard(self.config.poll, stop=self.stop):
                # Once in each poll all lanes are asked, whatever was seen before, since another session may have left
                # one unfinished.
                seen = 0


@dataclass(frozen=True, slots=True)
class SlowLanes:
    """Asks slow lanes, one batch at a time and in turn, until they are quick again."""

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    ears: Ears

    @property
    def name(self) -> str:
        """Its name."""
        return "slow-lanes"

    async def run(self) -> None:
        """Ask until asked to stop, in a new session when one had to be ended."""
        while not self.stop.requested:
            try:
                async with connect(
                    self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT, settings=_SETTINGS
                ) as connection:
                    session = _Session(self.config, self.name, connection, await _open(connection))
                    self.vitals.up(self.name)
                    with self.ears.hear(CHANNEL) as ear:
                        await self._serve(session, ear)
            except _SessionEndedError:
                continue

    async def _serve(self, session: _Session, ear: Ear) -> None:
        looked = time.monotonic()
        while not self.stop.requested:
            if time.monotonic() - looked > _LOOK_FOR_STUCK:
                looked = time.monotonic()
                await self._end_stuck(session.connection)
            if not await self._round(session):
                await ear.heard(self.config.poll, stop=self.stop)

    async def _round(self, session: _Session) -> bool:
        """Give each slow lane one batch; return whether any has more."""
        more = False
        query: LiteralString = "select lane_id, timeout from pgps.slow_lanes()"
        lanes: Sequence[Any] = await (await session.connection.execute(query)).fetchall()
        for lane, limit in lanes:
            if self.stop.requested:
                break
            await _limit(session.connection, limit)
            try:
                done, told = await session.call(
                    _row(session.connection, "select * from pgps.run_slow_lane(%s)", [lane]), limit
                )
            except psycopg.Error as error:
                if session.connection.closed:
                    raise
                log.warning("%s: %s", self.name, in_one_line(error))
                continue
            finally:
                if not session.connection.closed:
                    await _limit(session.connection, _STATEMENT_TIMEOUT)
            _tell([told] if told else [])
            more = more or not done
        return more

    async def _end_stuck(self, connection: Connection) -> None:
        """End sessions of workers that cannot do it themselves any more."""
        _tell([told for told in (await _row(connection, "select pgps.end_stuck_lanes()"))[0] if told])


async def run_all_lanes(connection: Connection) -> None:
    """Ask all lanes once, slow ones too; a filter that takes longer than the statement timeout is noted."""
    _tell((await _row(connection, "call pgps.run_lanes()"))[1])


async def _run_quick(connection: Connection, seen: int) -> tuple[int, bool]:
    """Return up to which batch all have been asked, and whether there is more to do at once."""
    began = time.monotonic()
    upto, told = await _row(connection, "call pgps.run_lanes(seen => %s, slow => false, seconds => %s)", [seen, _BEGIN])
    _tell(told)
    return int(upto), time.monotonic() - began > _BEGIN


def _tell(told: Sequence[str]) -> None:
    for line in told:
        log.warning("%s", line)


async def _open(connection: Connection) -> int:
    return int((await _row(connection, "select pgps.open_lanes()"))[0])


async def _limit(connection: Connection, seconds: float) -> None:
    query: LiteralString = "select pg_catalog.set_config('statement_timeout', %s, false)"
    await connection.execute(query, [f"{1000 * seconds:.0f}"])


async def _row(connection: Connection, query: LiteralString, params: Sequence[object] | None = None) -> Sequence[Any]:
    row = await (await connection.execute(query, params)).fetchone()
    assert row is not None
    return row
