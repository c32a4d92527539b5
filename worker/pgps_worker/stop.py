"""The request to leave, and waits that end when it comes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

__all__ = ["Stop"]


class Stop:
    """Asked for once, by a signal or by the embedding program; it cannot be taken back."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._waits: set[asyncio.Timeout] = set()
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
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now)

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

    @contextlib.asynccontextmanager
    async def cuts_short(self) -> AsyncIterator[None]:
        """Cancel the wait inside when the request comes, and go on behind the block.

        Only for waits that change nothing: what is inside sees a cancellation.
        """
        scope = asyncio.timeout(0 if self.requested else None)
        self._waits.add(scope)
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._waits.discard(scope)
