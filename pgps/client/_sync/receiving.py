# Made by tools/unasync_client.py from pgps/client/_async/receiving.py: change that, then `make generate`.
"""Receives the events of one subscription, acknowledges them and puts them back; batches of a transaction."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from pgps.client import _arguments, _calls
from pgps.client._sync import runtime
from pgps.client._sync.core import Core
from pgps.client._sync.hub import POLL_DEAF
from pgps.client._sync.reading import Reading, Refused
from pgps.client._sync.session import AnyConnection, fetch, require_whole
from pgps.client._wire import mapped, storable
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
        self.is_shared = False
        self._core = core
        self._poll = core.poll if poll is None else poll
        self._feed = core.feed
        self._signal = runtime.Signal()
        self._reading: Reading[T] | None = None
        # The newest event that the application was given and has not acknowledged, and whether the broker may have
        # given others since, in an answer that nobody has seen: such are not acknowledged with it.
        self._newest: int | None = None
        self._is_unsure = False

    def begin(self, event_type: str, cls: type | None, *, is_shared: bool) -> None:
        """Read events of a type from now on, as objects of a class."""
        self.is_shared = is_shared
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

    def receive(
        self, max_events: int | None, timeout: float | None, *, acks: bool, refused: Refused | None = None
    ) -> list[Event[T]]:
        """Return the next events, [] when none came within `timeout` seconds; acknowledge those before when `acks`."""
        deadline = _arguments.deadline(timeout)
        while True:
            self._signal.clear()
            events = self.take(None, max_events, acks=acks, refused=refused)
            if events or refused or not self._wait(deadline):
                return events
            acks = False

    def take(
        self,
        connection: AnyConnection | None,
        max_events: int | None = None,
        *,
        acks: bool = False,
        refused: Refused | None = None,
    ) -> list[Event[T]]:
        """Return what there is, without waiting; see Reading.take."""
        if self._reading is None:
            raise ClientClosed("the subscription is not open", hint="Enter it with `with`.")
        count = _arguments.count(max_events or self.prefetch, "max_events")
        if connection is not None:
            return self._reading.take(connection, count, refused=refused)
        if acks and self._is_unsure:
            self.ack()
            acks = False
        self._is_unsure = True
        if acks:
            self._newest = None
        events = self._reading.take(None, count, acks=acks, refused=refused)
        self._newest, self._is_unsure = events[-1].event_id if events else None, False
        return events

    def ack(self, up_to: Event[T] | int | None = None, *, connection: AnyConnection | None = None) -> int:
        """Acknowledge; see Subscription.ack."""
        event_id = up_to.event_id if isinstance(up_to, Event) else up_to
        if connection is not None:
            return int(self._one(connection, _calls.ACK, self._own(up_to=event_id)))
        if event_id is None and not self._is_unsure:
            acked = self._feed.ack(self.name)
            self._newest = None
            return acked
        if event_id is None:
            event_id = self._newest
        if event_id is None:
            return 0
        acked = int((self._feed.session.rows(_calls.ACK, self._own(up_to=event_id)))[0][0])
        if event_id == self._newest:
            self._newest = None
        return acked

    def nack(
        self,
        event: Event[T] | int | list[Event[T]] | list[int],
        error: str | None = None,
        *,
        retry_in: float | None = None,
        connection: AnyConnection | None = None,
    ) -> None:
        """Put back; see Subscription.nack."""
        given = event if isinstance(event, list) else [event]
        params = self._own(
            event_ids=[one.event_id if isinstance(one, Event) else one for one in given],
            error=None if error is None else storable(_arguments.string(error, "the error", "Give str(error).")),
            retry_in=None if retry_in is None else _arguments.seconds(retry_in, "retry_in"),
        )
        if connection is not None:
            self._one(connection, _calls.NACK, params)
        else:
            self._feed.session.rows(_calls.NACK, params, again=False)

    @contextlib.contextmanager
    def transaction(
        self, max_events: int | None = None, *, timeout: float | None = None, refused: Refused | None = None
    ) -> Iterator[Batch[T]]:
        """Receive and acknowledge in one transaction; see Subscription.transaction."""
        deadline = _arguments.deadline(timeout)
        while True:
            self._signal.clear()
            with self._core.transaction() as connection:
                events = self.take(connection, max_events, refused=refused)
                if events or refused:
                    yield Batch(self, connection, events)
                    require_whole(connection)
                    self.ack(connection=connection)
                    return
            if not self._wait(deadline):
                break
        with self._core.transaction() as connection:
            yield Batch(self, connection, [])

    def _wait(self, deadline: float | None) -> bool:
        """Wait for a notification, or for the time after which one counts as lost; False when `timeout` has passed."""
        poll = min(self._poll, POLL_DEAF) if self._core.hub.is_deaf else self._poll
        remaining = None if deadline is None else deadline - time.monotonic()
        if self.is_stopping or (remaining is not None and remaining <= 0):
            return False
        self._signal.wait(poll if remaining is None else min(poll, remaining))
        return not self.is_stopping

    def _own(self, **params: Any) -> dict[str, Any]:
        return {**params, "subscription": self.name, "consumer": self._feed.consumer}

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
