"""What tasks, events and waiting are here: threads. Not generated; pgps/client/_async/runtime.py has the same names."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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

_log = logging.getLogger("pgps.client")
_LONGEST = 2**31 - 1
"""Milliseconds that poll(2) takes."""

Lock = threading.Lock
sleep = time.sleep
STOPPED: tuple[type[BaseException], ...] = ()
"""What is raised where a task that is stopped waits: a thread cannot be interrupted."""
ENDS_PROGRAM: tuple[type[BaseException], ...] = ()
"""What ends the program, whichever task raises it: in a thread nothing does."""


class Signal:
    """Something has happened since it was cleared."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Wake who waits."""
        self._event.set()

    def clear(self) -> None:
        """Forget it."""
        self._event.clear()

    def is_set(self) -> bool:
        """Tell whether it has happened."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds, for ever if None; return whether it has happened."""
        return self._event.wait(timeout)


class Task:
    """A function that runs beside the caller, in a thread that does not keep the program alive."""

    def __init__(self, function: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=function, name=name, daemon=True)
        self._thread.start()

    def stop(self, *, grace: float | None = None) -> None:
        """Wait for its end, at most `grace` seconds; it has been told to end, and a thread cannot be interrupted."""
        if self._thread is not threading.current_thread():
            self._thread.join(grace)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()


class Answer(Generic[T]):
    """What a statement returns, which is there also for the next one who asks when the first one was interrupted."""

    def __init__(self, execute: Callable[[], Any], read: Callable[[], T]) -> None:
        self.kept: list[Any] = []
        """What whoever asked later has made of it."""
        self._execute = execute
        self._read = read
        self._has_begun = False
        self._found: T | None = None

    def get(self) -> T:
        """Return it; a statement that was interrupted has either been cancelled or has its rows."""
        if not self._has_begun:
            self._has_begun = True
            self._execute()
        if self._found is None:
            self._found = self._read()
        return self._found


class Waiter:
    """Waits until a connection has something to read, or until `wake`.

    It holds no lock of the connection meanwhile, so that statements can be run on it.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._fd = os.dup(connection.fileno())
        self._woken, self._wake = os.pipe()
        self._lock = threading.Lock()
        self._is_waited_for = False
        self._closed = threading.Event()

    def wait(self, timeout: float) -> None:
        """Wait for something to read, at most `timeout` seconds."""
        with self._lock:
            if self._closed.is_set():
                return
            self._is_waited_for = True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        poll.poll(min(timeout * 1000, _LONGEST))
        with self._lock:
            self._is_waited_for = False
            if self._closed.is_set():
                self._let_go()

    def again(self) -> None:
        """Watch again, when all has been read."""

    def wake(self) -> None:
        """End the wait."""
        with self._lock:
            if not self._closed.is_set():
                os.write(self._wake, b"!")

    def close(self) -> None:
        """Let go of the connection, and end the wait: who waits closes what it watches, whose numbers are free then."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            if self._is_waited_for:
                os.write(self._wake, b"!")
            else:
                self._let_go()

    def _let_go(self) -> None:
        for fd in (self._fd, self._woken, self._wake):
            os.close(fd)


def call(function: Callable[..., T], *args: Any) -> T:
    """Call a function of the application."""
    return function(*args)


def call_each(function: Callable[..., Any], events: Sequence[Any], start: int, is_over: Callable[[], bool]) -> int:
    """Call a function for events from `start` on until it is over; return how far it came.

    An exception of the function has the place of its event in `place`.
    """
    place = start
    try:
        for place in range(start, len(events)):
            if is_over():
                return place
            function(events[place])
    except Exception as error:
        raise FailedAt(place, error) from error
    return len(events)


class FailedAt(Exception):
    """A handler has failed on an event: at which place, and with what."""

    def __init__(self, place: int, error: Exception) -> None:
        self.place = place
        self.error = error


@contextlib.contextmanager
def limited(timeout: float | None, what: str) -> Iterator[None]:
    """Log a warning when the block takes longer than `timeout` seconds: a thread cannot be interrupted."""
    if timeout is None:
        yield
        return
    timer = threading.Timer(timeout, lambda: _log.warning("%s has been running for %g seconds", what, timeout))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def close_connection(connection: psycopg.Connection[Any]) -> None:
    """Close a connection, whatever state it is in."""
    with contextlib.suppress(psycopg.Error, OSError):
        connection.close()
