"""Calling the handler of a subscription, one event or a batch at a time, maybe in the acknowledging transaction."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from pgps.client._arguments import refused, shown
from pgps.client._async import runtime
from pgps.client._async.reading import Refused
from pgps.client._async.receiving import AsyncReceiver
from pgps.client._async.session import AnyConnection
from pgps.client._wire import mapped
from pgps.client.events import Event, Handling
from pgps.errors import BrokerError, ConnectionLost, TryAgain, WrongState

__all__ = ["AsyncHandler"]

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


class AsyncHandler(Generic[T]):
    """A handler at work on a subscription."""

    def __init__(self, receiver: AsyncReceiver[T], handler: Callable[..., Any], how: Handling) -> None:
        if not isinstance(how, Handling):
            raise refused(f"how a handler is called is a Handling, not {shown(how)}", "Give how=Handling(…), or None.")
        if not callable(handler):
            raise refused(f"a handler is a function, not {shown(handler)}", "Give its name without parentheses.")
        self._receiver = receiver
        self._handler = handler
        self._how = how
        self._owes = False

    async def turn(self, timeout: float | None) -> int:
        """Receive once and handle what came; return how many events."""
        if self._how.transactional:
            return await self._handle_in_transaction(timeout)
        owes, self._owes = self._owes, False
        refused = Refused()
        try:
            events = await self._receiver.receive(self._how.max_events, timeout, acks=owes, refused=refused)
        except WrongState:
            if not owes:
                raise
            # The lease on some of it has ended: others have it, and the rest comes again.
            events = await self._receiver.receive(self._how.max_events, timeout, acks=False, refused=refused)
        await self._put_back_refused(refused, None)
        await self._handle(events)
        return len(events) + len(refused)

    async def settle(self) -> None:
        """Acknowledge what has been handled since the last receive."""
        if self._owes:
            self._owes = False
            await self._acknowledge(None)

    async def _handle(self, events: list[Event[T]]) -> None:
        """Handle events and acknowledge those that were handled; if the subscription closes, the others come again."""
        how = self._how
        if how.timeout is not None or how.batch:

            async def limited(part: Any) -> None:
                await self._call(part if how.batch else [part], None)

            called: Callable[..., Any] = limited
        else:
            called = self._handler
        parts: list[Any] = [events] if how.batch and events else events
        reached, handled = 0, None
        while reached < len(parts):
            begun, failed = reached, None
            try:
                reached = await runtime.call_each(called, parts, begun, self._is_stopping)
            except runtime.FailedAt as one:
                reached, failed = one.place, one.error
            if reached > begun:
                handled = events[-1] if how.batch else parts[reached - 1]
            if failed is None:
                break
            await self._put_back(_ids(events if how.batch else [parts[reached]]), failed, None)
            reached += 1
        if reached == len(parts):
            self._owes = reached > 0  # acknowledged with the next receive
        elif handled is not None:
            await self._acknowledge(handled)

    async def _acknowledge(self, up_to: Event[T] | None) -> None:
        """Acknowledge what was handled, unless its lease has ended: then others have it, or it comes again."""
        with contextlib.suppress(WrongState):
            await self._receiver.ack(up_to)

    def _is_stopping(self) -> bool:
        return self._receiver.is_stopping

    async def _handle_in_transaction(self, timeout: float | None) -> int:
        """Handle a batch in one transaction; if that fails, again with a savepoint for each event."""
        try:
            with mapped():
                return await self._handle_together(timeout)
        except (ConnectionLost, TryAgain):
            raise
        except (FailedError, BrokerError):
            # A handler has failed, or what it has written is refused now: by the commit, or since it has caught an
            # error of the server's and gone on. The second time shows of which event.
            return await self._handle_apart()

    async def _handle_together(self, timeout: float | None) -> int:
        how, refused = self._how, Refused()
        async with self._receiver.transaction(how.max_events, timeout=timeout, refused=refused) as batch:
            await self._put_back_refused(refused, batch.connection)
            for part in [batch] if how.batch and batch else [[event] for event in batch]:
                with of_application():
                    await self._call(part, batch.connection)
            return len(batch) + len(refused)

    async def _handle_apart(self) -> int:
        refused = Refused()
        async with self._receiver.transaction(self._how.max_events, timeout=0.0, refused=refused) as batch:
            await self._put_back_refused(refused, batch.connection)
            for event in batch:
                try:
                    async with batch.connection.transaction():
                        with of_application():
                            await self._call([event], batch.connection)
                            # Asks what the commit would ask, and leaves it to ask again.
                            async with batch.connection.transaction(force_rollback=True):
                                await batch.connection.execute(b"set constraints all immediate")
                except FailedError as failed:
                    await self._put_back([event.event_id], failed.error, batch.connection)
            return len(batch) + len(refused)

    async def _call(self, part: list[Event[T]], connection: AnyConnection | None) -> None:
        what: Any = part if self._how.batch else part[0]
        async with runtime.limited(self._how.timeout, f"the handler of subscription {self._receiver.name}"):
            await runtime.call(self._handler, *([what] if connection is None else [what, connection]))

    async def _put_back_refused(self, refused: Refused, connection: AnyConnection | None) -> None:
        for event_id, error in refused:
            await self._put_back([event_id], error, connection)

    async def _put_back(self, event_ids: list[int], error: Exception, connection: AnyConnection | None) -> None:
        # Whoever collects logs may read these by name. What is in the events is only in what the handler has raised.
        said = {"subscription": self._receiver.name, "event_id": event_ids[0], "events": len(event_ids)}
        _log.warning(
            "subscription %s: the handler failed with %s at event %d%s",
            self._receiver.name,
            type(error).__name__,
            event_ids[0],
            f" and {len(event_ids) - 1} more" if len(event_ids) > 1 else "",
            exc_info=error,
            extra=said,
        )
        told = f"{type(error).__name__}: {error}"
        try:
            await self._nack(event_ids, told, connection)
        except WrongState:
            if not self._receiver.is_shared:
                raise
            # The lease has ended, and another consumer has them, or some.
            for event_id in event_ids:
                with contextlib.suppress(WrongState):
                    await self._nack([event_id], told, connection)

    async def _nack(self, event_ids: list[int], told: str, connection: AnyConnection | None) -> None:
        await self._receiver.nack(event_ids, told, retry_in=self._how.retry_in, connection=connection)


def _ids(events: list[Event[Any]]) -> list[int]:
    return [event.event_id for event in events]
