"""What all parts of a client share, so that none of them needs the client itself or another part."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator
from typing import Any

import psycopg

from pgps.client import _arguments, _names, _wire
from pgps.client._async import runtime
from pgps.client._async.feed import AsyncFeed
from pgps.client._async.hub import AsyncHub
from pgps.client._async.session import AnyConnection, AsyncSession, fetch, require_whole
from pgps.client._conninfo import Target
from pgps.errors import ClientClosed, from_database

__all__ = ["AsyncCore"]


class AsyncCore:
    """The connections of a client, who waits for notifications, and what is known of event types.

    `session` does one thing after the other. `hub` listens, on the connection
    that `waiting` describes. `feed` receives for all subscriptions that share
    nothing with other programs. `transaction` uses connections of its own.
    """

    def __init__(self, target: Target, waiting: Target, *, name: str | None, poll: float, grace: float) -> None:
        self.name = name
        self.poll = _arguments.seconds(poll, "poll")
        self.grace = _arguments.seconds(grace, "grace")
        self.reconnect_timeout = target.reconnect_timeout
        self.session = AsyncSession(target)
        self.hub = AsyncHub(waiting)
        self.is_closed = False
        self._target = target
        # What follows a # would be a token, which tells nobody apart.
        self._consumer = f"{(name or 'pgps-client').replace('#', '_')[:30]}/{uuid.uuid4()}"
        self._consumers = itertools.count(1)
        self.feed = AsyncFeed(self.session, self._consumer)
        self._idle: list[AnyConnection] = []
        self._shapes: dict[str, _wire.Shape] = {}

    async def close(self) -> None:
        """Disconnect for good."""
        self.is_closed = True
        await self.hub.close()
        await self.session.close()
        await self._close_idle()

    def require_open(self) -> None:
        """Raise ClientClosed when it is closed."""
        if self.is_closed:
            raise ClientClosed("the client is closed", hint="Use it inside its `with` block.")

    def another_feed(self) -> AsyncFeed:
        """Return a feed with a connection of its own, which the broker knows as another consumer."""
        return AsyncFeed(AsyncSession(self._target), f"{self._consumer}/{next(self._consumers)}")

    # -----------------------------------------------------------------------------------------------------------------
    # Transactions
    # -----------------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AnyConnection]:
        """Give the block a connection in a transaction; see AsyncClient.transaction."""
        connection = await self._take_connection()
        is_over = False
        try:
            async with connection.transaction():
                yield connection
                require_whole(connection)
                is_over = True
        except psycopg.Error as error:
            if not is_over:
                raise
            raise from_database(error) from error
        finally:
            if connection.closed or connection.broken or self.is_closed:
                await runtime.close_connection(connection)
            else:
                self._idle.append(connection)

    async def _take_connection(self) -> AnyConnection:
        self.require_open()
        while self._idle:
            connection = self._idle.pop()
            if _wire.is_alive(connection):
                return connection
            await runtime.close_connection(connection)

        return await self.session.open_another()

    async def _close_idle(self) -> None:
        while self._idle:
            await runtime.close_connection(self._idle.pop())

    # -----------------------------------------------------------------------------------------------------------------
    # Being known by name
    # -----------------------------------------------------------------------------------------------------------------

    async def use_name(self, name: str, session: int) -> None:
        """Have what is published from now on raised by a named client."""
        self.session.greeting = (_names.USE, [name, session])
        await self.session.rows(*self.session.greeting)
        await self._close_idle()

    def use_no_name(self) -> None:
        """Have what is published on new connections raised by no named client."""
        self.session.greeting = None

    # -----------------------------------------------------------------------------------------------------------------
    # Event types
    # -----------------------------------------------------------------------------------------------------------------

    async def shape_now(self, event_type: str) -> _wire.Shape:
        """Ask for the attributes of an event type, whatever is known of them."""
        self.forget_shape(event_type)
        return await self.session.run(lambda link: self.shape(event_type, link))

    async def shape(self, event_type: str, connection: AnyConnection) -> _wire.Shape:
        """Return the attributes of an event type as they are known, or ask for them on a connection."""
        found = self._shapes.get(event_type)
        if found is None:
            rows = await fetch(connection, _wire.SHAPE, [event_type])
            if not rows:
                rows = await fetch(connection, _wire.SHAPE, [_wire.folded(event_type)])
            found = self._shapes[event_type] = _wire.shape_of(event_type, rows)
        return found

    def forget_shape(self, event_type: str) -> None:
        """Forget what is known of an event type, so that it is asked for when it is needed next."""
        self._shapes.pop(event_type, None)

    async def do(self, query: str, params: list[Any], connection: AnyConnection | None) -> None:
        """Run a call without a result, on the client's connection or as part of a transaction of the caller."""
        if connection is None:
            await self.session.rows(query, params)
            return
        with _wire.mapped():
            await fetch(connection, query, params)
