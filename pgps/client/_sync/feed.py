# Made by tools/unasync_client.py from pgps/client/_async/feed.py: change that, then `make generate`.
"""Receives and acknowledges for all subscriptions of a session; what they want at the same time is one statement."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from pgps.client import _calls
from pgps.client._beyond import all_rows
from pgps.client._sync import runtime
from pgps.client._sync.session import AnyConnection, Session, fetch, require_connection
from pgps.client._wire import mapped, uncollected
from pgps.errors import BrokerError, ConnectionLost

__all__ = ["Feed", "Rows", "received"]

OWN = 7
PLACES = 6
"""Columns of pgps_queue.<type>_receive before the attributes, and the one that says whose rows they are."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of pgps_queue.<type>_receive, and the names of the attributes behind the first columns."""

    names: tuple[str, ...]
    rows: list[tuple[Any, ...]]


Key: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class _Request:
    subscription: str
    acks: bool = False
    done: bool = False
    given_up: bool = False
    """Nobody waits for it any more: whoever made it was cancelled, or the server was away for too long."""
    result: Rows | None = None
    acked: int = 0
    error: BrokerError | None = None


def received(
    connection: AnyConnection, event_type: str, subscriptions: list[str], max_events: int, consumer: str
) -> Rows:
    """Receive for subscriptions to one event type.

    The statement is not prepared: a prepared one would be refused after the type has got other attributes.
    """
    # The ids are read as text, since psycopg would take a multirange apart for each row.
    query = sql.SQL("select * from {}(%s, %s, %s)").format(sql.Identifier("pgps_queue", f"{event_type}_receive"))
    with require_connection(connection).cursor(row_factory=tuple_row) as cursor:
        cursor.execute(query, [subscriptions, max_events, consumer], prepare=False)
        try:
            first = cursor.fetchone()  # waits for all of them; in a pipeline there is no description before
            with uncollected():
                rows = [] if first is None else [first, *cursor.fetchall()]
        except psycopg.DataError as error:
            if error.sqlstate is not None:  # the server's own
                raise
            rows = all_rows(cursor)
        return Rows(tuple(column.name for column in cursor.description or ())[OWN:], rows)


