"""The connections of one visitor: they log in as the visitor's role, so that the database decides what is shown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg.sql import SQL, Composed
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.string import TextLoader

from pgps.errors import PgpsError, host_names

__all__ = ["STATEMENT_TIMEOUT", "Access", "Busy", "Places", "Reader", "Refused", "Row"]

Row: TypeAlias = dict[str, Any]
Query: TypeAlias = SQL | Composed | str
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# A visitor with several tabs has several live pages; what waits longer for a connection than a statement may take is
# told so.
_MOST_CONNECTIONS = 3
# Of all visits together: whoever works with the broker needs the server's connections more.
_MOST_IN_ALL = 30
STATEMENT_TIMEOUT = 10.0
# The views are wide and their rows few, and compiling them takes longer than running them.
_BEGIN = f"""
    set jit = off;
    set datestyle = iso;
    set intervalstyle = postgres;
    set statement_timeout = '{STATEMENT_TIMEOUT:g}s';
    set idle_in_transaction_session_timeout = '60s';
    set default_transaction_isolation = 'read committed';
    set client_min_messages = warning
"""


class Refused(PgpsError):
    """The console itself refuses somebody, or something."""


class Busy(PgpsError):
    """There is no connection for this question now."""


class _MomentLoader(TimestamptzLoader):
    """Times that Python cannot hold, such as infinity, stay text."""

    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


class Reader:
    """What is read within one transaction."""

    def __init__(self, connection: psycopg.AsyncConnection[Row]) -> None:
        self._connection = connection

    async def rows(self, query: Query, parameters: Parameters | None = None) -> list[Row]:
        """Return all rows of a query."""
        statement = query.encode() if isinstance(query, str) else query
        return await (await self._connection.execute(statement, parameters)).fetchall()

    async def first(self, query: Query, parameters: Parameters | None = None) -> Row | None:
        """Return the first row of a query, None when there is none."""
        found = await self.rows(query, parameters)
        return found[0] if found else None

    def text(self, statement: Composed) -> str:
        """Return a statement as it will be sent."""
        return statement.as_string(self._connection)


class Places:
    """The connections that all visits of one console may have open together."""

    def __init__(self, most: int = _MOST_IN_ALL) -> None:
        self.open = 0
        self._most = most
        self._busy = asyncio.Semaphore(most)
        self._visits: weakref.WeakSet[Access] = weakref.WeakSet()

    def known(self, access: Access) -> None:
        """Note a visit, whose connections may be closed when nobody uses them just then."""
        self._visits.add(access)

    @contextlib.asynccontextmanager
    async def taken(self, own: asyncio.Semaphore) -> AsyncIterator[None]:
        """Have a connection's place, within those of the visit; raises Busy when there is none for too long."""
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(STATEMENT_TIMEOUT):
                    for places in (own, self._busy):
                        await places.acquire()
                        held.callback(places.release)
            except TimeoutError:
                raise Busy("all connections are busy", hint="Try again, or close tabs of this console.") from None
            yield

    async def make_room(self) -> None:
        """Have one connection less than there may be, which somebody has open and does not use."""
        while self.open >= self._most:
            # Those in use are fewer, since whoever asks has a place.
            idle = min((one for one in self._visits if one.idle), key=lambda one: one.used, default=None)
            if idle is None:
                return
            await idle.close_one()


class Access:
    """The connections of one role; they are made when needed, and closed when nobody has looked for a while."""

    def __init__(
        self, dsn: str, user: str, password: str, *, without_password: bool, places: Places | None = None
    ) -> None:
        # libpq reads a string as far as a NUL: without a password in it, it takes one of the console's own host.
        if _CONTROL.search(user) or _CONTROL.search(password):
            raise Refused("a role or password with a control character lets nobody in", hint="Type it without.")
        # A password file is the console's and not the visitor's.
        self.conninfo = make_conninfo(
            dsn,
            user=user,
            password=password,
            passfile=os.devnull,
            application_name="pgps/console",
            client_encoding="utf8",
            connect_timeout=10,
        )
        self._without_password = without_password
        self._free: list[psycopg.AsyncConnection[Row]] = []
        self._own = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._places = places or Places()
        self._places.known(self)
        self._closed = False
        self.used = time.monotonic()
        self.examination: asyncio.Task[Any] | None = None
        """What examines the broker for this visit just now."""

    @property
    def idle(self) -> int:
        """How many connections are open and not used now."""
        return len(self._free)

    async def connect(self) -> psycopg.AsyncConnection[Row]:
        """Return a new connection; raises Refused when the server has not asked for the password."""
        with host_names():
            connection = await psycopg.AsyncConnection.connect(self.conninfo, autocommit=True, row_factory=dict_row)
        try:
            # As with dblink: a server that trusts this process must not thereby trust whoever can reach its port.
            if not self._without_password and not connection.pgconn.used_password:
                raise Refused(
                    "the server lets this role in without a password, and the console asks for one",
                    hint="Have pg_hba.conf ask for it (scram-sha-256), or start the console with --without-password.",
                )
            for name, loader in _LOADERS.items():
                connection.adapters.register_loader(name, loader)
            await connection.execute(_BEGIN.encode())
        except BaseException:
            await connection.close()
            raise
        return connection

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[Reader]:
        """Read in one snapshot, in a transaction that can change nothing."""
        async with self._connection() as connection, connection.transaction():
            await connection.execute("set transaction isolation level repeatable read, read only")
            yield Reader(connection)

    @contextlib.asynccontextmanager
    async def ask(self) -> AsyncIterator[Reader]:
        """Call functions that report something; the transaction is rolled back."""
        async with self._connection() as connection, connection.transaction(force_rollback=True):
            yield Reader(connection)

    async def change(self, statement: Composed) -> Any:
        """Run one statement, and return the first column of its first row."""
        async with self._connection() as connection:
            cursor = await connection.execute(statement)
            row = await cursor.fetchone() if cursor.description else None
            return next(iter(row.values()), None) if row else None

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Have a place for a connection that somebody else makes."""
        async with self._places.taken(self._own):
            await self._places.make_room()
            self._places.open += 1
            try:
                yield
            finally:
                self._places.open -= 1

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection[Row]]:
        async with self._places.taken(self._own):
            self.used = time.monotonic()
            connection = self._free.pop() if self._free else await self._counted()
            try:
                yield connection
            finally:
                self.used = time.monotonic()
                if connection.closed or self._closed:
                    self._places.open -= 1
                    await connection.close()
                else:
                    self._free.append(connection)

    async def _counted(self) -> psycopg.AsyncConnection[Row]:
        await self._places.make_room()
        self._places.open += 1
        try:
            return await self.connect()
        except BaseException:
            self._places.open -= 1
            raise

    def forget_examination(self) -> None:
        """Let the next one who asks have the broker examined anew."""
        examination, self.examination = self.examination, None
        if examination is not None and not examination.cancelled():
            examination.exception()  # whoever waits for it is told

    async def close_one(self) -> None:
        """Close a connection that nobody uses now, if there is one."""
        if self._free:
            self._places.open -= 1
            await self._free.pop().close()

    async def rest(self) -> None:
        """Close the connections that nobody uses now."""
        while self._free:
            await self.close_one()

    async def close(self) -> None:
        """Close all connections; one that is in use is closed when it is given back."""
        self._closed = True
        await self.rest()


_LOADERS: dict[str, type[Loader]] = {
    "timestamptz": _MomentLoader,
    **dict.fromkeys(("date", "interval", "timestamp", "numeric", "uuid"), TextLoader),
}
