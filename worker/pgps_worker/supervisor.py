"""Services that are started again when they fail, until the worker is asked to stop."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import psycopg
from tenacity import AsyncRetrying, RetryCallState, wait_random_exponential

from pgps_worker.connection import in_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Service", "Supervisor"]

log = logging.getLogger(__name__)

# The pauses are random, so that the workers do not all connect at once to a server that comes back.
_BACKOFF = wait_random_exponential(multiplier=0.1, max=5)
# A service that ran for this long was working; the pauses after its next failure begin with the shortest again.
_WELL_AFTER = 5.0

_HINTS = {
    "3D000": "create the database, then run: pgps install DSN",
    "3F000": "run: pgps install DSN",
    "42501": "ask an administrator for: grant pgps_worker to this role",
    "42883": "run: pgps install DSN, or pgps upgrade DSN",
}


class Service(Protocol):
    """One thing a worker does, with connections of its own.

    `run` returns when the stop was requested and raises when it cannot go on;
    it is then called again.
    """

    @property
    def name(self) -> str:
        """The service's name in the log and, after the worker's, in application_name."""

    async def run(self) -> None:
        """Serve."""


@dataclass(frozen=True, slots=True)
class Supervisor:
    """Runs services side by side; the failure of one does not disturb the others."""

    stop: Stop
    vitals: Vitals

    async def run(self, services: Sequence[Service]) -> None:
        """Run all services until each has left after a request to stop."""
        async with asyncio.TaskGroup() as group:
            for service in services:
                group.create_task(self.keep(service), name=service.name)

    async def keep(self, service: Service) -> None:
        """Run one service, again after each failure, with growing pauses."""
        began = time.monotonic()

        def forgive(state: RetryCallState) -> None:
            if time.monotonic() - began > _WELL_AFTER:
                state.attempt_number = 1

        retrying = AsyncRetrying(
            sleep=self.stop.sleep,
            wait=_BACKOFF,
            stop=lambda _: self.stop.requested,
            after=forgive,
            before_sleep=lambda state: self._report(service, state),
            retry_error_callback=lambda _: None,
        )
        async for attempt in retrying:
            began = time.monotonic()
            with attempt:
                if not self.stop.requested:
                    await service.run()

    def _report(self, service: Service, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        text = in_one_line(error)
        # If a server is away for long, each service logs one line and not one line every second.
        level = logging.DEBUG if self.vitals.services.get(service.name) == text else logging.WARNING
        self.vitals.down(service.name, text)
        if not isinstance(error, psycopg.Error | OSError):
            log.error("%s failed; again in %.1f s", service.name, state.upcoming_sleep, exc_info=error)
            return
        hint = _HINTS.get(getattr(error, "sqlstate", None) or "", "")
        log.log(level, "%s: %s; again in %.1f s%s", service.name, text, state.upcoming_sleep, hint and f" ({hint})")
