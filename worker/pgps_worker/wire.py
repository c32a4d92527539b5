"""Statements and notifications straight over libpq, for the loop that every event goes through.

Its calls block, and so they run in a thread of their own. At 100 events a second
such a worker takes less than half the processor time of one whose event loop sends
the same statements (decision 36). Types, errors and cancellation are psycopg's.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus

from pgps_worker.connection import take_notifications

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg.pq.abc import PGresult

    from pgps_worker.connection import Connection

__all__ = ["Wire"]

_CANCEL_PATIENCE = 5.0
# A cancellation that arrives between two statements has no effect on either, and has to be sent again.
_CANCEL_AGAIN = 0.1

T = TypeVar("T")


class Rings(Protocol):
    """Whatever wakes one that waits for notifications: a bell, or an ear."""

    def fileno(self) -> int:
        """Return the socket that is readable when it may have been rung."""

    def rung(self) -> int:
        """Return how often it was rung since the last look, or at least whether."""


class Wire:
    """A connection in autocommit that nobody else uses meanwhile; to be closed, which leaves the connection open.

    Notifications that come while psycopg itself runs a statement on it go to psycopg, and are not seen here.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._pgconn = connection.pgconn
        # The thread is not one of the event loop's, which has only a few and needs them to look up hosts.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pgps-wire")
        self._types = Transformer(connection)
        self._interrupted = threading.Event()
        self._interrupt, self._interrupter = socket.socketpair()
        self._answers = select.poll()
        self._answers.register(self._pgconn.socket, select.POLLIN)
        self._waits = select.poll()
        self._waits.register(self._pgconn.socket, select.POLLIN)
        self._waits.register(self._interrupt, select.POLLIN)
        self._bells: list[Rings] = []
        self._asked: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._interrupt.close()
        self._interrupter.close()

    async def aside(self, work: Callable[[], T]) -> T:
        """Run in a thread what uses this wire; a cancellation interrupts it, and cancels its statement, too."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.interrupt()
            while not running.done():
                with contextlib.suppress(psycopg.Error):
                    await self.connection.cancel_safe(timeout=_CANCEL_PATIENCE)
                await asyncio.wait([running], timeout=_CANCEL_AGAIN)
            # The exception is retrieved, so that asyncio does not report it as one that nobody has looked at.
            running.exception()
            raise

    @property
    def interrupted(self) -> bool:
        """True from the first call of `interrupt` on."""
        return self._interrupted.is_set()

    def interrupt(self) -> None:
        """End all waits, now and in future; statements go on. From any thread."""
        self._interrupted.set()
        self._interrupter.send(b"!")

    @property
    def waited(self) -> float:
        """For how long it has waited for the answer to a statement, in seconds; 0 when it does not. For any thread."""
        asked = self._asked
        return 0.0 if asked is None else time.monotonic() - asked

    def row(self, query: str, params: Sequence[str] = ()) -> tuple[Any, ...]:
        """Run a statement, whose parameters are $1, $2, … and texts, and return its one row. Raises psycopg.Error."""
        self._pgconn.send_query_params(query.encode(), [param.encode() for param in params])
        result = self._answer()
        if result.status != ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result)
        return self._first(result)

    def rows(self, *queries: tuple[str, Sequence[str]]) -> list[tuple[Any, ...] | psycopg.Error]:
        """Send statements at once, each a transaction of its own, and return for each its one row, or its error.

        What comes behind an error is run all the same. Raises psycopg.OperationalError when the session is gone.
        """
        self._pgconn.enter_pipeline_mode()
        for query, params in queries:
            self._pgconn.send_query_params(query.encode(), [param.encode() for param in params])
            self._pgconn.pipeline_sync()
        found: list[tuple[Any, ...] | psycopg.Error] = []
        for _ in queries:
            result = self._answer()
            is_well = result.status == ExecStatus.TUPLES_OK
            found.append(self._first(result) if is_well else errors.error_from_result(result))
            # Behind each answer stands that its transaction has ended.
            self._next()
        self._pgconn.exit_pipeline_mode()
        return found

    def command(self, query: str) -> None:
        """Run a statement that returns nothing, as begin and commit. Raises psycopg.Error."""
        self._pgconn.send_query_params(query.encode(), None)
        result = self._answer()
        if result.status != ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)

    def heed(self, bell: Rings) -> None:
        """Take a ring for a notification from now on."""
        self._bells.append(bell)
        self._waits.register(bell.fileno(), select.POLLIN)

    def ignore(self, bell: Rings) -> None:
        """Take it for none any more; before it is closed."""
        self._bells.remove(bell)
        self._waits.unregister(bell.fileno())

    def notified(self, timeout: float) -> int:
        """Wait for a notification on any channel, or a ring, and return how many there are.

        0 after `timeout` seconds or when interrupted. Those that came while a statement ran count.
        """
        deadline = time.monotonic() + timeout
        while not (came := self._told()):
            left = deadline - time.monotonic()
            if left <= 0 or self.interrupted:
                return 0
            self._waits.poll(math.ceil(1000 * left))
            self._pgconn.consume_input()
        return came

    def _told(self) -> int:
        return take_notifications(self.connection) + sum(bell.rung() for bell in [*self._bells])

    def pause(self, seconds: float) -> None:
        """Wait, unless interrupted."""
        self._interrupted.wait(seconds)

    def _answer(self) -> PGresult:
        self._asked = time.monotonic()
        self._flush()
        last = None
        while (result := self._next()) is not None:
            last = result
        self._asked = None
        assert last is not None
        return last

    def _next(self) -> PGresult | None:
        while self._pgconn.is_busy():
            self._answers.poll()
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _first(self, result: PGresult) -> tuple[Any, ...]:
        self._types.set_pgresult(result)
        row: tuple[Any, ...] | None = self._types.load_row(0, tuple)
        assert row is not None
        return row

    def _flush(self) -> None:
        while self._pgconn.flush():
            either = select.poll()
            either.register(self._pgconn.socket, select.POLLIN | select.POLLOUT)
            either.poll()
            self._pgconn.consume_input()
