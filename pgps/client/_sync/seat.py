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
from pgps.errors import ClientClosed, ConnectionLost, PgpsError, SessionTaken, TryAgain, WrongState

__all__ = ["Intake", "Seat"]

_log = logging.getLogger("pgps.client")


class Seat:
    """The place that a program has as a named client; occurrences, replies and the tasks beside it ask through it.

    `signal` is set when something has come, or has ended, so that whoever
    waits looks again. `error` is what took the seat away: another program,
    or that the client was dropped. Handlers at work finish when it `is_closed`,
    nobody asks any more when this program `has_left`.
    """

    def __init__(self, core: Core, name: str, token: str, *, take_over: bool, when_ended: Callable[[], None]) -> None:
        self.name = name
        self.core = core
        self.state = State()
        self.error: PgpsError | None = None
        self.is_closed = False
        self.has_left = False
        self.signal = runtime.Signal()
        self.save: Callable[[], bytes | None] | None = None
        """What to store as the event checkpoint when none is given."""
        self._take_over = take_over
        self._when_ended = when_ended
        self._session: int | None = None
        self._token = token
        self._raised: Exception | None = None
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
        self.core.session.patiently(lambda: self.core.hub.attach(self._connected))

    def leave(self) -> None:
        """Stop listening, and let the server see that this program has gone."""
        self.has_left = True
        self.core.use_no_name()
        while self._channels:
            self.core.hub.forget(*self._channels.popitem())
        self.core.hub.detach(self._connected)
        self._session = None

    def end(self, error: PgpsError) -> None:
        """End the session, because another program is this client now or the client was dropped."""
        self.error = error
        self.is_closed = True
        # Whoever greets with the name would be refused, for whatever the connection is.
        self.core.use_no_name()
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
        if self.error is not None:
            return
        resume = self._session
        params = {"client": self.name, "take_over": self._take_over and resume is None, "resume": resume}
        params["token"] = self._token
        try:
            with mapped():
                state = State(*(fetch(connection, _names.CONNECT, params))[0])
            if resume is None:
                self.state = state
            self._session = state.session
            self.core.use_name(self.name, state.session)
        except PgpsError as error:
            if resume is None:
                self._session = None
                self.core.use_no_name()
                raise
            if isinstance(error, ConnectionLost):
                raise
            self.end(error)

    # -----------------------------------------------------------------------------------------------------------------
    # Calls
    # -----------------------------------------------------------------------------------------------------------------

    def has_raised(self, error: BaseException) -> bool:
        """Tell whether this is what a call of this client has raised last, or its end."""
        return error is self._raised or error is self.error

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
            if self.has_left:
                raise ClientClosed(f'client "{self.name}" is closed', hint="Connect again.")
            session = self._session
            full = params | {"client": self.name, "session": session}
            try:
                if connection is None:
                    return self.core.session.rows(query, full, again=again)
                with mapped():
                    return fetch(connection, query, full)
            except ConnectionLost as lost:
                self._raised = lost
                raise
            except SessionTaken as taken:
                # If the connection was lost, this session gets the next number when a new one has been greeted. So the
                # number that was refused may be an old one of its own, and not that of another program.
                self.core.hub.settled()
                if self._session == session:
                    self.end(taken)
                    raise
                if connection is not None:
                    raise TryAgain(
                        f'the session of client "{self.name}" was continued meanwhile',
                        hint="Repeat the whole transaction.",
                        sqlstate="40001",
                    ) from taken

    def is_completed(self, query: str, params: dict[str, Any]) -> bool:
        """Tell whether an occurrence or a reply was completed."""
        return bool((self.rows(query, params | {"channel": self.state.channel}))[0][0])

    def native(self, event_type: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Return a payload with values as psycopg gives them; what cannot become JSON comes without attributes."""
        if not payload:
            return payload
        reader = self._readers.get(event_type)
        if reader is None or reader.keys != payload.keys():
            reader = self._readers[event_type] = Reader(self.core.shape_now(event_type), None)
        value: dict[str, Any] = reader(payload)
        return value


class Intake:
    """Receives one thing after the other, where the next one completes the last.

    When an answer was not seen, because the connection was lost or whoever
    waited was interrupted, it is asked for again before anything is completed.
    `last` is what was received last, here or in the session before: the first values of its row.
    """

    def __init__(self, seat: Seat, receive: str, again: str) -> None:
        self.last: tuple[Any, ...] = (None,)
        self._seat = seat
        self._receive = receive
        self._again = again
        self._is_unsure = False

    def next(self, params: dict[str, Any]) -> list[Any]:
        """Return the row of the next one, [] when there is none."""
        while True:
            rows = self._unseen(params)
            if not rows:
                self._is_unsure = True
                try:
                    rows = self._seat.rows(self._receive, params, again=False)
                except ConnectionLost:
                    continue
            self._is_unsure = False
            return self.had(rows)

    def had(self, rows: list[Any]) -> list[Any]:
        """Note what was received, and return it."""
        self.last = rows[0][:4] if rows else self.last
        return rows

    def _unseen(self, params: dict[str, Any]) -> list[Any]:
        """Return what was received and not seen, if there is such a thing."""
        rows = self._seat.rows(self._again, params) if self._is_unsure else []
        return rows if rows and rows[0][: len(self.last)] != self.last else []
