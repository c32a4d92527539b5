"""A broker as an application sees it."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar, Unpack, overload

from psycopg.rows import TupleRow

from pgps import config
from pgps.client import _arguments, _calls, _spools, _wire
from pgps.client._async import runtime
from pgps.client._async.core import AsyncCore
from pgps.client._async.group import AsyncGroup
from pgps.client._async.identity import AsyncIdentity
from pgps.client._async.publisher import AsyncPublisher
from pgps.client._async.session import AnyConnection, fetch
from pgps.client._async.subscription import AsyncSubscription
from pgps.client._async.units import AsyncParty
from pgps.client._calls import Options
from pgps.client._conninfo import target
from pgps.client._spools import SpoolOptions
from pgps.client.events import name_of
from pgps.errors import WrongState

__all__ = ["AsyncClient"]

T = TypeVar("T")
_log = logging.getLogger("pgps.client")


class AsyncClient:
    """A connection to a broker that publishes, subscribes and comes back after it was lost.

    `conninfo` is a libpq connection string or URI; "" leaves everything to
    PGPS_DSN, PG* variables and service files. Keyword arguments are single
    parameters of libpq. `name` appears in pg_stat_activity. With `producer` the
    client numbers what it publishes, so that each event is published once
    however often the connection breaks; without it, a publication whose answer
    was lost raises ConnectionLost. A call waits `reconnect_timeout` seconds for
    a server that is away, for ever if None. A subscription looks for events
    every `poll` seconds, in case a notification was lost. If `conninfo` leads
    to a pooler (PgBouncer), which carries no notifications, `direct` is a
    connection string that leads past it, for the one connection that waits for
    them; without it, subscriptions look every half second. When the client is
    closed, it waits `grace` seconds for handlers. Connecting raises
    ConnectionLost.
    """

    def __init__(
        self,
        conninfo: str | None = None,
        *,
        name: str | None = None,
        producer: str | None = None,
        reconnect_timeout: float | None = 60.0,
        poll: float = 5.0,
        grace: float = 10.0,
        prepare_threshold: int | None = 0,
        direct: str | None = None,
        **parameters: Any,
    ) -> None:
        waiting = (
            None
            if direct is None
            else target(direct, {}, name=name, reconnect_timeout=reconnect_timeout, prepare_threshold=prepare_threshold)
        )
        own = target(
            config.load(dsn=conninfo).dsn,
            parameters,
            name=name,
            reconnect_timeout=reconnect_timeout,
            prepare_threshold=prepare_threshold,
        )
        self._core = AsyncCore(own, waiting or own, name=name, poll=poll, grace=grace)
        self._subscriptions: list[AsyncSubscription[Any]] = []
        self._publisher = AsyncPublisher(self._core, producer)
        self._identity: AsyncIdentity | None = None
        self._parties: list[AsyncParty] = []

    @property
    def name(self) -> str | None:
        """The name that pg_stat_activity shows."""
        return self._core.name

    @property
    def poll(self) -> float:
        """How often a subscription looks, in seconds."""
        return self._core.poll

    @property
    def grace(self) -> float:
        """How long the end of the client waits for handlers, in seconds."""
        return self._core.grace

    @property
    def reconnect_timeout(self) -> float | None:
        """How long a call waits for a server that is away, in seconds."""
        return self._core.reconnect_timeout

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._core.is_closed

    async def __aenter__(self) -> AsyncClient:
        await self.connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(done=kind is None)

    async def connect(self) -> None:
        """Connect now, without trying again: a wrong password or host shows at once."""
        await self._core.session.open()

    async def close(self, *, done: bool = True) -> None:
        """End what the client runs, and disconnect. Events that handlers have in hand are finished.

        All of it is ended, whatever goes wrong; then the first error is raised.
        """
        ends: list[Callable[[], Awaitable[None]]] = [] if self._identity is None else [self._identity.close]
        ends += [party.close for party in self._parties]
        ends += [functools.partial(subscription.close, done=done) for subscription in self._subscriptions]
        failed: Exception | None = None
        try:
            for end in ends:
                try:
                    await end()
                except Exception as error:
                    failed = failed or error
        finally:
            await self._core.close()
        if failed is not None:
            raise failed

    # -----------------------------------------------------------------------------------------------------------------
    # Publishing
    # -----------------------------------------------------------------------------------------------------------------

    async def advertise(self, event_type: str | type, *, connection: AnyConnection | None = None) -> None:
        """Announce that this role publishes an event type."""
        await self._core.do(_calls.ADVERTISE, [name_of(event_type)], connection)

    async def unadvertise(self, event_type: str | type, *, connection: AnyConnection | None = None) -> None:
        """Withdraw the announcement that this role publishes an event type."""
        await self._core.do(_calls.UNADVERTISE, [name_of(event_type)], connection)

    async def publish(
        self,
        event_type: str | type,
        payload: Mapping[str, Any] | object | Iterable[Mapping[str, Any] | object],
        *,
        visibility: str | None = None,
        reliability: str | None = None,
        handler: str | None = None,
        connection: AnyConnection | None = None,
    ) -> int | None:
        """Publish one event, or many as one occurrence; return the id of the last, None if there was none.

        An event is a mapping of attributes, or a dataclass object. With
        `connection` the publication is part of that connection's transaction;
        without, it has one of its own. If visibility, reliability or handler is
        None, what the event type says holds. Raises UnknownName, NotPermitted, WrongState (not
        advertised), ConstraintViolated, BadArgument, ConnectionLost.
        """
        manner = {"visibility": visibility, "reliability": reliability, "handler": handler}
        return await self._publisher.publish(name_of(event_type), payload, manner, connection)

    # -----------------------------------------------------------------------------------------------------------------
    # Subscribing
    # -----------------------------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self, name: str, event_type: type[T], *, payload: None = None, **options: Unpack[Options]
    ) -> AsyncSubscription[T]: ...

    @overload
    def subscribe(
        self, name: str, event_type: str | None = None, *, payload: type[T], **options: Unpack[Options]
    ) -> AsyncSubscription[T]: ...

    @overload
    def subscribe(
        self, name: str, event_type: str | None = None, *, payload: None = None, **options: Unpack[Options]
    ) -> AsyncSubscription[dict[str, Any]]: ...

    def subscribe(
        self,
        name: str,
        event_type: str | type | None = None,
        *,
        payload: type | None = None,
        **options: Unpack[Options],
    ) -> AsyncSubscription[Any]:
        """Return a subscription, to be entered with `async with`, iterated over, or run with a callback.

        The subscription is created when it is first used, unless one of that
        name exists; without an event type it must exist. Payloads are dicts, or
        objects of the dataclass that is given as `payload` or for the event
        type. `Options` lists the further arguments.
        """
        cls = event_type if isinstance(event_type, type) else payload
        named = None if event_type is None else name_of(event_type)
        return AsyncSubscription(self._core, _calls.define(name, named, cls, options), self._subscriptions)

    async def unsubscribe(self, name: str, *, connection: AnyConnection | None = None) -> None:
        """Drop a subscription and the events that wait for it."""
        await self._core.do(_calls.UNSUBSCRIBE, [name], connection)

    def identify(self, name: str, *, take_over: bool = False, max_local: int = 10_000) -> AsyncIdentity:
        """Be a client that is known by name; enter the result with `async with`, or `connect` it.

        Its state, registrations and queues outlive the program. What this
        object publishes from then on is raised by that client. With `take_over`
        it takes the name even if another program has it now. At most `max_local`
        direct events are held here; further ones are dropped, and counted. Raises
        WrongState while this client is known by a name, or about to be, BadArgument.
        """
        _arguments.string(name, "the name of a client", "Give client.identify('name').")
        made = AsyncIdentity(
            self._core, name, take_over=take_over, max_local=max_local, claim=self._claim, release=self._release
        )
        self._claim(made)
        return made

    def logon(self, token: str | None = None) -> AsyncParty:
        """Be somebody who sends and receives units of work; enter the result with `async with`, or just use it.

        With a token its units of work are found again after any failure, by
        whoever logs on with the role and the token next; None: they are those of
        this session. Raises WrongState (55006) while a session that lives uses it.
        """
        party = AsyncParty(self._core, token)
        self._parties.append(party)
        return party

    # -----------------------------------------------------------------------------------------------------------------
    # Spools
    # -----------------------------------------------------------------------------------------------------------------

    async def spool(
        self,
        name: str,
        entry: int,
        message: Any,
        *,
        connection: AnyConnection | None = None,
        **options: Unpack[SpoolOptions],
    ) -> int:
        """Spool a message, any JSON, for a process group; return the id of the request.

        With `connection` it is part of that connection's transaction. Raises UnknownName, NotPermitted, BadArgument,
        and ConnectionLost: whether the message was spooled is then not known.
        """
        given = _spools.arguments(name, entry, message, options)
        if connection is None:
            return int((await self._core.session.rows(_spools.SPOOL, given, again=False))[0][0])
        with _wire.mapped():
            return int((await fetch(connection, _spools.SPOOL, given))[0][0])

    async def spool_many(
        self, name: str, messages: Iterable[Mapping[str, Any]], *, connection: AnyConnection | None = None
    ) -> list[int]:
        """Spool a set of messages, mappings with `entry`, `message` and the options of `spool`; return their ids."""
        given = [name, _spools.documents(messages)]
        if connection is None:
            return list((await self._core.session.rows(_spools.SPOOL_MANY, given, again=False))[0][0])
        with _wire.mapped():
            return list((await fetch(connection, _spools.SPOOL_MANY, given))[0][0])

    async def spool_wait(self, request: int, *, timeout: float | None = None) -> int | None:
        """Wait until every member present has acknowledged a message.

        Returns 1, 0 when it has not come to that within `timeout` seconds, None for a request that is unknown,
        cancelled, discarded or expired.
        """
        deadline = _arguments.deadline(timeout)
        pause = 0.02
        while True:
            found: int | None = (await self._core.session.rows(_spools.INQUIRE, [request]))[0][0]
            left = pause if deadline is None else deadline - time.monotonic()
            if found != 0 or left <= 0:
                return found
            await runtime.sleep(min(pause, left))
            pause = min(2 * pause, self._core.poll)

    def group(
        self,
        name: str,
        member: str | None = None,
        *,
        replay: bool = False,
        ready: bool = True,
        take_over: bool = False,
        prefetch: int = 100,
    ) -> AsyncGroup:
        """Return a member of a process group, to be entered with `async with` and iterated over.

        `member` is its name, by default the client's `name`. `replay`: first what lies between the checkpoint pointer
        and the replay pointer, then what it has not acknowledged; see pgps.join_group.
        """
        return AsyncGroup(
            self._core,
            name,
            member or self._core.name or name,
            replay=replay,
            ready=ready,
            take_over=take_over,
            prefetch=prefetch,
        )

    # -----------------------------------------------------------------------------------------------------------------
    # Everything else in the database
    # -----------------------------------------------------------------------------------------------------------------

    async def execute(self, query: str, params: Any = None) -> list[TupleRow]:
        """Run SQL in a transaction of its own; return its rows. If the answer is lost, the SQL is not run again."""
        _arguments.require_storable(_arguments.string(query, "a query", "Give SQL as text."))

        async def work(connection: AnyConnection) -> list[TupleRow]:
            # Without parameters the query may be a script of several statements, and those cannot be prepared.
            return await fetch(connection, query, params, prepare=None if params else False)

        return await self._core.session.run(work, again=False)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AnyConnection]:
        """Give the block a psycopg connection in a transaction: committed at its end, rolled back by an error.

        What the client does with `connection=` in there is part of it. Errors of
        the block's own statements are psycopg's, those of the commit pgps's. What a block has caught
        is told by its end: ConnectionLost when the connection was lost, BrokerError
        (25P02) when a statement failed outside of a savepoint, which takes all back.
        """
        async with self._core.transaction() as connection:
            yield connection

    async def shape(self, event_type: str | type) -> _wire.Shape:
        """Return the attributes of an event type as they are now."""
        return await self._core.shape_now(name_of(event_type))

    def _claim(self, identity: AsyncIdentity) -> None:
        """Let an identity be the one that this client has, which is one at a time."""
        if self._identity not in (None, identity):
            raise WrongState(f'this client is "{self._identity.name}" already', hint="Use one object for each name.")
        self._identity = identity

    def _release(self, identity: AsyncIdentity) -> None:
        if self._identity is identity:
            self._identity = None
