# Made by tools/unasync_client.py from pgps/client/_async/subscription.py: change that, then `make generate`.
"""A subscription as an iterator and a context manager."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pgps.client import _calls
from pgps.client._sync import runtime
from pgps.client._sync.core import Core
from pgps.client._sync.handling import Handler
from pgps.client._sync.receiving import Batch, Receiver
from pgps.client._sync.session import AnyConnection
from pgps.client._wire import folded, mapped
from pgps.client.events import Event, Handling
from pgps.errors import AlreadyExists, ClientClosed, ConnectionLost, PgpsError, TryAgain, UnknownName

if TYPE_CHECKING:
    from pgps.client._calls import Definition

__all__ = ["Batch", "Subscription"]

T = TypeVar("T")
_log = logging.getLogger("pgps.client")


class Subscription(Generic[T]):
    """A subscription; made by `Client.subscribe`.

    Iterate over it for one event after the other, over `batches()` for many
    at once. What was iterated over is acknowledged when more has to be
    fetched, and at the end of the `with` block: at least once.
    `transaction()` is exactly once. Only what has been asked for is fetched:
    a slow consumer holds `prefetch` events, the rest waits at the broker.
    """

    def __init__(self, core: Core, definition: Definition, open_ones: list[Subscription[Any]]) -> None:
        """Describe it; `open_ones` are the subscriptions that the client closes when it is closed itself."""
        self.name = definition.name
        self.error: BaseException | None = None
        self._core = core
        self._definition = definition
        self._open_ones = open_ones
        self._receiver = self._new_receiver()
        self._iterated: Receiver[T] | None = None
        self._channel = ""
        self._local: list[Event[T]] = []
        # How many of these have been given to the application, and with how many of them it is done for certain.
        self._next = 0
        self._done = 0
        self._is_open = False
        self._task: runtime.Task | None = None

    @property
    def prefetch(self) -> int:
        """How many events are held here at most."""
        return self._definition.prefetch

    def __enter__(self) -> Subscription[T]:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close(done=kind is None)

    def __iter__(self) -> Subscription[T]:
        self._iterated = None
        return self

    def __next__(self) -> Event[T]:
        if self._next >= len(self._local):
            if self._iterated is None:
                self._iterated = self._opened()
            self._fill(self._iterated, None)
            if not self._local:
                raise StopIteration
        return self._give()

    # -----------------------------------------------------------------------------------------------------------------
    # Opening and closing
    # -----------------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Create the subscription unless it exists, and wait for its events.

        Raises AlreadyExists when it exists with another type or filter, UnknownName when it does not exist and no
        event type was given, and what pgps.subscribe raises.
        """
        if self._is_open:
            return
        self._core.require_open()
        row = self._find()
        if row is None:
            self._create()
            row = self._find()
        if row is None:
            raise UnknownName(
                f'subscription "{self.name}" does not exist', hint="Give an event type to create it.", sqlstate="42704"
            )
        self._definition.check(row)
        self._channel = row.channel
        # A new one each time: what still runs with the one before has been told to stop.
        self._receiver, self._iterated = self._new_receiver(), None
        self._receiver.begin(row.event_type, self._definition.payload_class, is_shared=row.handler == "any")
        self._core.hub.listen(self._channel, self._receiver.heard)
        self._is_open = True
        self._open_ones.append(self)

    def _new_receiver(self) -> Receiver[T]:
        definition = self._definition
        return Receiver(self._core, definition.name, prefetch=definition.prefetch, poll=definition.poll)

    def _opened(self) -> Receiver[T]:
        self.open()
        return self._receiver

    def close(self, *, done: bool = True) -> None:
        """Stop; acknowledge what was iterated over, with `done` the last event, too."""
        if not self._is_open:
            return
        self._is_open = False
        self._receiver.stop()
        self._open_ones.remove(self)
        task, self._task = self._task, None
        try:
            if task is not None:
                task.stop(grace=self._core.grace)
            with contextlib.suppress(PgpsError):
                self._settle(done=done)
        finally:
            self._core.hub.forget(self._channel, self._receiver.heard)
            self._receiver.end()
        if self._definition.temporary:
            with contextlib.suppress(UnknownName):
                self._core.session.rows(_calls.UNSUBSCRIBE, [self.name])

    def _find(self) -> _calls.Found | None:
        rows = self._core.session.rows(_calls.FIND, {"subscription": folded(self.name)})
        return _calls.Found(*rows[0]) if rows else None

    def _create(self) -> None:
        if self._definition.event_type is None:
            return
        with contextlib.suppress(AlreadyExists):  # by another client, or by an attempt whose answer was lost
            self._core.session.rows(_calls.SUBSCRIBE, self._definition.arguments())

    # -----------------------------------------------------------------------------------------------------------------
    # Receiving
    # -----------------------------------------------------------------------------------------------------------------

    def receive(
        self, max_events: int | None = None, *, timeout: float | None = 0.0, connection: AnyConnection | None = None
    ) -> list[Event[T]]:
        """Return the next events, [] when there are none within `timeout` seconds; None waits for ever.

        They come again until they are acknowledged. With `connection` they are received in its transaction, without
        waiting. Raises WrongState when the subscription is suspended, TypeMismatch when the type has changed so that
        the class does not fit any more.
        """
        receiver = self._opened()
        if connection is not None:
            return receiver.take(connection, max_events)
        return receiver.receive(max_events, timeout, acks=False)

    def ack(self, up_to: Event[T] | int | None = None, *, connection: AnyConnection | None = None) -> int:
        """Acknowledge what was received, all or up to an event; return how many events.

        With `connection` in its transaction: with the application's own writes in there, consumption is exactly once.
        """
        return self._receiver.ack(up_to, connection=connection)

    def nack(
        self,
        event: Event[T] | int | list[Event[T]],
        error: str | None = None,
        *,
        retry_in: float | None = None,
        connection: AnyConnection | None = None,
    ) -> None:
        """Put an event, or a list of them, back: again after `retry_in` seconds, and to the exception queue in the end.

        Events after it can be acknowledged before it.
        """
        self._receiver.nack(event, error, retry_in=retry_in, connection=connection)

    def batches(self, max_events: int | None = None, *, timeout: float | None = None) -> Iterator[list[Event[T]]]:
        """Iterate over lists of events, until nothing has come for `timeout` seconds.

        A list is acknowledged when the next is asked for.
        """
        receiver = self._opened()
        while True:
            self._fill(receiver, timeout, max_events)
            if not self._local:
                return
            self._next = len(self._local)
            yield self._local

    def events(self, *, timeout: float | None = None) -> Iterator[Event[T]]:
        """Iterate over events, and end when nothing has come for `timeout` seconds."""
        receiver = self._opened()
        while True:
            self._fill(receiver, timeout)
            if not self._local:
                return
            while self._next < len(self._local):
                yield self._give()

    def _give(self) -> Event[T]:
        """Return the next event in hand: whoever asks for it is done with those before."""
        self._done = self._next
        self._next += 1
        return self._local[self._done]

    @contextlib.contextmanager
    def transaction(self, max_events: int | None = None, *, timeout: float | None = None) -> Iterator[Batch[T]]:
        """Receive events in a transaction of their own; the end of the block acknowledges and commits: exactly once.

        Write through the batch's `connection`. An error in the block rolls all of it back, and the events come again.
        The batch is empty when nothing came within `timeout` seconds; None waits for ever.
        """
        receiver = self._opened()
        with receiver.transaction(max_events, timeout=timeout) as batch:
            yield batch

    # -----------------------------------------------------------------------------------------------------------------
    # Handlers
    # -----------------------------------------------------------------------------------------------------------------

    def run(self, handler: Callable[..., Any], *, how: Handling | None = None, timeout: float | None = None) -> None:
        """Call a function for each event until the subscription is closed, or nothing came for `timeout` seconds.

        `how` is `Handling`: at least once, an event at a time, when None. A
        handler that raises puts its event back (see `nack`), the others go on.
        """
        receiver = self._opened()
        handling = Handler(receiver, handler, how or Handling())
        try:
            self._run(receiver, handling, timeout)
        finally:
            handling.settle()

    def _run(self, receiver: Receiver[T], handling: Handler[T], timeout: float | None) -> None:
        answered = time.monotonic()
        while not receiver.is_stopping:
            try:
                with mapped():
                    count = handling.turn(timeout)
            except (ConnectionLost, TryAgain) as lost:
                # What was in hand comes again.
                patience = self._core.reconnect_timeout
                if patience is not None and time.monotonic() - answered > patience:
                    raise
                _log.info("subscription %s: %s", self.name, lost.message)
                continue
            answered = time.monotonic()
            if not count and timeout is not None:
                return

    def start(self, handler: Callable[..., Any], *, how: Handling | None = None) -> Subscription[T]:
        """Run a handler beside the program until the subscription is closed; what ends it early is in `error`."""
        self.open()
        self.error = None

        def follow() -> None:
            try:
                self.run(handler, how=how)
            except ClientClosed:
                pass
            except runtime.STOPPED:
                raise
            except BaseException as error:
                self.error = error
                said = error.message if isinstance(error, PgpsError) else f"{type(error).__name__}: {error}"
                _log.error("subscription %s: the handler ends: %s", self.name, said)
                if isinstance(error, runtime.ENDS_PROGRAM):
                    raise

        self._task = runtime.Task(follow, f"pgps-{self.name}")
        return self

    def join(self) -> None:
        """Wait until the handler has ended; raise what ended it."""
        if self._task is not None:
            self._task.join()
        if self.error is not None:
            raise self.error

    def _fill(self, receiver: Receiver[T], timeout: float | None, max_events: int | None = None) -> None:
        """Acknowledge what is in hand, and take more; nothing when the subscription has been closed meanwhile."""
        if receiver.is_stopping:
            self._local, self._next, self._done = [], 0, 0
            return
        whole = 0 < self._next == len(self._local)
        if whole:
            self._local, self._next, self._done = [], 0, 0
        else:
            self._settle(done=True)
        self._local = receiver.receive(max_events, timeout, acks=whole)

    def _settle(self, *, done: bool) -> None:
        """Acknowledge what was iterated over; unless it is `done`, without what is in the application's hands now."""
        finished = self._next if done else self._done
        local, self._local, self._next, self._done = self._local, [], 0, 0
        if finished > 0:
            whole = finished == len(local)
            self.ack(None if whole else local[finished - 1])
