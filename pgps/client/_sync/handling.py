# Made by tools/unasync_client.py from pgps/client/_async/handling.py: change that, then `make generate`.
"""Calling the handler of a subscription, one event or a batch at a time, maybe in the acknowledging transaction."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from pgps.client._sync import runtime
from pgps.client._sync.receiving import Receiver
from pgps.client._sync.session import AnyConnection
from pgps.client.events import Event, Handling

__all__ = ["Handler"]

T = TypeVar("T")
_log = logging.getLogger("pgps.client")


class FailedError(Exception):
    """The handler of the application has failed, and not the broker."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@contextlib.contextmanager
def of_application() -> Iterator[None]:
    """Wrap what the application raises, so that it is told apart from errors of the broker."""
    try:
        yield
    except Exception as error:
        raise FailedError(error) from error


class Handler(Generic[T]):
    """A handler at work on a subscription."""

    def __init__(self, receiver: Receiver[T], handler: Callable[..., Any], how: Handling) -> None:
        self._receiver = receiver
        self._handler = handler
        self._how = how
        self._owes = False

    def turn(self, timeout: float | None) -> int:
        """Receive once and handle what came; return how many events."""
        if self._how.transactional:
            return self._handle_in_transaction(timeout)
        owes, self._owes = self._owes, False
        events = self._receiver.receive(self._how.max_events, timeout, acks=owes)
        self._handle(events)
        return len(events)

    def settle(self) -> None:
        """Acknowledge what has been handled since the last receive."""
        if self._owes:
            self._owes = False
            self._receiver.ack()

    def _handle(self, events: list[Event[T]]) -> None:
        """Handle events and acknowledge those that were handled; if the subscription closes, the others come again."""
        how = self._how
        if how.timeout is not None or how.batch:

            def limited(part: Any) -> None:
                self._call(part if how.batch else [part], None)

            called: Callable[..., Any] = limited
        else:
            called = self._handler
        parts: list[Any] = [events] if how.batch and events else events
        done = 0
        while done < len(parts):
            try:
                done = runtime.call_each(called, parts, done, self._is_stopping)
                break
            except runtime.FailedAt as failed:
                self._put_back(events if how.batch else [parts[failed.place]], failed.error, None)
                done = failed.place + 1
        if done == len(parts):
            self._owes = done > 0  # acknowledged with the next receive
        elif done:
            self._receiver.ack(events[done - 1])

    def _is_stopping(self) -> bool:
        return self._receiver.is_stopping

    def _handle_in_transaction(self, timeout: float | None) -> int:
        """Handle a batch in one transaction; if that fails, again with a savepoint for each event."""
        how = self._how
        try:
            with self._receiver.transaction(how.max_events, timeout=timeout) as batch:
                for part in [batch] if how.batch and batch else [[event] for event in batch]:
                    with of_application():
                        self._call(part, batch.connection)
                return len(batch)
        except FailedError:
            pass
        with self._receiver.transaction(how.max_events, timeout=0.0) as batch:
            for event in batch:
                try:
                    with batch.connection.transaction(), of_application():
                        self._call([event], batch.connection)
                except FailedError as failed:
                    self._put_back([event], failed.error, batch.connection)
            return len(batch)

    def _call(self, part: list[Event[T]], connection: AnyConnection | None) -> None:
        what: Any = part if self._how.batch else part[0]
        with runtime.limited(self._how.timeout, f"the handler of subscription {self._receiver.name}"):
            runtime.call(self._handler, *([what] if connection is None else [what, connection]))

    def _put_back(self, events: list[Event[T]], error: Exception, connection: AnyConnection | None) -> None:
        # Whoever collects logs may read these by name. What is in the events is only in what the handler has raised.
        said = {"subscription": self._receiver.name, "event_id": events[0].event_id, "events": len(events)}
        _log.warning(
            "subscription %s: the handler failed with %s at event %d%s",
            self._receiver.name,
            type(error).__name__,
            events[0].event_id,
            f" and {len(events) - 1} more" if len(events) > 1 else "",
            exc_info=error,
            extra=said,
        )
        told = f"{type(error).__name__}: {error}"
        self._receiver.nack(events, told, retry_in=self._how.retry_in, connection=connection)
