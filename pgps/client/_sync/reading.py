# Made by tools/unasync_client.py from pgps/client/_async/reading.py: change that, then `make generate`.
"""What a subscription reads: rows and JSON as events."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pgps.client import _calls
from pgps.client._sync.core import Core
from pgps.client._sync.feed import Feed, received
from pgps.client._sync.session import AnyConnection, fetch
from pgps.client._wire import mapped, uncollected
from pgps.client.events import Event, Reader, RowReader, loads

__all__ = ["Reading", "Refused"]

T = TypeVar("T")


class Refused(list[tuple[int, Exception]]):
    """Ids of events that the application's class does not take, and what it has raised."""


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

    def take(
        self,
        connection: AnyConnection | None,
        max_events: int,
        *,
        acks: bool = False,
        refused: Refused | None = None,
    ) -> list[Event[T]]:
        """Return the next events, by the feed or in the transaction of a connection.

        What the class of the payload raises is raised here, or with its event in `refused` if that is given.
        """
        if "*" in self._event_type:
            return self._take_of_pattern(connection, max_events, acks=acks, refused=refused)
        if connection is None:
            found = self._feed.receive(self._name, self._event_type, max_events, acks=acks)
        else:
            with mapped():
                found = received(connection, self._event_type, [self._name], max_events, self._feed.consumer)
        if self._rows is None or self._rows.names != found.names:
            shape = None if self._cls is None else self._core.shape_now(self._event_type)
            self._rows = RowReader(self._event_type, found.names, self._cls, shape)
        try:
            with uncollected():
                return self._rows.events(found.rows)
        except Exception:
            if refused is None:
                raise
        return self._one_by_one(self._rows, found.rows, refused)

    def _one_by_one(self, reader: RowReader, found: list[tuple[Any, ...]], refused: Refused) -> list[Event[T]]:
        events: list[Event[T]] = []
        for row in found:
            try:
                events += reader.events([row])
            except Exception as error:
                refused.append((row[0], error))
        return events

    def _take_of_pattern(
        self, connection: AnyConnection | None, max_events: int, *, acks: bool, refused: Refused | None
    ) -> list[Event[T]]:
        if connection is not None:
            with mapped():
                return self._take_json(connection, max_events, refused)
        if acks:
            self._feed.ack(self._name)
        return self._feed.session.run(lambda link: self._take_json(link, max_events, refused))

    def _take_json(self, connection: AnyConnection, max_events: int, refused: Refused | None) -> list[Event[T]]:
        """Receive events of several types, which come as JSON."""
        params = {"subscription": self._name, "max_events": max_events, "consumer": self._feed.consumer}
        rows = fetch(connection, _calls.RECEIVE, params)
        if refused is not None:
            refused.clear()  # what an attempt before, whose connection was lost, has come to
        events = []
        for event_id, event_type, text, *rest in rows:
            payload = loads(text)
            reader = self._readers.get(event_type)
            if reader is None or reader.keys != payload.keys():
                # The first of its type, or the type is another one now.
                self._core.forget_shape(event_type)
                shape = self._core.shape(event_type, connection)
                reader = self._readers[event_type] = Reader(shape, self._cls)
            try:
                events.append(Event(event_id, event_type, reader(payload), *rest))
            except Exception as error:
                if refused is None:
                    raise
                refused.append((event_id, error))
        return events
