"""Runs internal subscriptions, one batch at a time, and survives what their callbacks do."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors

from pgps_worker import broker
from pgps_worker.agenda import Agenda, Outcome, Result, Turn
from pgps_worker.connection import Connection, connect, is_alive

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig
    from pgps_worker.vitals import Vitals

__all__ = ["Runner", "SessionLostError", "open_agenda"]

log = logging.getLogger(__name__)

# How long a callback that caught its cancellation may go on before its session is ended.
_WATCHDOG = 5.0
# Another worker may be busy with the subscription; waiting for it would hold up this slot.
_SETTINGS = {"lock_timeout": "2s"}
_VERDICTS = {
    Outcome.HUNG: ("57014", "the callback did not end within {timeout:g} s"),
    Outcome.DIED: ("08006", "the server process ended while the callback ran"),
}


def open_agenda(config: WorkerConfig) -> Agenda:
    """Return an empty agenda for as many runners as the worker has."""
    return Agenda(slots=config.concurrency, patience=config.callback_timeout, clock=time.monotonic)


class SessionLostError(OSError):
    """The session in which callbacks ran is gone; a new one is needed."""


@dataclass(frozen=True, slots=True)
class Runner:
    """One slot of the worker: a session of its own, in which it runs turn after turn."""

    config: WorkerConfig
    agenda: Agenda
    vitals: Vitals
    number: int

    @property
    def name(self) -> str:
        """Its name."""
        return f"subscriber-{self.number}"

    async def run(self) -> None:
        """Take turns until the agenda is closed; raises when the session is lost."""
        async with connect(
            self.config, self.name, statement_timeout=self.config.callback_timeout, settings=_SETTINGS
        ) as connection:
            self.vitals.up(self.name)
            while (turn := await self.agenda.take()) is not None:
                await self._turn(connection, turn)
                if connection.closed:
                    raise SessionLostError(f"the session was lost in subscription {turn.subscription}")

    async def _turn(self, connection: Connection, turn: Turn) -> None:
        result = Result(Outcome.UNTOUCHED)
        try:
            result = await self._serve(connection, turn)
        finally:
            self.agenda.done(turn, result)

    async def _serve(self, connection: Connection, turn: Turn) -> Result:
        """Run one batch, wash the session, and file the event that is to blame if it hung or killed."""
        if not is_alive(connection):
            await connection.close()
            return Result(Outcome.UNTOUCHED)
        if turn.alone and not await broker.try_suspect(connection, turn.subscription):
            return Result(Outcome.REFUSED)
        result = await self._call(connection, turn)
        if turn.to_blame(result.outcome):
            result = await self._blame(connection, turn, result.outcome)
        if result.outcome is not Outcome.NOTHING and not connection.closed:
            await broker.wash(connection)
        return result

    async def _call(self, connection: Connection, turn: Turn) -> Result:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.config.callback_timeout + _WATCHDOG):
                events = await broker.run_subscriber(connection, turn.subscription, turn.limit)
        except (errors.QueryCanceled, TimeoutError) as error:
            self.vitals.callbacks_stopped += 1
            log.warning("the callback of subscription %s ran longer than allowed", turn.subscription)
            return await self._hung(connection, error)
        except errors.LockNotAvailable:
            return Result(Outcome.REFUSED)
        except psycopg.Error as error:
            return _failed(connection, turn, error)
        if events == 0:
            return Result(Outcome.NOTHING)
        self.vitals.events_handled += events
        self.vitals.batches_handled += 1
        return Result(Outcome.HANDLED, (time.monotonic() - began) / self.config.callback_timeout)

    async def _hung(self, connection: Connection, error: Exception) -> Result:
        """Make sure that the callback's transaction is over before anybody judges it."""
        if isinstance(error, errors.QueryCanceled):
            return Result(Outcome.HUNG)
        pid = connection.info.backend_pid
        await connection.close()
        async with connect(self.config, self.name, statement_timeout=_WATCHDOG) as other:
            if await broker.terminate(other, pid):
                return Result(Outcome.HUNG)
        log.error("server process %d cannot be stopped; its subscription waits until it ends", pid)
        return Result(Outcome.REFUSED)

    async def _blame(self, connection: Connection, turn: Turn, outcome: Outcome) -> Result:
        """File the event as failed, in a new session if the old one is gone."""
        if not connection.closed:
            return await self._file(connection, turn, outcome)
        try:
            async with connect(
                self.config, self.name, statement_timeout=_WATCHDOG, settings=_SETTINGS
            ) as other:
                if await broker.try_suspect(other, turn.subscription):
                    return await self._file(other, turn, outcome)
        except psycopg.Error as error:
            log.warning("subscription %s: the failed event could not be filed: %s", turn.subscription, error)
        return Result(outcome)

    async def _file(self, connection: Connection, turn: Turn, outcome: Outcome) -> Result:
        sqlstate, text = _VERDICTS[outcome]
        error = text.format(timeout=self.config.callback_timeout)
        event = await broker.fail_delivery(connection, turn.subscription, sqlstate=sqlstate, error=error)
        if event is None:
            return Result(Outcome.NOTHING)
        self.vitals.events_filed += 1
        log.warning("event %d of subscription %s is filed as failed: %s", event, turn.subscription, error)
        return Result(Outcome.FILED)


def _failed(connection: Connection, turn: Turn, error: psycopg.Error) -> Result:
    log.warning("subscription %s: %s", turn.subscription, str(error).strip())
    if connection.closed:
        return Result(Outcome.DIED)
    if isinstance(error, errors.UndefinedObject):
        return Result(Outcome.NOTHING)
    return Result(Outcome.REFUSED)
