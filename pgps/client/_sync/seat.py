# Made by tools/unasync_client.py from pgps/client/_async/seat.py: change that, then `make generate`.
"""The session of a program that is known by name: one program has it at a time, and it outlives lost connections."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pgps.client import _names
from pgps.client._names import State
from pgps.client._sync import runtime
from pgps.client._sync.core import Core
from pgps.client._sync.hub import Heard
from pgps.client._sync.session import AnyConnection, fetch, is_pooled
from pgps.client._wire import mapped
from pgps.client.events import Reader
from pgps.errors import ConnectionLost, PgpsError, SessionTaken, WrongState

__all__ = ["Seat"]

_log = logging.getLogger("pgps.client")


class Seat:
    """The place that a program has as a named client; occurrences, replies and the tasks beside it ask through it.

    `signal` is set when something has come, or has ended, so that whoever
    waits looks again. `error` is what took the seat away: another program,
    or that the client was dropped.
    """

    def __init__(self, core: Core, name: str, *, take_over: bool, when_ended: Callable[[], None]) -> None:
        self.name = name
        self.core = core
        self.state = State()
        self.error: PgpsError | None = None
        self.is_closed = False
        self.signal = runtime.Signal()
        self._take_over = take_over
        self._when_ended = when_ended
        self._session: int | None = None
        self._channels: dict[str, Heard] = {}
        self._readers: dict[str, Reader] = {}

    @property
    def is_taken(self) -> bool:
        """Whether this program has had a session."""
        return self._session is not None

    def take(self) -> None:
        """Begin a session; see Identity.connect."""
        if self.core.session.run(is_pooled):
            raise WrongState(
                f'client "{self.name}" needs a session of its own, and there is a pooler between',
                hint="Connect to the server itself.",
                sqlstate="55000",
            )
        self.core.hub.attach(self._connected)

    def leave(self) -> None:
        """Stop listening, and let the server see that this program has gone."""
        for channel, heard in self._channels.items():
            self.core.hub.forget(channel, heard)
        self.core.hub.detach(self._connected)
        self.core.use_no_name()

    def end(self, error: PgpsError) -> None:
        """End the session, because another program is this client now or the client was dropped."""
        self.error = error
        self.is_closed = True
        self._when_ended()
        self.signal.set()
        _log.error("client %s ends: %s", self.name, error.message)

    def listen(self, channel: str, heard: Heard) -> None:
        """Listen on the channels until the seat is left; on each of them once."""
        if channel not in self._channels:
            self.core.hub.listen(channel, heard)
            self._channels[channel] = heard

    def _connected(self, connection: AnyConnection) -> None:
        """Begin a session on a connection that listens, and again when there is a new one."""
        params = {"client": self.name, "take_over": self._take_over and self._session is None, "resume": self._session}
        try:
            with mapped():
                state = State(*(fetch(connection, _names.CONNECT, params))[0])
        except ConnectionLost:
            raise
        except PgpsError as error:
            if self._session is None:
                raise
            return self.end(error)
        if self._session is None:
            self.state = state
        self._session = state.session
        self.core.use_name(self.name, state.session)
        return None

    # -----------------------------------------------------------------------------------------------------------------
    # Calls
    # -----------------------------------------------------------------------------------------------------------------

    def raise_error(self) -> None:
        """Raise what took the seat away."""
        if self.error is not None:
            raise self.error

    def rows(
        self, query: str, params: dict[str, Any], connection: AnyConnection | None = None, *, again: bool = True
    ) -> list[Any]:
        """Run a call of this client; with a connection, in its transaction."""
        while True:
            self.raise_error()
            session = self._session
            full = params | {"client": self.name, "session": session}
            try:
                if connection is None:
                    return self.core.session.rows(query, full, again=again)
                with mapped():
                    return fetch(connection, query, full)
            except SessionTaken as taken:
                # If the connection was lost, this session gets the next number when a new one has been greeted. So the
                # number that was refused may be an old one of its own, and not that of another program.
                self.core.hub.settled()
                if connection is not None or self._session == session:
                    if self._session == session:
                        self.end(taken)
                    raise

    def received(self, query: str, params: dict[str, Any], again: str, last: int | None) -> list[Any]:
        """Receive; if the answer is lost, look what it was: to receive again would complete what nobody has seen."""
        try:
            return self.rows(query, params, again=False)
        except ConnectionLost:
            rows = self.rows(again, {})
            return rows if rows and rows[0][0] != last else self.rows(query, params, again=False)

    def is_completed(self, query: str, number: int) -> bool:
        """Tell whether an occurrence or a reply was completed."""
        return bool((self.rows(query, {"id": number, "channel": self.state.channel}))[0][0])

    def native(self, event_type: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Return a payload with values as psycopg gives them."""
        reader = self._readers.get(event_type)
        if reader is None or reader.keys != payload.keys():
            reader = self._readers[event_type] = Reader(self.core.shape_now(event_type), None)
        value: dict[str, Any] = reader(payload)
        return value
