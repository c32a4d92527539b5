"""Clients that wait for events, as applications do: in processes of their own."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection as Pipe

__all__ = ["Seen", "listener", "numbered_subscriber", "running", "subscriber"]

Seen: TypeAlias = dict[int, float]
"""When the callback was called for an event, by the transaction that published it, or by its number."""

_BATCH = 1000
_POLL = 0.2


@dataclass(frozen=True, slots=True)
class _Client:
    """The arguments of a client: where to connect, the channel to listen on, and the event that ends it."""

    dsn: str
    channel: str
    subscription: str


class Waiting:
    """A waiting client in another process."""

    def __init__(self, target: Callable[[_Client, Any], None], client: _Client) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(client, theirs), daemon=True)
        self._process.start()
        assert self._pipe.recv() == "ready"

    def result(self) -> Any:
        """Return what it has seen since the last call."""
        self._pipe.send("result")
        return self._pipe.recv()

    def stop(self) -> None:
        """End it."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send("stop")
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


@contextlib.contextmanager
def running(
    target: Callable[[_Client, Any], None], dsn: str, *, channel: str, subscription: str = ""
) -> Iterator[Waiting]:
    """Run a client as long as the block lasts."""
    waiting = Waiting(target, _Client(dsn, channel, subscription))
    try:
        yield waiting
    finally:
        waiting.stop()


def subscriber(client: _Client, pipe: Pipe) -> None:
    """Wait on the subscription's channel, receive, call back, acknowledge."""
    _subscribe(client, pipe, "xid::text::bigint")


def _subscribe(client: _Client, pipe: Pipe, key: str) -> None:
    seen: Seen = {}
    with psycopg.connect(client.dsn, autocommit=True, prepare_threshold=0) as connection:
        connection.execute(f'listen "{client.channel}"'.encode())
        pipe.send("ready")
        while not _asked_to_stop(pipe, seen):
            for _ in connection.notifies(timeout=_POLL, stop_after=1):
                pass
            while _receive(connection, client.subscription, seen, key) == _BATCH:
                pass


def numbered_subscriber(client: _Client, pipe: Pipe) -> None:
    """Do as a subscriber does, for events that came over links: by attribute volume, which says which event it is."""
    _subscribe(client, pipe, "(payload ->> 'volume')::bigint")


def _receive(connection: psycopg.Connection, subscription: str, seen: Seen, key: str) -> int:
    """Receive, call back and acknowledge in one transaction, as exactly-once consumers do."""
    with connection.pipeline(), connection.transaction():
        events = connection.execute(
            f"select event_id, {key} from pgps.receive(%s, %s)".encode(), [subscription, _BATCH]
        ).fetchall()
        for _, number in events:
            seen[number] = time.time()
        if events:
            connection.execute("select pgps.ack(%s)", [subscription])
    return len(events)


def listener(client: _Client, pipe: Pipe) -> None:
    """Wait for bare notifications, whose payload is the transaction."""
    seen: Seen = {}
    with psycopg.connect(client.dsn, autocommit=True) as connection:
        connection.execute(f'listen "{client.channel}"'.encode())
        pipe.send("ready")
        while not _asked_to_stop(pipe, seen):
            for notification in connection.notifies(timeout=_POLL):
                seen[int(notification.payload)] = time.time()
                if pipe.poll():
                    break


def _asked_to_stop(pipe: Pipe, seen: Seen) -> bool:
    while pipe.poll():
        if pipe.recv() == "stop":
            return True
        pipe.send(dict(seen))
        seen.clear()
    return False
