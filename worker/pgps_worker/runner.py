"""Runs internal subscriptions, one batch at a time, and survives what their callbacks do."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors

from pgps_worker import calls
from pgps_worker.agenda import Agenda, Outcome, Result, Turn
from pgps_worker.connection import Connection, connect, in_one_line, is_alive
from pgps_worker.logs import about
from pgps_worker.watchdog import Watchdog

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig
    from pgps_worker.vitals import Vitals

__all__ = ["Runner", "open_agenda", "open_runners"]

log = logging.getLogger(__name__)

# If a batch was smaller than this, nothing more was waiting. Of what is dispatched later the worker is notified, so it
# need not ask.
_FEW = 5


def open_agenda(config: WorkerConfig) -> Agenda:
    """Return an empty agenda with as many slots as the worker runs callbacks of one owner at once."""
    return Agenda(
        slots=config.concurrency,
        patience=config.callback_timeout,
        clock=time.monotonic,
        time_slice=config.time_slice,
    )


def open_runners(config: WorkerConfig, agenda: Agenda, vitals: Vitals) -> list[Runner]:
    """Return a runner for each slot, and one for owners who have none while all are taken."""
    return [Runner(config, agenda, vitals, number) for number in range(1, config.concurrency + 2)]


@dataclass(frozen=True, slots=True)
class Runner:
    """A session of its own, in which it runs turn after turn."""

    config: WorkerConfig
    agenda: Agenda
    vitals: Vitals
    number: int

    @property
    def name(self) -> str:
        """Its name."""
        return f"subscriber-{self.number}"

    async def run(self) -> None:
        """Take turns until the agenda is closed, in a new session when one was lost."""
        while not self.agenda.closed:
            async with connect(self.config, self.name, statement_timeout=self.config.callback_timeout) as connection:
                self.vitals.up(self.name)
                while not connection.closed and (turn := await self.agenda.take()) is not None:
                    await self._turn(connection, turn)

    async def _turn(self, connection: Connection, turn: Turn) -> None:
        result = Result(Outcome.UNTOUCHED)
        try:
            result = await self._serve(connection, turn)
        except errors.UndefinedObject:
            # It was dropped after it was offered, and is not to be served again.
            log.debug("subscription %s is gone", turn.subscription)
            result = Result(Outcome.NOTHING)
        except psycopg.Error as error:
            # The callback did not raise this error: run_subscriber turns errors of callbacks into a result.
            text = in_one_line(error)
            said = about(subscription=turn.subscription, sqlstate=error.sqlstate, error=text)
            log.warning("subscription %s: %s", turn.subscription, text, extra=said)
            # What fails so may do so in each session, and must not be tried without a pause.
            result = Result(Outcome.UNSERVED)
            await connection.close()
        finally:
            log.debug("%s of %s: %s", self.name, turn, result)
            self.agenda.done(turn, result)

    async def _serve(self, connection: Connection, turn: Turn) -> Result:
        """Run one batch, file the event that hung or killed it, and wash the session."""
        if not is_alive(connection):
            await connection.close()
            return Result(Outcome.UNTOUCHED)
        if turn.alone and not await calls.try_suspect(connection, turn.subscription):
            return Result(Outcome.REFUSED)
        try:
            result = turn.verdict or await self._call(connection, turn)
            if connection.closed:
                return result
            if turn.is_to_blame(result.outcome):
                result = await self._file(connection, turn, result)
        except errors.LockNotAvailable as error:
            # Somebody is changing the event type: no event is to blame for waiting for him (decision 74).
            log.warning("subscription %s: %s", turn.subscription, in_one_line(error))
            result = Result(Outcome.REFUSED)
        if result.outcome is not Outcome.NOTHING:
            await calls.wash(connection)
        if turn.alone:
            await calls.release_suspects(connection)
        return result

    async def _call(self, connection: Connection, turn: Turn) -> Result:
        event: int | None = None
        if turn.alone:
            # The event is remembered by its id in case it has to be filed: by then another worker may have filed it and
            # gone on to the next one.
            event = await calls.next_delivery(connection, turn.subscription)
            if event is None:
                return Result(Outcome.NOTHING)
        began = time.monotonic()
        with Watchdog(self.config, self.name, connection, lambda: self.agenda.wanted(turn)) as watchdog:
            try:
                async with watchdog.patience:
                    events = await calls.run_subscriber(connection, turn.subscription, turn.limit)
            except TimeoutError:
                await connection.close()
                said = about(subscription=turn.subscription)
                log.error("the callback of subscription %s cannot be ended; left alone", turn.subscription, extra=said)
                return Result(Outcome.REFUSED)
            except psycopg.Error as error:
                if watchdog.ousted:
                    return await self._ousted(connection, turn)
                failed = self._failed(connection, turn, error, barked=watchdog.barked)
                return replace(failed, event=event)
            if watchdog.ousted:
                # It was done at that moment, but its session is about to end.
                await connection.close()
        if events == 0:
            return Result(Outcome.NOTHING)
        self.vitals.events_handled += events
        self.vitals.batches_handled += 1
        share = (time.monotonic() - began) / self.config.callback_timeout
        return Result(Outcome.HANDLED, more=events >= min(turn.limit or _FEW, _FEW), share=share)

    async def _ousted(self, connection: Connection, turn: Turn) -> Result:
        await connection.close()
        said = about(subscription=turn.subscription)
        log.info("the callback of subscription %s was ended, since other roles wait; it runs again",
            turn.subscription, extra=said)  # fmt: skip
        self.vitals.callbacks_ousted += 1
        return Result(Outcome.OUSTED)

    def _failed(self, connection: Connection, turn: Turn, error: psycopg.Error, *, barked: bool) -> Result:
        text = in_one_line(error)
        said = about(subscription=turn.subscription, sqlstate=error.sqlstate, error=text)
        log.warning("subscription %s: %s", turn.subscription, text, extra=said)
        if barked or isinstance(error, errors.QueryCanceled):
            self.vitals.callbacks_stopped += 1
            limit = f"callback_timeout is {self.config.callback_timeout:g} s"
            return Result(Outcome.HUNG, sqlstate="57014", error=f"{text} ({limit})")
        if connection.closed:
            sqlstate = error.sqlstate or "08006"
            return Result(Outcome.DIED, sqlstate=sqlstate, error=f"the session ended in the callback: {text}")
        return Result(Outcome.NOTHING if isinstance(error, errors.UndefinedObject) else Outcome.REFUSED)

    async def _file(self, connection: Connection, turn: Turn, result: Result) -> Result:
        filed = result.event is not None and await calls.fail_delivery(
            connection, turn.subscription, sqlstate=result.sqlstate, error=result.error, event=result.event
        )
        if not filed:
            return Result(Outcome.NOTHING)
        self.vitals.events_filed += 1
        said = about(subscription=turn.subscription, event_id=filed)
        log.warning("event %d of subscription %s is filed as failed", filed, turn.subscription, extra=said)
        return Result(Outcome.FILED)
