"""Tasks, events and waits for asyncio; pgps/client/_sync/runtime.py has the same names for threads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

import psycopg

__all__ = [
    "ENDS_PROGRAM",
    "STOPPED",
    "Answer",
    "FailedAt",
    "Lock",
    "Signal",
    "Task",
    "Waiter",
    "call",
    "call_each",
    "close_connection",
    "limited",
    "sleep",
]

T = TypeVar("T")

Lock = asyncio.Lock
sleep = asyncio.sleep
STOPPED: tuple[type[BaseException], ...] = (asyncio.CancelledError,)
"""What is raised where a task that is stopped waits."""
ENDS_PROGRAM: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit)
"""What the loop lets out of any task, and with it of the program."""
_OTHER = "a task that the handler waited for was cancelled"


class Signal:
    """Something has happened since it was cleared."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake who waits."""
        self._event.set()

    def clear(self) -> None:
        """Forget it."""
        self._event.clear()

    def is_set(self) -> bool:
        """Tell whether it has happened."""
        return self._event.is_set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds, for ever if None; return whether it has happened."""
        if self._event.is_set():
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        return self._event.is_set()


class Task:
    """A function that runs beside the caller."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = asyncio.create_task(function(), name=name)

    async def stop(self, *, grace: float | None = None) -> None:
        """End it: by itself within `grace` seconds (it has been told), else where it waits."""
        if self._task is asyncio.current_task():
            return
        if grace is not None:
            await asyncio.wait([self._task], timeout=grace)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def join(self) -> None:
        """Wait for its end."""
        await asyncio.wait([self._task])


class Answer(Generic[T]):
    """What a statement returns, which is there also for the next one who asks when the first one was interrupted."""

    def __init__(self, execute: Callable[[], Awaitable[Any]], read: Callable[[], Awaitable[T]]) -> None:
        async def whole() -> T:
            await execute()
            return await read()

        self.kept: list[Any] = []
        """What whoever asked later has made of it."""
        self._task = asyncio.create_task(whole())

    async def get(self) -> T:
        """Return it when it is there."""
        return await asyncio.shield(self._task)


class Waiter:
    """Waits until a connection has something to read, or until `wake`.

    It holds no lock of the connection meanwhile, so that statements can be run on it.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._signal = Signal()
        # The descriptor is a duplicate, since psycopg registers the connection's own with the loop while it waits for
        # an answer.
        self._fd = os.dup(connection.fileno())
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        # The connection stays readable until somebody reads what is there, so one event is enough.
        self._loop.remove_reader(self._fd)
        self._signal.set()

    async def wait(self, timeout: float) -> None:
        """Wait for something to read, at most `timeout` seconds."""
        await self._signal.wait(timeout)

    def again(self) -> None:
        """Watch again, when all has been read."""
        if self._fd >= 0:  # closed, it says so to whoever waits
            self._signal.clear()
            self._loop.add_reader(self._fd, self._readable)

    def wake(self) -> None:
        """End the wait."""
        self._signal.set()

    def close(self) -> None:
        """Let go of the connection."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._signal.set()


async def call(function: Callable[..., Awaitable[T] | T], *args: Any) -> T:
    """Call a function of the application, plain or asynchronous."""
    try:
        result = function(*args)
        return await result if inspect.isawaitable(result) else result
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        raise RuntimeError(_OTHER) from error


async def call_each(
    function: Callable[..., Any], events: Sequence[Any], start: int, is_over: Callable[[], bool]
) -> int:
    """Call a function for events from `start` on until it is over; return how far it came.

    If the function raises, the exception has the place of the event in `place`.
    All events are handled in one loop, since a context manager for each took 12 us.
    """
    place = start
    try:
        for place in range(start, len(events)):
            if is_over():
                return place
            result = function(events[place])
            if result is not None and inspect.isawaitable(result):
                await result
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        raise FailedAt(place, RuntimeError(_OTHER)) from error
    except Exception as error:
        raise FailedAt(place, error) from error
    return len(events)


def _is_cancelled() -> bool:
    """Tell whether this task is being cancelled, and not one that a function of the application has waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class FailedAt(Exception):
    """A handler has failed on an event: at which place, and with what."""

    def __init__(self, place: int, error: Exception) -> None:
        self.place = place
        self.error = error


@contextlib.asynccontextmanager
async def limited(timeout: float | None, what: str) -> AsyncIterator[None]:  # noqa: ARG001
    """Interrupt the block after `timeout` seconds with TimeoutError; never if None."""
    async with asyncio.timeout(timeout):
        yield


async def close_connection(connection: psycopg.AsyncConnection[Any]) -> None:
    """Close a connection, whatever state it is in."""
    with contextlib.suppress(psycopg.Error, OSError):
        await connection.close()
