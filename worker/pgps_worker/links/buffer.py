"""Holds what was read at one broker and is not yet written at the other; its size in bytes is limited."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from pgps_worker.stop import Waits

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

__all__ = ["Buffer"]

T = TypeVar("T")

# This is what a few round trips carry; a larger buffer would make nothing faster.
_MOST_BYTES = 4 << 20


@dataclass(slots=True)
class Buffer(Generic[T]):
    """A queue of one writer and one reader; `put` waits while too many bytes are in it."""

    _parts: deque[tuple[T, int]] = field(default_factory=deque)
    _bytes: int = 0
    _open: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _waits: Waits = field(default_factory=Waits)

    @property
    def is_drained(self) -> bool:
        """True when everything that was put has been dealt with."""
        return not self._open

    async def put(self, part: T, size: int = 0) -> None:
        """Add a part of so many bytes when there is room; a part larger than the buffer waits until it is empty."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= _MOST_BYTES)
            self._parts.append((part, size))
            self._bytes += size
            self._open += 1
            self._changed.notify_all()

    async def get(self) -> T:
        """Take the next part when there is one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._parts)
            part, size = self._parts.popleft()
            self._bytes -= size
            self._changed.notify_all()
            return part

    async def done(self) -> None:
        """Note that what was taken last has been dealt with."""
        async with self._changed:
            self._open -= 1
            self._changed.notify_all()
        if self.is_drained:
            self._waits.cut()

    async def drained(self, *, but: int = 0) -> None:
        """Return when everything that was put has been dealt with, except `but` parts."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._open <= but)

    def cuts_short(self) -> AbstractAsyncContextManager[None]:
        """Cancel the wait inside when everything that was put has been dealt with, and go on behind the block."""
        return self._waits.cuts_short(at_once=self.is_drained)
