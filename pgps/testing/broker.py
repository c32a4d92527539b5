"""A broker as a test plays it: it makes event types and events, does what a worker does, and sees what comes out."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from pgps.client import Client, Event
from pgps.testing.clock import Clock
from pgps.testing.values import attributes_of, value_for

__all__ = ["Broker"]


class Broker:
    """The broker of a test; everything is done with the rights of a superuser.

    Nothing happens by itself, since no worker runs: `settle` and `drain` do what a
    worker does, so that a test sees the outcome without waiting for it.
    """

    def __init__(self, dsn: str) -> None:
        """Connect to the database of the broker."""
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        self._numbers: Counter[str] = Counter()
        self._clients = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clients.close()
        self.connection.close()

    @cached_property
    def client(self) -> Client:
        """A client of the broker."""
        return self._clients.enter_context(Client(self.dsn))

    @cached_property
    def clock(self) -> Clock:
        """The broker's clock, which a test may stop and move: leases, retries and lifetimes go by it."""
        return Clock(self.connection)

    def event_type(self, name: str, attributes: str = "n integer", **options: Any) -> str:
        """Create an event type, advertise it, and return its name; options are those of pgps.create_event_type."""
        named = [sql.SQL(", {} => {}").format(sql.Identifier(key), value) for key, value in options.items()]
        create = sql.SQL("select pgps.create_event_type({}, {}{})").format(name, attributes, sql.SQL("").join(named))
        self.connection.execute(create)
        self.connection.execute("select pgps.advertise(%s)", [name])
        return name

    def event(self, event_type: str, /, **given: Any) -> dict[str, Any]:
        """Return the attributes of an event that the broker takes.

        It has the attributes that were given, and a value of the right type, a
        new one each time, for each other one that may be neither null nor left
        to its default. Raises BadArgument for a type whose values are unknown
        here; give the attribute then.
        """
        self._numbers[event_type] += 1
        number = self._numbers[event_type]
        needed = [one for one in attributes_of(self.connection, event_type) if one.name not in given]
        made = {one.name: value_for(one, number) for one in needed if one.is_required}
        return made | given

    def publish(self, event_type: str, /, *events: Mapping[str, Any], **given: Any) -> list[dict[str, Any]]:
        """Publish events in one transaction, or a single one with these attributes; return them as they were sent.

        Each is completed as `event` does it.
        """
        sent = [self.event(event_type, **{**one, **given}) for one in events or ({},)]
        self.client.publish(event_type, sent)
        return sent

    def settle(self) -> None:
        """Do what a worker does until there is nothing more to do.

        What was committed is dispatched, filters over tables are asked, callbacks
        run, confirming events are raised, and requests of clients are executed,
        which may publish in their turn.
        """
        while True:
            dispatched = self._number("select pgps.dispatch()")
            self.connection.execute("call pgps.run_lanes()")
            self.connection.execute("call pgps.run_subscribers()")
            confirmed = self._number("select done from pgps.raise_confirming()")
            if not (dispatched + confirmed + self._execute_requests()):
                return

    def drain(self, subscription: str) -> list[Event[dict[str, Any]]]:
        """Settle, and return the events that wait for a subscription, in order; they are acknowledged.

        Raises UnknownName for a subscription that does not exist.
        """
        self.settle()
        with self.client.subscribe(subscription) as waiting:
            return list(waiting.events(timeout=0.0))

    def _execute_requests(self) -> int:
        executed = 0
        while claimed := self.connection.execute("select request_no from pgps.claim_request()").fetchone():
            self.connection.execute("select pgps.run_request(%s)", claimed)
            executed += 1
        return executed

    def _number(self, query: str) -> int:
        row = self.connection.execute(query.encode()).fetchone()
        return int(row[0]) if row is not None and row[0] is not None else 0
