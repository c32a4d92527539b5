"""Waits that somebody else cuts short, and the request to leave, which cuts short all that take note of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

__all__ = ["Stop", "Waits"]


class Waits:
    """Waits that change nothing and are cut short together: what waits sees a cancellation, and goes on behind it."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()

    def cut(self) -> None:
        """End the waits that there are."""
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            # One that has expired is being left already, which takes its time while a statement is cancelled.
            if not scope.expired():
                scope.reschedule(now)

    @contextlib.asynccontextmanager
    async def cuts_short(self, *, at_once: bool = False, after: float | None = None) -> AsyncIterator[None]:
        """Cancel the wait inside when it is cut, `after` so many seconds, or `at_once`, and go on behind the block."""
        scope = asyncio.timeout(0 if at_once else after)
        self._scopes.add(scope)
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._scopes.discard(scope)


class Stop:
    """Asked for once, by a signal or by the embedding program; it cannot be taken back."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._waits = Waits()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def requested(self) -> bool:
        """True from the moment somebody asked."""
        return self._event.is_set()

    def request(self) -> None:
        """Ask every service to finish what it does and leave."""
        if self.requested:
            return
        self._event.set()
        for callback in self._callbacks:
            callback()
        self._waits.cut()

    def then(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the request comes, or now if it has come."""
        self._callbacks.append(callback)
        if self.requested:
            callback()

    @contextlib.contextmanager
    def calls(self, callback: Callable[[], None]) -> Iterator[None]:
        """As `then`, for as long as the block lasts."""
        self.then(callback)
        try:
            yield
        finally:
            self._callbacks.remove(callback)

    async def wait(self) -> None:
        """Return when the request has come."""
        await self._event.wait()

    async def sleep(self, timeout: float) -> None:  # noqa: ASYNC109
        """Wait `timeout` seconds, or until the request comes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()

    def cuts_short(self, *, after: float | None = None) -> AbstractAsyncContextManager[None]:
        """Cancel the wait inside when the request comes, or `after` so many seconds, and go on behind the block."""
        return self._waits.cuts_short(at_once=self.requested, after=after)
