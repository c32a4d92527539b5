"""One connection that listens for all subscriptions of a client."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from psycopg import sql
from psycopg.pq import PGnotify
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from pgps.client._async import runtime
from pgps.client._async.session import AnyConnection, is_pooled, open_connection
from pgps.client._conninfo import Target
from pgps.client._wire import mapped
from pgps.errors import ConnectionLost, PgpsError, WrongState

__all__ = ["POLL_DEAF", "AsyncHub", "Heard"]

Heard: TypeAlias = Callable[[str | None], None]
"""Told the payload of a notification; None when some may have been missed."""

Greet: TypeAlias = Callable[[AnyConnection], Awaitable[None]]
"""Called with each new connection before it is used for anything else."""

_log = logging.getLogger("pgps.client")
# Keepalives find a connection that died without a word; at this interval the loop looks whether it has to end.
_LOOK = 60.0
POLL_DEAF = 0.5
"""How many seconds pass between the looks of a subscription where no notifications come."""


class AsyncHub:
    """Listens on channels and calls those who asked for them; connects again when the connection is lost."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = runtime.Lock()
        self._greets: list[Greet] = []
        self._listeners: dict[str, list[Heard]] = {}
        self._connection: AnyConnection | None = None
        self._waiter: runtime.Waiter | None = None
        self._task: runtime.Task | None = None
        self._closed = False
        self.is_deaf = False
        """A pooler stands between, through which no notification would come."""

    async def listen(self, channel: str, heard: Heard) -> None:
        """Have `heard` called for every notification on the channel from now on."""
        async with self._lock:
            listeners = self._listeners.setdefault(channel, [])
            listeners.append(heard)
            try:
                if self.is_deaf:
                    return
                if self._task is None:
                    await self._begin()
                elif len(listeners) == 1 and self._connection is not None:
                    await self._say("listen {}", channel)
            except BaseException:
                # Whoever asks again would else be told everything twice.
                listeners.remove(heard)
                if not listeners:
                    del self._listeners[channel]
                raise

    async def forget(self, channel: str, heard: Heard) -> None:
        """Stop calling `heard` for notifications on the channel."""
        async with self._lock:
            listeners = self._listeners.get(channel, [])
            if heard in listeners:
                listeners.remove(heard)
            if not listeners and self._listeners.pop(channel, None) is not None and self._connection is not None:
                with contextlib.suppress(ConnectionLost):  # what replaces it does not listen
                    await self._say("unlisten {}", channel)

    async def attach(self, greet: Greet) -> None:
        """Call `greet` with the connection now, and with each that replaces it, before anybody hears of the gap."""
        async with self._lock:
            if self._task is None:
                await self._begin()
            elif self._connection is None:
                await self._connect()  # who follows it may sleep between two attempts
            if self._connection is None:
                raise WrongState("a pooler stands between", hint="Connect to the server itself.", sqlstate="55000")
            try:
                await greet(self._connection)
            except BaseException as error:
                # Unless it was refused, the server may have done what it was asked for.
                if isinstance(error, ConnectionLost) or not isinstance(error, PgpsError):
                    await self._replace_now()
                raise
            self._greets.append(greet)

    async def detach(self, greet: Greet) -> None:
        """Greet no further connection, and replace the one that was greeted, so that the server sees it go."""
        async with self._lock:
            if greet in self._greets:
                self._greets.remove(greet)
                await self._replace_now()

    async def _replace_now(self) -> None:
        """Close the connection, and make another one while somebody listens."""
        await self._drop()
        if not self._closed and self._listeners:
            with contextlib.suppress(ConnectionLost):  # it is made again by who follows it
                await self._connect()

    async def settled(self) -> None:
        """Wait until a connection that is being made has been greeted."""
        async with self._lock:
            pass

    @property
    def is_lost(self) -> bool:
        """Whether nothing is heard now, since the connection is being made again."""
        return self._connection is None and not self._closed

    async def insist(self) -> None:
        """Connect now when the connection was lost. Raises ConnectionLost."""
        async with self._lock:
            if self.is_lost:
                await self._connect()

    async def close(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._waiter is not None:
            self._waiter.wake()
        if self._task is not None:
            await self._task.stop(grace=5.0)
        await self._drop()

    async def _begin(self) -> None:
        await self._connect()
        if not self.is_deaf:
            self._task = runtime.Task(self._run, "pgps-listen")

    async def _connect(self) -> None:
        connection = await open_connection(self._target)
        try:
            with mapped():
                self.is_deaf = await is_pooled(connection)
        except BaseException:
            await runtime.close_connection(connection)
            raise
        if self.is_deaf:
            await runtime.close_connection(connection)
            _log.warning(
                "a pooler stands between this client and the server: notifications do not come, "
                "subscriptions look every %g seconds; direct= takes a connection string without the pooler",
                POLL_DEAF,
            )
            return
        self._connection = connection
        self._connection.pgconn.notify_handler = self._notified
        self._waiter = runtime.Waiter(self._connection)
        try:
            for channel in self._listeners:
                await self._say("listen {}", channel)
            for greet in self._greets:
                await greet(self._connection)
        except BaseException:
            await self._drop()
            raise

    async def _say(self, statement: str, channel: str) -> None:
        if self._connection is not None:
            with mapped():
                await self._connection.execute(sql.SQL(statement).format(sql.Identifier(channel)))

    async def _drop(self) -> None:
        if self._waiter is not None:
            self._waiter.close()
        connection, self._waiter, self._connection = self._connection, None, None
        if connection is not None:
            await runtime.close_connection(connection)

    async def _run(self) -> None:
        while not self._closed and not self.is_deaf:
            async with self._lock:
                connection, waiter = self._connection, self._waiter
            try:
                if connection is not None and waiter is not None:
                    await self._follow(connection, waiter)
            except ConnectionLost as lost:
                _log.info("no longer listening: %s", lost.message)
            if not self._closed:
                await self._replace(connection)

    async def _follow(self, connection: AnyConnection, waiter: runtime.Waiter) -> None:
        """Tell what comes on a connection, until it is lost."""
        while not self._closed:
            await waiter.wait(_LOOK)
            async with connection.lock:
                with mapped():
                    connection.pgconn.consume_input()
                    while notification := connection.pgconn.notifies():
                        self._notified(notification)
                if not self._closed:
                    waiter.again()

    async def _replace(self, lost: AnyConnection | None) -> None:
        """Connect again, unless somebody else has done so, and tell that something may have been missed."""
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(ConnectionLost), wait=wait_random_exponential(multiplier=0.05, max=5)
        )
        async for attempt in attempts:
            with attempt:
                async with self._lock:
                    if self._connection is lost:
                        await self._drop()
                    if self._connection is None and not self._closed:
                        await self._connect()
        for listeners in list(self._listeners.values()):
            for heard in list(listeners):
                heard(None)

    def _notified(self, notification: PGnotify) -> None:
        connection = self._connection
        if connection is None:
            return
        # Anybody may send anything, and in SQL_ASCII any bytes: what is no text must not end the listening.
        encoding = connection.info.encoding
        channel = notification.relname.decode(encoding, errors="replace")
        payload: str | None = None
        with contextlib.suppress(UnicodeDecodeError):
            payload = notification.extra.decode(encoding)
        for heard in list(self._listeners.get(channel, ())):
            heard(payload)
