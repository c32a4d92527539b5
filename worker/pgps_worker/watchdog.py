"""Ends a session whose callback was cancelled, caught the cancellation, and goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Self

import psycopg

from pgps_worker import calls
from pgps_worker.connection import Connection, connect, in_one_line

if TYPE_CHECKING:
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
    is the time, in seconds, after which the watchdog leaves it alone.
    """

    def __init__(self, config: WorkerConfig, service: str, connection: Connection) -> None:
        self.barked = False
        self._grace = min(_GRACE, config.callback_timeout)
        self.give_up = config.callback_timeout + 2 * self._grace
        self._config = config
        self._service = service
        self._pid = connection.info.backend_pid
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        delay = self._config.callback_timeout + self._grace
        self._timer = asyncio.get_running_loop().call_later(delay, self._bark)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _bark(self) -> None:
        self.barked = True
        self._task = asyncio.create_task(self._terminate(), name=f"{self._service}-watchdog")

    async def _terminate(self) -> None:
        try:
            async with connect(self._config, self._service, statement_timeout=_STATEMENT_TIMEOUT) as connection:
                await calls.terminate(connection, self._pid)
        except psycopg.Error as error:
            log.warning("server process %d could not be ended: %s", self._pid, in_one_line(error))
