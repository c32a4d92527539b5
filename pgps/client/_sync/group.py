# Made by tools/unasync_client.py from pgps/client/_async/group.py: change that, then `make generate`.
"""A member of a process group: what is spooled for the group, as an iterator and a context manager."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from typing import Any

from pgps.client import _arguments, _spools
from pgps.client._spools import SpooledMessage
from pgps.client._sync import runtime
from pgps.client._sync.core import Core
from pgps.client._sync.session import AnyConnection, Session, fetch
from pgps.client._wire import folded, mapped
from pgps.errors import PgpsError, UnknownName

__all__ = ["Group"]


class Group:
    """A member of a process group; made by `Client.group`.

    Iterate over it: what was iterated over is acknowledged when the next
    message is asked for, and at the end of the `with` block, so that it
    comes at least once. `receive` with `connection` and `ack` with the same
    one are exactly once. When the connection was lost the member goes on
    where it was.
    """

    def __init__(
        self, core: Core, name: str, member: str, *, replay: bool, ready: bool, take_over: bool, prefetch: int
    ) -> None:
        """Describe it; nothing is done before it is entered."""
        self.name = name
        self.member = member
        self.prefetch = prefetch
        self.session: int | None = None
        """The number of the member's session, for calls by connections of one's own."""
        self._core = core
        self._manner: dict[str, Any] = {"replay": replay, "ready": ready, "take_over": take_over}
        self._link: Session = core.another_feed().session
        self._joined_on: AnyConnection | None = None
        self._is_member = False
        self._token = secrets.token_hex(16)
        self._signal = runtime.Signal()
        self._channel = ""
        self._local: list[SpooledMessage] = []
        self._last: SpooledMessage | None = None
        self._is_open = False

    def __enter__(self) -> Group:
        self.join()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.leave(done=kind is None)

    def __iter__(self) -> Group:
        return self

    def __next__(self) -> SpooledMessage:
        found = self._next(None)
        if found is None:
            raise StopIteration
        return found

    def join(self) -> None:
        """Join the group. Raises UnknownName, NotPermitted, and what pgps.connect_client raises."""
        if self._is_open:
            return
        self._core.require_open()
        self._link = self._core.another_feed().session
        self._joined_on = self.session = None
        self._is_member = False
        try:
            rows = self._said(_spools.CHANNEL, [folded(self.name)])
            if not rows:
                raise UnknownName(f'spool "{self.name}" does not exist', hint="See pgps.spools.", sqlstate="42704")
            self._channel = rows[0][0]
            self._core.hub.listen(self._channel, self._heard)
        except BaseException:
            self._end()
            raise
        self._is_open = True

    def leave(self, *, done: bool = True) -> None:
        """Acknowledge what was iterated over, with `done` the last message, too, and leave the group."""
        if not self._is_open:
            return
        self._is_open = False
        self._signal.set()
        with contextlib.suppress(PgpsError):
            if done and self._last is not None:
                self.ack(self._last)
            self._said(_spools.LEAVE, self._named())
        self._core.hub.forget(self._channel, self._heard)
        self._end()

    def ready(self) -> None:
        """Take what is new from now on, after it joined with `ready=False`."""
        self._said(_spools.READY, self._named())
        self._manner["ready"] = True
        self._signal.set()

    def receive(
        self, max_messages: int | None = None, *, timeout: float | None = 0.0, connection: AnyConnection | None = None
    ) -> list[SpooledMessage]:
        """Return the next messages, [] when there are none within `timeout` seconds; None waits for ever.

        They come again until they are acknowledged. With `connection` they are received in its transaction, without
        waiting.
        """
        self.join()
        asked = self._named() | {"max": max_messages or self.prefetch}
        if connection is not None:
            with mapped():
                return [SpooledMessage(*row) for row in fetch(connection, _spools.RECEIVE, asked)]
        deadline = _arguments.deadline(timeout)
        while True:
            self._signal.clear()
            rows = self._said(_spools.RECEIVE, asked)
            left = None if deadline is None else deadline - time.monotonic()
            if rows or not self._is_open or (left is not None and left <= 0):
                return [SpooledMessage(*row) for row in rows]
            self._signal.wait(self._core.poll if left is None else min(left, self._core.poll))

    def ack(self, message: SpooledMessage | int, *, connection: AnyConnection | None = None) -> int:
        """Acknowledge up to and including a message; return how many deliveries that were."""
        asked = self._named() | {"id": message if isinstance(message, int) else message.id}
        if connection is None:
            return int((self._said(_spools.ACK, asked))[0][0])
        with mapped():
            return int((fetch(connection, _spools.ACK, asked))[0][0])

    def messages(self, *, timeout: float | None = None) -> Iterator[SpooledMessage]:
        """Iterate until nothing has come for `timeout` seconds."""
        while (found := self._next(timeout)) is not None:
            yield found

    def _next(self, timeout: float | None) -> SpooledMessage | None:
        if not self._local:
            if self._last is not None:
                self.ack(self._last)
                self._last = None
            self._local = (self.receive(timeout=timeout))[::-1]
        if self._local:
            self._last = self._local.pop()
            return self._last
        return None

    def _said(self, query: str, params: Any) -> list[Any]:
        def work(connection: AnyConnection) -> list[Any]:
            if connection is not self._joined_on:
                self._enter(connection)
                self._joined_on = connection
            given = params | {"session": self.session} if isinstance(params, dict) else params
            return fetch(connection, query, given)

        return self._link.run(work)

    def _enter(self, connection: AnyConnection) -> None:
        """Begin the member's session, or continue it on another connection, where it was."""
        rows = fetch(connection, _spools.CONNECT, self._named() | self._manner | {"token": self._token})
        self.session = rows[0][0]
        # A session alone is no membership: the connection may have been lost in between.
        joins = not self._is_member
        manner = self._manner | {"resume": not joins, "replay": self._manner["replay"] and joins}
        fetch(connection, _spools.JOIN, self._named() | manner)
        self._is_member = True

    def _end(self) -> None:
        """Say that the session is over, since the server notices the end of a connection later, and close it."""
        if self.session is not None and self._joined_on is not None:
            with contextlib.suppress(PgpsError):
                self._said(_spools.DISCONNECT, self._named())
        self._link.close()

    def _named(self) -> dict[str, Any]:
        return {"group": self.name, "member": self.member, "session": self.session}

    def _heard(self, _payload: str | None) -> None:
        self._signal.set()
