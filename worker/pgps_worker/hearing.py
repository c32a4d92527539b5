"""How the dispatcher hears that something was published: in a session of its own, and not when somebody floods it.

Every role may NOTIFY, whatever and as often as it likes, and the server sends all of it to whoever listens before it
takes the next statement. So the session that dispatches does not listen itself. When far more notifications come than
events, the one that does is closed, and the dispatcher looks by itself, until it listens again some time later; the
server keeps nothing for it meanwhile.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import psycopg

from pgps_worker.connection import connect_here, in_one_line

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig
    from pgps_worker.wire import Wire

__all__ = ["DEAF_POLL", "FLOOD", "Hearing"]

log = logging.getLogger(__name__)

FLOOD = 100
"""So many notifications more than events in a second are no publishers', each of whom sends one for its events."""
DEAF_POLL = 0.010
"""Seconds between looks while nobody listens."""
_DEAF, _DEAF_MOST = 1.0, 60.0
_SPAN = 1.0
_STATEMENT_TIMEOUT = 10.0


class Hearing:
    """Waits for notifications of a channel beside a wire. Its calls block, but `close`."""

    def __init__(self, config: WorkerConfig, wire: Wire, channel: str) -> None:
        self._config = config
        self._wire = wire
        self._channel = channel
        self._connection: psycopg.Connection | None = None
        self._socket = -1
        self._deaf_until = 0.0
        self._patience = _DEAF
        self._opened = self._since = 0.0
        self._surplus = 0

    def listen(self) -> bool:
        """Begin to listen, unless it is too early after a flood; return whether it listens from now on."""
        now = time.monotonic()
        if self._connection is not None:
            return True
        if now < self._deaf_until:
            return False
        try:
            connection = connect_here(self._config, "dispatcher-ear", statement_timeout=_STATEMENT_TIMEOUT)
            connection.execute(f'listen "{self._channel}"'.encode())
        except psycopg.Error as error:
            log.warning("dispatcher: nobody hears publishers, it looks by itself: %s", in_one_line(error))
            self._deaf_until = now + self._patience
            return False
        self._connection, self._socket, self._opened = connection, connection.fileno(), now
        self._wire.heed(self)
        return True

    def close(self) -> None:
        """Listen no more."""
        if self._connection is not None:
            self._wire.ignore(self)
            self._connection.close()
            self._connection = None

    def fileno(self) -> int:
        """Return the socket that is readable when something may have come."""
        return self._socket

    def rung(self) -> int:
        """Return how many notifications have come in so many bytes as one look takes; the socket has the others."""
        assert self._connection is not None
        told = 0
        try:
            self._connection.pgconn.consume_input()
            while self._connection.pgconn.notifies():
                told += 1
        except psycopg.OperationalError as error:
            log.warning("dispatcher: the session that hears publishers is gone: %s", in_one_line(error))
            self._be_deaf()
            return 1
        self._surplus += told
        return told

    def notified(self, timeout: float) -> int:
        """As of the wire: return how many notifications and rings have come within so many seconds."""
        if self._connection is None:
            # What came while nobody listened is looked for at once.
            return 0 if self.listen() else self._wire.notified(min(timeout, DEAF_POLL))
        told = self._wire.notified(timeout)
        now = time.monotonic()
        if now > self._since + _SPAN:
            self._since, self._surplus = now, told
        elif self._surplus > FLOOD:
            log.warning(
                "dispatcher: far more notifications come on channel %s than events; it looks by itself", self._channel
            )
            self._be_deaf()
        return told

    def found(self, events: int) -> None:
        """Take note of a look that has found so many events."""
        self._surplus = max(0, self._surplus - events)

    def _be_deaf(self) -> None:
        self.close()
        now = time.monotonic()
        self._patience = min(2 * self._patience, _DEAF_MOST) if now < self._opened + _SPAN else _DEAF
        self._deaf_until = now + self._patience
        self._surplus = 0
