"""Statements and notifications straight over libpq, for the loop that every event goes through.

psycopg's cursors and generators take 0.8 ms of a processor for a notification
and the statement that follows it, half as much as the statement takes of the
server; this takes 0.35. Types, errors and cancellation are psycopg's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from psycopg import errors
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus

from pgps_worker.connection import take_notifications

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.pq.abc import PGresult

    from pgps_worker.connection import Connection
    from pgps_worker.stop import Stop

__all__ = ["Wire"]

_CANCEL_PATIENCE = 5.0


class Wire:
    """A connection in autocommit that nobody else uses meanwhile.

    Notifications that come while psycopg itself runs a statement on it are psycopg's, and not seen here.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._pgconn = connection.pgconn

    async def row(self, query: str, params: Sequence[str] = ()) -> tuple[Any, ...]:
        """Run a statement, whose parameters are $1, $2, … and texts, and return its one row.

        Raises psycopg.Error. A cancellation cancels the statement, too.
        """
        async with self.connection.lock:
            self._pgconn.send_query_params(query.encode(), [param.encode() for param in params])
            try:
                result = await self._answer()
            except asyncio.CancelledError:
                await self.connection.cancel_safe(timeout=_CANCEL_PATIENCE)
                await self._answer()
                raise
        if result.status != ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result)
        rows = Transformer(self.connection)
        rows.set_pgresult(result)
        row: tuple[Any, ...] | None = rows.load_row(0, tuple)
        assert row is not None
        return row

    async def notified(self, timeout: float, *, stop: Stop) -> int:  # noqa: ASYNC109
        """Wait for a notification on any channel, and return how many there are.

        0 after `timeout` seconds or when asked to stop. Those that came while a
        statement ran count.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while not (came := take_notifications(self.connection)):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or stop.requested:
                return 0
            async with stop.cuts_short():
                await self._ready(timeout=left)
                self._pgconn.consume_input()
        return came

    async def _answer(self) -> PGresult:
        while self._pgconn.flush():
            await self._ready(writing=True)
        last = None
        while True:
            while self._pgconn.is_busy():
                await self._ready()
                self._pgconn.consume_input()
            result = self._pgconn.get_result()
            if result is None:
                break
            last = result
        assert last is not None
        return last

    async def _ready(self, *, writing: bool = False, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until the server has sent something, or takes something; at most `timeout` seconds."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        socket = self._pgconn.socket
        watch, forget = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
        watch(socket, _settle, ready)
        timer = None if timeout is None else loop.call_later(timeout, _settle, ready)
        try:
            await ready
        finally:
            forget(socket)
            if timer is not None:
                timer.cancel()


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
