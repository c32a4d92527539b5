"""Cuts a dispatch short when a filter takes too long in it: everybody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import psycopg

from pgps_worker.connection import connect, in_one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pgps_worker.config import WorkerConfig
    from pgps_worker.connection import Connection
    from pgps_worker.wire import Wire

__all__ = ["guarded"]

log = logging.getLogger(__name__)

# How often the guard looks for how long the dispatcher has waited for an answer, and from when on it asks the server
# whether that is because of a filter. How long a filter may take, the server knows (dispatch_filter_timeout).
_LOOK = 0.5
_LONG = 1.0
_STATEMENT_TIMEOUT = 5.0


@contextlib.asynccontextmanager
async def guarded(config: WorkerConfig, service: str, wire: Wire) -> AsyncIterator[None]:
    """Have dispatches cut short in the block while `wire` waits for one: its own, or another session's."""
    watching = asyncio.create_task(_watch(config, service, wire), name=f"{service}-guard")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _watch(config: WorkerConfig, service: str, wire: Wire) -> None:
    while True:
        await asyncio.sleep(_LOOK)
        if wire.waited < _LONG:
            continue
        # Not before, since it takes a session. Where there is none to be had, the dispatch timeout is left.
        try:
            async with connect(config, f"{service}-guard", statement_timeout=_STATEMENT_TIMEOUT) as connection:
                while wire.waited >= _LONG:
                    await _look(connection)
                    await asyncio.sleep(_LOOK)
        except psycopg.Error as error:
            log.debug("nobody cuts dispatches short for now: %s", in_one_line(error))
        except Exception:
            log.exception("nobody cuts dispatches short for now")


async def _look(connection: Connection) -> None:
    answer = await (await connection.execute("select pgps.cut_filter()")).fetchone()
    assert answer is not None
    if answer[0]:
        log.warning("cut a dispatch short: a filter took longer in it than it may")
