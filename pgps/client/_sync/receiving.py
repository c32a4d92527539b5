# Made by tools/unasync_client.py from pgps/client/_async/receiving.py: change that, then `make generate`.
"""Receives the events of one subscription, acknowledges them and puts them back; batches of a transaction."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from pgps.client import _calls
from pgps.client._sync import runtime
from pgps.client._sync.core import Core
from pgps.client._sync.hub import POLL_DEAF
from pgps.client._sync.reading import Reading
from pgps.client._sync.session import AnyConnection, fetch
from pgps.client._wire import mapped
from pgps.client.events import Event
from pgps.errors import ClientClosed

__all__ = ["Batch", "Receiver"]

T = TypeVar("T")


class Receiver(Generic[T]):
    """What a subscription and its handler receive with; the public face of each call is Subscription's.

    `begin` says what is read when the subscription has been found, `stop` ends
    every wait, `end` gives the connection back.
    """

    def __init__(self, core: Core, name: str, *, prefetch: int, poll: float | None) -> None:
        self.name = name
        self.prefetch = prefetch
        self.is_stopping = False
        self._core = core
        self._poll = core.poll if poll is None else poll
        self._feed = core.feed
        self._signal = runtime.Signal()
        self._reading: Reading[T] | None = None

    def begin(self, event_type: str, cls: type | None, *, is_shared: bool) -> None:
        """Read events of a type from now on, as objects of a class."""
        if is_shared:
            # A subscription acknowledges only what it was given itself: another one of the same name in this client has
            # events of its own in hand.
            self._feed = self._core.another_feed()
        self._reading = Reading(self._core, self._feed, self.name, event_type, cls)

    def stop(self) -> None:
        """End every wait."""
        self.is_stopping = True
        self._signal.set()

    def end(self) -> None:
        """Give the connection back."""
        if self._feed is not self._core.feed:
            self._feed.session.close()

    def heard(self, _payload: str | None) -> None:
        """Have whoever waits look again, since there is something to receive, or may be."""
        self._signal.set()

    def receive(self, max_events: int | None, timeout: float | None, *, acks: bool) -> list[Event[T]]:
        """Return the next events, [] when none came within `timeout` seconds; acknowledge those before when `acks`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._signal.clear()
            events = self.take(None, max_events, acks=acks)
            if events or not self._wait(deadline):
                return events
            acks = False

    def take(
        self, connection: AnyConnection | None, max_events: int | None = None, *, acks: bool = False
    ) -> list[Event[T]]:
        """Return what there is, without waiting."""
        if self._reading is None:
            raise ClientClosed("the subscription is not open", hint="Enter it with `with`.")
        return self._reading.take(connection, max_events or self.prefetch, acks=acks)

    def ack(self, up_to: Event[T] | int | None = None, *, connection: AnyConnection | None = None) -> int:
        """Acknowledge; see Subscription.ack."""
        if up_to is None and connection is None:
            return self._feed.ack(self.name)
        event_id = up_to.event_id if isinstance(up_to, Event) else up_to
        params = {"subscription": self.name, "up_to": event_id, "consumer": self._feed.consumer}
        if connection is not None:
            return int(self._one(connection, _calls.ACK, params))
        return int((self._feed.session.rows(_calls.ACK, params))[0][0])

    def nack(
        self,
        event: Event[T] | int | list[Event[T]],
        error: str | None = None,
        *,
        retry_in: float | None = None,
        connection: AnyConnection | None = None,
    ) -> None:
        """Put back; see Subscription.nack."""
        given = event if isinstance(event, list) else [event]
        params = {
            "subscription": self.name,
            "event_ids": [one.event_id if isinstance(one, Event) else one for one in given],
            "error": error,
            "retry_in": retry_in,
            "consumer": self._feed.consumer,
        }
        if connection is not None:
            self._one(connection, _calls.NACK, params)
        else:
            self._feed.session.rows(_calls.NACK, params, again=False)

    @contextlib.contextmanager
    def transaction(self, max_events: int | None = None, *, timeout: float | None = None) -> Iterator[Batch[T]]:
        """Receive and acknowledge in one transaction; see Subscription.transaction."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._signal.clear()
            with self._core.transaction() as connection:
                events = self.take(connection, max_events)
                if events:
                    yield Batch(self, connection, events)
                    self.ack(connection=connection)
                    return
            if not self._wait(deadline):
                break
        with self._core.transaction() as connection:
            yield Batch(self, connection, [])

    def _wait(self, deadline: float | None) -> bool:
        """Wait for a notification, or for the time after which one counts as lost; False when `timeout` has passed."""
        poll = min(self._poll, POLL_DEAF) if self._core.hub.is_deaf else self._poll
        remaining = poll if deadline is None else min(poll, deadline - time.monotonic())
        if remaining <= 0 or self.is_stopping:
            return False
        self._signal.wait(remaining)
        return not self.is_stopping

    @staticmethod
    def _one(connection: AnyConnection, query: str, params: dict[str, Any]) -> Any:
        with mapped():
            return (fetch(connection, query, params))[0][0]


class Batch(list[Event[T]]):
    """Events that were received in one transaction of `connection`, which acknowledges them when it commits."""

    def __init__(self, receiver: Receiver[T], connection: AnyConnection, events: list[Event[T]]) -> None:
        super().__init__(events)
        self.connection = connection
        self._receiver = receiver

    def nack(
        self, event: Event[T] | list[Event[T]], error: str | None = None, *, retry_in: float | None = None
    ) -> None:
        """Put one of the events, or several, back, as part of the transaction."""
        self._receiver.nack(event, error, retry_in=retry_in, connection=self.connection)
