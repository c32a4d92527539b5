"""Executes queued requests: those of one client one after the other, those of several clients side by side."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors

from pgps_worker.calls import terminate, wash
from pgps_worker.clients import calls
from pgps_worker.connection import Connection, connect, in_one_line
from pgps_worker.logs import about
from pgps_worker.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pgps_worker.config import WorkerConfig
    from pgps_worker.ears import Ears
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Requests"]

log = logging.getLogger(__name__)

_STATEMENT_TIMEOUT = 30.0
# How long a request may take to end after it was cancelled for others, before its session is ended.
_GRACE = 2.0
# How many slices a request has there while only roles wait whose last request took longer than one.
_MANY = 10


@dataclass(slots=True)
class _Spare:
    """What the one session more executes, and since when."""

    task: asyncio.Task[None]
    pid: int = 0
    began: float = math.inf


@dataclass(frozen=True, slots=True)
class Requests:
    """Looks when a request was sent, and has up to `concurrency` sessions execute what waits.

    When all of them are busy, one more executes what roles have sent of whom none
    is being executed. It has a `time_slice` for each request while other roles
    wait for it; then that is rolled back, and executed again in one of the others.
    So however long the requests of some roles take, and however many they are,
    those of another one wait for no longer than that. A role whose last request
    took longer than a slice waits for ten of them, and those that do take turns.
    """

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    ears: Ears
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _owners: Counter[str] = field(default_factory=Counter)
    _long: set[str] = field(default_factory=set)
    _had_turn: set[str] = field(default_factory=set)
    _spare: list[_Spare] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name."""
        return "requests"

    async def run(self) -> None:
        """Look until asked to stop; what runs then is rolled back, and executed again by whoever comes."""
        async with connect(self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT) as connection:
            self.vitals.up(self.name)
            try:
                with self.ears.hear(calls.REQUEST_CHANNEL) as ear:
                    while not self.stop.requested:
                        await calls.cancel_running(connection)
                        await self._begin_some(connection)
                        await ear.heard(self.config.poll, stop=self.stop)
            finally:
                for task in self._running:
                    task.cancel()
                await asyncio.gather(*self._running, return_exceptions=True)

    async def drain(self) -> None:
        """Execute what waits now, one request after the other, and return."""
        await self._serve()

    async def _begin_some(self, connection: Connection) -> None:
        """Begin as many sessions as there is work for; if all are busy, see to what others wait for."""
        free = self.config.concurrency - len(self._running)
        if free < 0:
            await self._oust(connection)
            free = self.config.concurrency - len(self._running)
        if free > 0:
            for _ in range(min(free, await calls.pending_requests(connection))):
                self._begin(self._serve())
        elif free == 0 and self._are_busy and await calls.pending_requests(connection, besides=list(self._owners)):
            self._spare[:] = [_Spare(self._begin(self._serve_others()))]

    @property
    def _are_busy(self) -> bool:
        """True when each session executes a request, so that it is known whose: one that connects will claim any."""
        return self._owners.total() == len(self._running)

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="requester")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _oust(self, connection: Connection) -> None:
        """End what the one session more executes when it has had its slice, and others wait."""
        spare = self._spare[0]
        began = spare.began
        slices = (time.monotonic() - began) / self.config.time_slice
        besides = list(self._owners) if slices > _MANY else self._not_for_spare()
        if slices < 1 or not await calls.pending_requests(connection, besides=besides):
            return
        if spare.began != began:
            return
        spare.task.cancel()
        if not (await asyncio.wait([spare.task], timeout=_GRACE))[0]:
            # A request that catches its cancellation counts as one that has ended its session.
            await terminate(connection, spare.pid)
            await asyncio.wait([spare.task], timeout=_GRACE)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("requester: %s", in_one_line(error))

    async def _serve(self) -> None:
        """Execute requests in a session of their own until none waits."""
        async with connect(self.config, "requester", statement_timeout=_STATEMENT_TIMEOUT) as connection:
            while not self.stop.requested and not connection.closed:
                claimed = await calls.claim_request(connection)
                if claimed is None:
                    return
                await self._execute_for(connection, claimed)

    async def _serve_others(self) -> None:
        """Execute requests of roles that have none executed; first of those who do not take long."""
        spare = self._spare[0]
        async with connect(self.config, "requester", statement_timeout=_STATEMENT_TIMEOUT) as connection:
            spare.pid = connection.info.backend_pid
            while not self.stop.requested and not connection.closed:
                claimed = await self._claim_for_others(connection)
                if claimed is None:
                    return
                spare.began = time.monotonic()
                await self._execute_for(connection, claimed)
                spare.began = math.inf

    async def _claim_for_others(self, connection: Connection) -> calls.Claimed | None:
        claimed = await calls.claim_request(connection, besides=self._not_for_spare())
        if claimed is not None:
            return claimed
        # Of those who take long: one that was ended comes first otherwise, for ever, since its request is the oldest.
        claimed = await calls.claim_request(connection, besides=list(self._owners.keys() | self._had_turn))
        if claimed is None:
            self._had_turn.clear()
            claimed = await calls.claim_request(connection, besides=list(self._owners))
        if claimed is not None:
            self._had_turn.add(claimed.owner)
        return claimed

    def _not_for_spare(self) -> list[str]:
        return list(self._owners.keys() | self._long)

    async def _execute_for(self, connection: Connection, claimed: calls.Claimed) -> None:
        owner, began = claimed.owner, time.monotonic()
        self._owners[owner] += 1
        if self._are_busy:
            self.ears.ring(calls.REQUEST_CHANNEL)
        try:
            await self._execute(connection, claimed)
        finally:
            self._owners[owner] -= 1
            if not self._owners[owner]:
                del self._owners[owner]
            took_long = time.monotonic() - began > self.config.time_slice
            (self._long.add if took_long else self._long.discard)(owner)

    async def _execute(self, connection: Connection, claimed: calls.Claimed) -> None:
        patient = replace(self.config, callback_timeout=claimed.timeout)
        with Watchdog(patient, "requester", connection) as watchdog:
            try:
                async with asyncio.timeout(watchdog.give_up):
                    outcome = await calls.run_request(connection, claimed)
            except asyncio.CancelledError:
                # psycopg has cancelled the statement, and the session can still be used to give up the claim.
                await calls.release_request(connection, claimed)
                raise
            except (TimeoutError, psycopg.Error) as error:
                await self._failed(connection, claimed, error, barked=watchdog.barked)
                return
        if outcome is None:
            # Another session was quicker. Otherwise this one would count as ended by the request.
            await calls.release_request(connection, claimed)
        log.debug("request %d of client %s: %s", claimed.request_id, claimed.client, outcome)
        self.vitals.requests_executed += outcome is not None
        await wash(connection)

    async def _failed(
        self, connection: Connection, claimed: calls.Claimed, error: TimeoutError | psycopg.Error, *, barked: bool
    ) -> None:
        """Reply for a request that ran out of time; one whose session ended otherwise is claimed again, and counted."""
        text = in_one_line(error)
        said = about(request_id=claimed.request_id, client=claimed.client, error=text)
        log.warning("request %d of client %s: %s", claimed.request_id, claimed.client, text, extra=said)
        timed_out = barked or isinstance(error, errors.QueryCanceled | TimeoutError)
        await connection.close()
        if not timed_out:
            raise error
        async with connect(self.config, "requester", statement_timeout=_STATEMENT_TIMEOUT) as fresh:
            error_text = f"the request took longer than {claimed.timeout:g} s (setting request_timeout)"
            await calls.fail_request(fresh, claimed, sqlstate="57014", error=error_text)
