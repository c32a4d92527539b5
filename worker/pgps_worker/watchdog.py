"""Ends a session whose callback was cancelled, caught the cancellation, and goes on, or that others wait for."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Self

import psycopg

from pgps_worker import calls
from pgps_worker.connection import Connection, connect, in_one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from pgps_worker.config import WorkerConfig

__all__ = ["Watchdog"]

log = logging.getLogger(__name__)

# The server cancels a callback at callback_timeout. This much later the watchdog ends its session, and after the same
# time again it gives up.
_GRACE = 5.0
_STATEMENT_TIMEOUT = 5.0


class Watchdog:
    """A context manager around one call; `barked` tells whether it had to end the session.

    A process that is in a loop of C or Python code reacts to no signal; `give_up`
    is the time, in seconds, after which the watchdog leaves it alone, and
    `patience` is the timeout that does so. `wanted`, if
    there is one, is called after `time_slice` seconds: when it returns, somebody
    else needs the session, which is ended, and `ousted` is true. A cancellation
    might be caught, and what the call did until then would be committed.
    """

    def __init__(
        self,
        config: WorkerConfig,
        service: str,
        connection: Connection,
        wanted: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.barked = False
        self.ousted = False
        self._grace = min(_GRACE, config.callback_timeout)
        self.give_up = config.callback_timeout + 2 * self._grace
        self.patience = asyncio.timeout(self.give_up)
        self._config = config
        self._service = service
        self._pid = connection.info.backend_pid
        self._wanted = wanted
        self._timers: list[asyncio.TimerHandle] = []
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(self._config.callback_timeout + self._grace, self._bark))
        if self._wanted is not None:
            self._timers.append(loop.call_later(self._config.time_slice, self._begin, self._oust))
        return self

    def __exit__(self, *exc_info: object) -> None:
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        self._tasks.append(asyncio.create_task(work(), name=f"{self._service}-watchdog"))

    def _bark(self) -> None:
        self.barked = True
        self._begin(self._terminate)

    async def _oust(self) -> None:
        assert self._wanted is not None
        await self._wanted()
        self.ousted = True
        if not self.patience.expired():
            self.patience.reschedule(asyncio.get_running_loop().time() + self._grace)
        await self._terminate()

    async def _terminate(self) -> None:
        try:
            async with connect(self._config, self._service, statement_timeout=_STATEMENT_TIMEOUT) as connection:
                await calls.terminate(connection, self._pid)
        except psycopg.Error as error:
            log.warning("server process %d could not be ended: %s", self._pid, in_one_line(error))
