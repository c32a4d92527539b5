"""A connection that comes back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.rows import TupleRow, tuple_row
from psycopg.types.json import set_json_loads
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, stop_never, wait_random_exponential

from pgps.client._arguments import adapted, refused, shown
from pgps.client._async import runtime
from pgps.client._beyond import all_rows
from pgps.client._conninfo import Target
from pgps.client._wire import is_alive, loads, mapped
from pgps.errors import BrokerError, ClientClosed, ConnectionLost, SessionTaken, host_names

__all__ = [
    "AnyConnection",
    "AsyncSession",
    "fetch",
    "is_pooled",
    "open_connection",
    "read",
    "require_alive",
    "require_connection",
    "require_whole",
]

T = TypeVar("T")
AnyConnection: TypeAlias = psycopg.AsyncConnection[Any]
_log = logging.getLogger("pgps.client")


async def fetch(
    connection: AnyConnection, query: str, params: Any = None, *, prepare: bool | None = None
) -> list[TupleRow]:
    """Run a statement, whatever rows the connection makes otherwise; [] for one that has none."""
    async with require_connection(connection).cursor(row_factory=tuple_row) as cursor:
        with adapted(params):
            await cursor.execute(query.encode(), params, prepare=prepare)
        return await read(cursor)


def require_connection(connection: AnyConnection) -> AnyConnection:
    """Return it. Raises BadArgument for anything else."""
    if not isinstance(connection, psycopg.AsyncConnection):
        raise refused(
            f"a connection is a {psycopg.AsyncConnection.__name__} of psycopg, not {shown(connection)}",
            "Give the one of `client.transaction()`, or one of your own.",
        )
    return connection


async def read(cursor: psycopg.AsyncCursor[TupleRow]) -> list[TupleRow]:
    """Return the rows of the statement that was run, [] for one that has none."""
    try:
        return await cursor.fetchall() if cursor.description is not None else []
    except psycopg.DataError:
        return all_rows(cursor)


def require_alive(connection: AnyConnection) -> AnyConnection:
    """Return it; raise ConnectionLost when the server has hung up: psycopg ends its block as if it were committed."""
    if not is_alive(connection):
        raise ConnectionLost(
            "the connection was lost in a transaction, which is taken back", hint="Begin the block again."
        )
    return connection


def require_whole(connection: AnyConnection) -> AnyConnection:
    """Return it; raise what makes its COMMIT a rollback: ConnectionLost, or a failed statement (25P02)."""
    require_alive(connection)
    if connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.INERROR:
        raise BrokerError(
            "a statement failed in a transaction, which is taken back",
            hint="Let the error out of the block, or catch it around a savepoint: `with connection.transaction()`.",
            sqlstate="25P02",
        )
    return connection


# The database may be set to write values in a way that psycopg does not read, or to an isolation level in which nothing
# can be received.
_SETTINGS = """
    set datestyle = iso; set intervalstyle = postgres; set extra_float_digits = 1;
    set default_transaction_isolation = 'read committed'
"""


async def is_pooled(connection: AnyConnection) -> bool:
    """Tell whether a pooler stands between: the process that answers is not the one that accepted the connection."""
    rows = await fetch(connection, "select pg_backend_pid()", prepare=False)
    return bool(rows[0][0] != connection.info.backend_pid)


async def open_connection(target: Target) -> AnyConnection:
    """Connect in autocommit; what is a transaction says so. Raises ConnectionLost.

    Through a pooler no statement is prepared and nothing is set: the next
    statement may go to another server process, and this one serves other clients.
    """
    with mapped():
        with host_names():
            connection = await psycopg.AsyncConnection.connect(
                autocommit=True, prepare_threshold=target.prepare_threshold, **target.parameters
            )
        set_json_loads(loads, connection)
        try:
            if await is_pooled(connection):
                connection.prepare_threshold = None
                await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            else:
                await fetch(connection, _SETTINGS, prepare=False)
        except BaseException:
            await runtime.close_connection(connection)
            raise
        return connection


class AsyncSession:
    """One connection, used by one caller at a time, opened anew when it was lost."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = runtime.Lock()
        self._connection: AnyConnection | None = None
        self._closed = False
        self.greeting: tuple[str, list[Any]] | None = None
        """A statement that is executed on every new connection."""

    async def open(self) -> None:
        """Connect now, and fail if that fails. Raises ConnectionLost."""
        async with self.used():
            pass

    async def close(self) -> None:
        """Close it for good."""
        self._closed = True
        async with self._lock:
            await self._drop()

    @contextlib.asynccontextmanager
    async def used(self) -> AsyncIterator[AnyConnection]:
        """Give the connection to the block alone; errors come out as those of pgps, and a broken one is dropped."""
        async with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed", hint="Use it inside its `with` block.")
            if self._connection is not None and not is_alive(self._connection):
                await self._drop()
            if self._connection is None:
                self._connection = await self._greeted()
            try:
                with mapped():
                    yield self._connection
            except ConnectionLost:
                await self._drop()
                raise

    async def _greeted(self) -> AnyConnection:
        connection = await open_connection(self._target)
        try:
            if self.greeting is not None:
                with mapped():
                    await fetch(connection, *self.greeting)
        except SessionTaken as taken:
            # The session's number is an old one until the connection that listens has been made again.
            await runtime.close_connection(connection)
            raise ConnectionLost(taken.message, hint=taken.hint, sqlstate=taken.sqlstate) from taken
        except BaseException:
            await runtime.close_connection(connection)
            raise
        return connection

    async def open_another(self) -> AnyConnection:
        """Open a connection like this one, when the server is there."""
        return await self.patiently(self._greeted)

    async def run(self, work: Callable[[AnyConnection], Awaitable[T]], *, again: bool = True) -> T:
        """Do work on the connection; after a lost connection once more, for as long as the client waits for the server.

        Without `again` only connecting is repeated, not what may have had an effect.
        """
        connected = False

        async def once() -> T:
            nonlocal connected
            connected = False
            async with self.used() as connection:
                connected = True
                return await work(connection)

        return await self.patiently(once, lambda: again or not connected)

    async def patiently(self, work: Callable[[], Awaitable[T]], may_repeat: Callable[[], bool] = lambda: True) -> T:
        """Do what needs the server, until it is there or has been away for too long."""
        try:
            return await work()
        except ConnectionLost as lost:
            if self._closed or not may_repeat():
                raise
            _log.info("connection lost: %s", lost.message)
        timeout = self._target.reconnect_timeout
        attempts = AsyncRetrying(
            retry=retry_if_exception(
                lambda error: isinstance(error, ConnectionLost) and may_repeat() and not self._closed
            ),
            wait=wait_random_exponential(multiplier=0.05, max=5),
            stop=stop_never if timeout is None else stop_after_delay(timeout),
            reraise=True,
        )
        async for attempt in attempts:
            with attempt:
                return await work()
        raise AssertionError("unreachable")

    async def rows(self, query: str, params: Any = None, *, again: bool = True) -> list[TupleRow]:
        """Run one statement; return its rows."""

        async def work(connection: AnyConnection) -> list[TupleRow]:
            return await fetch(connection, query, params)

        return await self.run(work, again=again)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await runtime.close_connection(connection)