@dataclass(slots=True)
class Feed:
    """Combines all that is asked for while the session is busy, so that a hundred subscriptions need one round trip."""

    session: Session
    consumer: str
    """The consumer that receives. Behind a pooler the broker cannot tell consumers by their sessions."""
    _guard: runtime.Lock = field(default_factory=runtime.Lock)
    _asked: dict[Key, list[_Request]] = field(default_factory=dict)
    _finished: list[_Request] = field(default_factory=list)

    def receive(self, subscription: str, event_type: str, max_events: int, *, acks: bool = False) -> Rows:
        """Return the next events of a subscription, after acknowledging those before if it `acks`."""
        request, key = _Request(subscription, acks), (event_type, max_events)
        with self._guard:
            self._asked.setdefault(key, []).append(request)

        def serve(connection: AnyConnection) -> None:
            if not request.done:
                self._receive_all(connection, key)

        try:
            runtime.sleep(0)  # whoever was woken by the same batch asks as well
            self.session.run(serve)
        finally:
            request.given_up = not request.done
        if request.error is not None:
            raise request.error
        assert request.result is not None
        return request.result

    def ack(self, subscription: str) -> int:
        """Acknowledge all that a subscription has received; return how many events."""
        request = _Request(subscription)
        with self._guard:
            self._finished.append(request)

        def serve(connection: AnyConnection) -> None:
            if not request.done:
                self._ack_all(connection)

        try:
            runtime.sleep(0)
            self.session.run(serve)
        finally:
            request.given_up = not request.done
        if request.error is not None:
            raise request.error
        return request.acked

    def _receive_all(self, connection: AnyConnection, key: Key) -> None:
        with self._guard:
            requests = [request for request in self._asked.pop(key, []) if not request.given_up]
        try:
            _each(requests, lambda some: self._receive_some(connection, key, some))
        finally:
            with self._guard:
                self._asked.setdefault(key, []).extend(request for request in requests if not request.done)

    def _ack_all(self, connection: AnyConnection) -> None:
        with self._guard:
            requests = [request for request in self._finished if not request.given_up]
            self._finished = []
        try:
            _each(requests, lambda some: self._ack_some(connection, some))
        finally:
            with self._guard:
                self._finished.extend(request for request in requests if not request.done)

    def _receive_some(self, connection: AnyConnection, key: Key, requests: list[_Request]) -> None:
        # Several requests for one subscription get the same events, as they would if they came one after the other.
        names = list(dict.fromkeys(request.subscription for request in requests))
        acks = [request for request in requests if request.acks]
        acked = list({request.subscription for request in acks})
        for request in acks:
            # This is tried only once: if the answer was lost, a second acknowledgement would cover events that nobody
            # has seen.
            request.acks = False
        try:
            found = self._ack_and_receive(connection, key, acked, names)
        except ConnectionLost:
            raise
        except BrokerError:
            # Refused, and with it the acknowledgements of all.
            for request in acks:
                request.acks = True
            raise
        shared = shares(found, names)
        for request in requests:
            request.result = shared[request.subscription]
            request.done = True

    def _ack_and_receive(self, connection: AnyConnection, key: Key, acked: list[str], names: list[str]) -> Rows:
        with mapped():
            if acked:
                # The statements are sent in a pipeline: one transaction in one round trip.
                with connection.pipeline():
                    if len(acked) == 1:
                        connection.execute(_calls.ACK.encode(), self._own(subscription=acked[0], up_to=None))
                    else:
                        connection.execute(_calls.ACK_EACH.encode(), self._own(subscriptions=acked))
                    return received(connection, key[0], names, key[1], self.consumer)
            return received(connection, key[0], names, key[1], self.consumer)

    def _ack_some(self, connection: AnyConnection, requests: list[_Request]) -> None:
        names = [request.subscription for request in requests]
        with mapped():
            if len(names) == 1:
                rows = fetch(connection, _calls.ACK, self._own(subscription=names[0], up_to=None))
            else:
                rows = fetch(connection, _calls.ACK_EACH, self._own(subscriptions=names))
        acked = dict(rows) if len(names) > 1 else {names[0]: rows[0][0]}
        for request in requests:
            request.acked, request.done = acked[request.subscription], True

    def _own(self, **params: Any) -> dict[str, Any]:
        return {**params, "consumer": self.consumer}


def _each(requests: list[_Request], serve: Callable[[list[_Request]], None]) -> None:
    """Serve all at once. If that is refused, serve them one by one, so that the error goes to whoever caused it."""
    if len(requests) > 1:
        try:
            return serve(requests)
        except ConnectionLost:
            raise
        except BrokerError:
            pass
    for request in requests:
        if request.given_up:
            continue
        try:
            serve([request])
        except ConnectionLost:
            raise
        except BrokerError as error:
            request.error, request.done = error, True
    return None


def shares(found: Rows, names: list[str]) -> dict[str, Rows]:
    """Return which subscription has which rows; subscriptions that have the same rows share one list."""
    if len(names) == 1:
        return {names[0]: found}
    parts: dict[str, list[tuple[Any, ...]]] = {}
    for row in found.rows:
        parts.setdefault(row[PLACES], []).append(row)
    shared = {name: Rows(found.names, []) for name in names}
    for places, rows in parts.items():
        part = Rows(found.names, rows)
        for place in places_of(places):
            shared[names[place - 1]] = part
    return shared


def places_of(text: str) -> Iterator[int]:
    """Yield the numbers of a multirange as PostgreSQL writes it, {[1,3),[5,6)}."""
    for first, after in re.findall(r"\[(\d+),(\d+)\)", text):
        yield from range(int(first), int(after))
