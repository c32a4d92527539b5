# Made by tools/unasync_client.py from pgps/client/_async/reading.py: change that, then `make generate`.
"""What a subscription reads: rows and JSON as events."""

from __future__ import annotations

from typing import Generic, TypeVar

from pgps.client import _calls
from pgps.client._sync.core import Core
from pgps.client._sync.feed import Feed, received
from pgps.client._sync.session import AnyConnection, fetch
from pgps.client._wire import mapped, uncollected
from pgps.client.events import Event, Reader, RowReader, loads

__all__ = ["Reading"]

T = TypeVar("T")


class Reading(Generic[T]):
    """Receives for one subscription, and makes events of what comes."""

    def __init__(self, core: Core, feed: Feed, name: str, event_type: str, cls: type | None) -> None:
        self._core = core
        self._feed = feed
        self._name = name
        self._event_type = event_type
        self._cls = cls
        self._rows: RowReader | None = None
        self._readers: dict[str, Reader] = {}

    def take(self, connection: AnyConnection | None, max_events: int, *, acks: bool = False) -> list[Event[T]]:
        """Return the next events, by the feed or in the transaction of a connection."""
        if "*" in self._event_type:
            return self._take_of_pattern(connection, max_events, acks=acks)
        if connection is None:
            found = self._feed.receive(self._name, self._event_type, max_events, acks=acks)
        else:
            with mapped():
                found = received(connection, self._event_type, [self._name], max_events, self._feed.consumer)
        if self._rows is None or self._rows.names != found.names:
            shape = None if self._cls is None else self._core.shape_now(self._event_type)
            self._rows = RowReader(self._event_type, found.names, self._cls, shape)
        with uncollected():
            return self._rows.events(found.rows)

    def _take_of_pattern(self, connection: AnyConnection | None, max_events: int, *, acks: bool) -> list[Event[T]]:
        if connection is not None:
            with mapped():
                return self._take_json(connection, max_events)
        if acks:
            self._feed.ack(self._name)
        return self._feed.session.run(lambda link: self._take_json(link, max_events))

    def _take_json(self, connection: AnyConnection, max_events: int) -> list[Event[T]]:
        """Receive events of several types, which come as JSON."""
        params = {"subscription": self._name, "max_events": max_events, "consumer": self._feed.consumer}
        rows = fetch(connection, _calls.RECEIVE, params)
        events = []
        for event_id, event_type, text, *rest in rows:
            payload = loads(text)
            reader = self._readers.get(event_type)
            if reader is None or reader.keys != payload.keys():
                # The first of its type, or the type is another one now.
                self._core.forget_shape(event_type)
                shape = self._core.shape(event_type, connection)
                reader = self._readers[event_type] = Reader(shape, self._cls)
            events.append(Event(event_id, event_type, reader(payload), *rest))
        return events
