# Made by tools/unasync_client.py from pgps/client/_async/client.py: change that, then `make generate`.
"""A broker as an application sees it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, Unpack, overload

from psycopg.rows import TupleRow

from pgps import config
from pgps.client import _calls, _names, _wire
from pgps.client._calls import Options
from pgps.client._conninfo import target
from pgps.client._sync import runtime
from pgps.client._sync.feed import Feed
from pgps.client._sync.hub import Hub
from pgps.client._sync.identity import Identity
from pgps.client._sync.publisher import Publisher
from pgps.client._sync.session import AnyConnection, Session, fetch
from pgps.client._sync.subscription import Subscription
from pgps.client.events import name_of
from pgps.errors import ClientClosed, WrongState

__all__ = ["Client"]

T = TypeVar("T")
_log = logging.getLogger("pgps.client")


class Client:
    """A connection to a broker that publishes, subscribes and comes back after it was lost.

    `conninfo` is a libpq connection string or URI, "" leaves everything to
    PGPS_DSN, PG* variables and service files; keyword arguments are single
    parameters of libpq. `name` appears in pg_stat_activity. `producer` numbers
    what is published, so that it is published once however often the
    connection breaks; without it a publication whose answer was lost raises
    ConnectionLost. `reconnect_timeout` is how many seconds a call waits for a
    server that is away, None for ever. `poll` is how often a subscription
    looks, should a notification be lost. `direct` is a connection string past
    a pooler (PgBouncer) that `conninfo` leads to, for the one connection that
    waits for notifications, which a pooler does not carry; without it
    subscriptions look every half second there. `grace` is how long the end of the
    client waits for handlers. Connecting raises ConnectionLost.
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
        self._target = target(
            config.load(dsn=conninfo).dsn,
            parameters,
            name=name,
            reconnect_timeout=reconnect_timeout,
            prepare_threshold=prepare_threshold,
        )
        self.name = name
        self.poll = poll
        self.grace = grace
        self.reconnect_timeout = reconnect_timeout
        self._session = Session(self._target)
        self._consumer = f"{(name or 'pgps-client')[:30]}/{uuid.uuid4()}"
        self._consumers = itertools.count(1)
        self._feed = Feed(self._session, self._consumer)
        self._hub = Hub(waiting or self._target)
        self._idle: list[AnyConnection] = []
        self._subscriptions: list[Subscription[Any]] = []
        self._shapes: dict[str, _wire.Shape] = {}
        self._publisher = Publisher(
            self._session, producer, self._shape, lambda event_type: self._shapes.pop(event_type, None)
        )
        self._identity: Identity | None = None
        self.is_closed = False

    def __enter__(self) -> Client:
        self.connect()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(done=kind is None)

    def connect(self) -> None:
        """Connect now, without trying again: a wrong password or host shows at once."""
        self._session.open()

    def close(self, *, done: bool = True) -> None:
        """End what the client runs, and disconnect. Events that handlers have in hand are finished."""
        if self._identity is not None:
            self._identity.close()
        for subscription in list(self._subscriptions):
            subscription.close(done=done)
        self.is_closed = True
        self._hub.close()
        self._session.close()
        while self._idle:
            runtime.close_connection(self._idle.pop())

    # -----------------------------------------------------------------------------------------------------------------
    # Publishing
    # -----------------------------------------------------------------------------------------------------------------

    def advertise(self, event_type: str | type, *, connection: AnyConnection | None = None) -> None:
        """Announce that this role publishes an event type."""
        self._do(_calls.ADVERTISE, [name_of(event_type)], connection)

    def unadvertise(self, event_type: str | type, *, connection: AnyConnection | None = None) -> None:
        """Take that back."""
        self._do(_calls.UNADVERTISE, [name_of(event_type)], connection)

    def publish(
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
        `connection` it is part of that connection's transaction; without, of
        one of its own. None for visibility, reliability and handler is what
        the type says. Raises UnknownName, NotPermitted, WrongState (not
        advertised), ConstraintViolated, BadArgument, ConnectionLost.
        """
        manner = {"visibility": visibility, "reliability": reliability, "handler": handler}
        return self._publisher.publish(name_of(event_type), payload, manner, connection)

    # -----------------------------------------------------------------------------------------------------------------
    # Subscribing
    # -----------------------------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self, name: str, event_type: type[T], *, payload: None = None, **options: Unpack[Options]
    ) -> Subscription[T]: ...

    @overload
    def subscribe(
        self, name: str, event_type: str | None = None, *, payload: type[T], **options: Unpack[Options]
    ) -> Subscription[T]: ...

    @overload
    def subscribe(
        self, name: str, event_type: str | None = None, *, payload: None = None, **options: Unpack[Options]
    ) -> Subscription[dict[str, Any]]: ...

    def subscribe(
        self,
        name: str,
        event_type: str | type | None = None,
        *,
        payload: type | None = None,
        **options: Unpack[Options],
    ) -> Subscription[Any]:
        """Return a subscription, to be entered with `with`, iterated over, or run with a callback.

        It is created when it is first used, unless there is one of that name;
        without an event type it must be there. A dataclass as `payload`, or
        for the event type, is what payloads become, else they are dicts. What
        else it takes is in `Options`.
        """
        cls = event_type if isinstance(event_type, type) else payload
        named = None if event_type is None else name_of(event_type)
        return Subscription(self, _calls.define(name, named, cls, options))

    def unsubscribe(self, name: str, *, connection: AnyConnection | None = None) -> None:
        """Drop a subscription, with what waits for it."""
        self._do(_calls.UNSUBSCRIBE, [name], connection)

    def identify(self, name: str, *, take_over: bool = False, max_local: int = 10_000) -> Identity:
        """Be a client that is known by name; enter the result with `with`, or `connect` it.

        Its state, registrations and queues outlive the program. What this
        object publishes from then on is raised by that client. `take_over`:
        also if another program has the name now. `max_local`: how many direct
        events are held here; what comes beyond is dropped, and counted.
        """
        if self._identity is not None:
            raise WrongState(f'this client is "{self._identity.name}" already', hint="Use one object for each name.")
        self._identity = Identity(self, name, take_over=take_over, max_local=max_local)
        return self._identity

    # -----------------------------------------------------------------------------------------------------------------
    # Everything else in the database
    # -----------------------------------------------------------------------------------------------------------------

    def execute(self, query: str, params: Any = None) -> list[TupleRow]:
        """Run SQL in a transaction of its own; return its rows. Lost answers are not asked for again."""

        def work(connection: AnyConnection) -> list[TupleRow]:
            # What is prepared is one statement; without parameters it may be a script.
            return fetch(connection, query, params, prepare=None if params else False)

        return self._session.run(work, again=False)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[AnyConnection]:
        """Give the block a psycopg connection in a transaction: committed at its end, rolled back by an error.

        What the client does with `connection=` in there is part of it. Errors of
        the block's own statements are psycopg's.
        """
        connection = self._take_connection()
        try:
            with connection.transaction():
                yield connection
        finally:
            if connection.closed or connection.broken or self.is_closed:
                runtime.close_connection(connection)
            else:
                self._idle.append(connection)

    def shape(self, event_type: str | type) -> _wire.Shape:
        """Return the attributes of an event type as they are now."""
        self._shapes.pop(name_of(event_type), None)
        return self._session.run(lambda link: self._shape(name_of(event_type), link))

    def _take_connection(self) -> AnyConnection:
        if self.is_closed:
            raise ClientClosed("the client is closed", hint="Use it inside its `with` block.")
        while self._idle:
            connection = self._idle.pop()
            if _wire.is_alive(connection):
                return connection
            runtime.close_connection(connection)

        return self._session.open_another()

    def _use(self, name: str, session: int) -> None:
        """Have what is published from now on raised by a named client."""
        self._session.greeting = (_names.USE, [name, session])
        self._session.rows(*self._session.greeting)
        while self._idle:
            runtime.close_connection(self._idle.pop())

    def _another_consumer(self) -> str:
        return f"{self._consumer}/{next(self._consumers)}"

    def _left(self) -> None:
        self._identity = None
        self._session.greeting = None

    def _shape(self, event_type: str, connection: AnyConnection) -> _wire.Shape:
        found = self._shapes.get(event_type)
        if found is None:
            rows = fetch(connection, _wire.SHAPE, [event_type])
            if not rows:
                rows = fetch(connection, _wire.SHAPE, [_wire.folded(event_type)])
            found = self._shapes[event_type] = _wire.shape_of(event_type, rows)
        return found

    def _do(self, query: str, params: list[Any], connection: AnyConnection | None) -> None:
        if connection is None:
            self._session.rows(query, params)
            return
        with _wire.mapped():
            fetch(connection, query, params)
