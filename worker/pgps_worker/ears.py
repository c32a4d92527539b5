"""What a worker is told by notifications: one session listens for its services.

A NOTIFY wakes every session of the database that listens, whatever its channel, so
ten sessions of a worker would be woken twice for an event (decision 86). Only the
dispatcher listens for itself, since every event waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import psycopg

from pgps_worker.connection import connect, notified
from pgps_worker.damping import Damper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgps_worker.config import WorkerConfig
    from pgps_worker.connection import Connection
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["Ear", "Ears", "Listener", "SessionEar", "ThreadEar"]

_STATEMENT_TIMEOUT = 10.0


class Ear:
    """Hears channels for one that waits in the event loop; what came while it did something else counts."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._rung = asyncio.Event()

    def ring(self, channel: str) -> None:
        """Note that a channel was notified."""
        self._told.add(channel)
        self._rung.set()

    async def heard(self, timeout: float, *, stop: Stop) -> set[str]:  # noqa: ASYNC109
        """Wait for a notification and return its channels; none after `timeout` seconds or when asked to stop."""
        if not self._told:
            async with stop.cuts_short(after=timeout):
                await self._rung.wait()
        told, self._told = self._told, set()
        self._rung.clear()
        return told


class ThreadEar:
    """Hears channels for one that waits in a thread, at a socket among others; see `Wire.heed`."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)

    def ring(self, channel: str) -> None:  # noqa: ARG002
        """Note that a channel was notified."""
        # A buffer that is full will wake whoever waits, too.
        with contextlib.suppress(BlockingIOError):
            self._there.send(b"!")

    def fileno(self) -> int:
        """Return the socket that is readable when it was rung."""
        return self._here.fileno()

    def rung(self) -> bool:
        """Return whether it was rung since the last look."""
        with contextlib.suppress(BlockingIOError):
            return bool(self._here.recv(4096))
        return False

    def close(self) -> None:
        """Close the socket."""
        self._here.close()
        self._there.close()


@dataclass(frozen=True, slots=True)
class SessionEar:
    """Hears the channels of another broker, in a session there that listens for itself."""

    connection: Connection

    async def listen(self, *channels: str) -> None:
        """Begin to hear these channels."""
        await self.connection.execute("; ".join(f'listen "{channel}"' for channel in channels).encode())

    async def heard(self, timeout: float, *, stop: Stop) -> set[str]:  # noqa: ASYNC109
        """As of an `Ear`."""
        return await notified(self.connection, timeout, stop=stop)


_Some = TypeVar("_Some", Ear, ThreadEar)


class Ears:
    """Who waits for which channels; all but the threads' waits are in one event loop.

    An ear is rung when its channel is listened to from now on, and again when
    the session that listens had to be replaced. So whoever looks after each ring
    misses nothing.
    """

    def __init__(self) -> None:
        self._ears: dict[str, list[Ear | ThreadEar]] = {}
        self.changed = asyncio.Event()

    @property
    def channels(self) -> set[str]:
        """The channels that somebody waits for."""
        return set(self._ears)

    @contextlib.contextmanager
    def hear(self, *channels: str) -> Iterator[Ear]:
        """Yield what hears these channels, for as long as the block lasts."""
        with self._joined(Ear(), channels) as ear:
            yield ear

    @contextlib.contextmanager
    def hear_in_thread(self, *channels: str) -> Iterator[ThreadEar]:
        """Yield what hears these channels for a thread, for as long as the block lasts."""
        with contextlib.closing(ThreadEar()) as own, self._joined(own, channels) as ear:
            yield ear

    def ring(self, channel: str) -> None:
        """Tell those who wait for a channel."""
        for ear in self._ears.get(channel, ()):
            ear.ring(channel)

    @contextlib.contextmanager
    def _joined(self, ear: _Some, channels: tuple[str, ...]) -> Iterator[_Some]:
        for channel in channels:
            self._ears.setdefault(channel, []).append(ear)
        self.changed.set()
        try:
            yield ear
        finally:
            for channel in channels:
                self._ears[channel].remove(ear)
                if not self._ears[channel]:
                    del self._ears[channel]
            self.changed.set()


@dataclass(frozen=True, slots=True)
class Listener:
    """The session that listens to what somebody in this worker waits for."""

    config: WorkerConfig
    stop: Stop
    vitals: Vitals
    ears: Ears

    @property
    def name(self) -> str:
        """Its name."""
        return "listener"

    async def run(self) -> None:
        """Listen until asked to stop."""
        # What is still to be rung when the session is gone, its successor rings.
        with contextlib.closing(Damper(self.ears.ring)) as damper:
            async with connect(self.config, self.name, statement_timeout=_STATEMENT_TIMEOUT) as connection:
                # What comes while a statement runs.
                connection.add_notify_handler(lambda notify: damper.note(notify.channel))
                listening: set[str] = set()
                while not self.stop.requested:
                    self.ears.changed.clear()
                    listening = await self._listen(connection, listening)
                    self.vitals.up(self.name)
                    await self._hear(connection, damper)

    async def _listen(self, connection: Connection, listening: set[str]) -> set[str]:
        """Listen to what is waited for now instead of what was, and ring what is new; return what it is."""
        wanted = self.ears.channels
        statements = [f'listen "{channel}"' for channel in sorted(wanted - listening)]
        statements += [f'unlisten "{channel}"' for channel in sorted(listening - wanted)]
        if statements:
            await connection.execute("; ".join(statements).encode())
        # Whoever has begun to wait for a channel that is listened to already has missed nothing yet, either.
        for channel in wanted - listening:
            self.ears.ring(channel)
        return wanted

    async def _hear(self, connection: Connection, damper: Damper) -> None:
        """Ring until other channels are waited for. Raises psycopg.OperationalError when the session is gone.

        Notifications are read as they come: a coroutine that waits for each would take ten times as long.
        """
        loop, pgconn, broken = asyncio.get_running_loop(), connection.pgconn, list[psycopg.OperationalError]()

        def read() -> None:
            try:
                pgconn.consume_input()
                while told := pgconn.notifies():
                    damper.note(told.relname.decode())
            except psycopg.OperationalError as error:
                broken.append(error)
                self.ears.changed.set()
                loop.remove_reader(fd)

        fd = pgconn.socket
        loop.add_reader(fd, read)
        try:
            async with self.stop.cuts_short():
                await self.ears.changed.wait()
        finally:
            loop.remove_reader(fd)
        if broken:
            raise broken[0]
