"""How publishers wake the dispatcher where they cannot use NOTIFY, because their transaction may be prepared.

The bell is a session of its own that waits in the server. A publisher interrupts
it there, at once and independently of the publisher's transaction, and then the
dispatcher looks again and again until that transaction has ended. Publishers ring
only while the dispatcher sleeps.
"""

from __future__ import annotations

import contextlib
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from psycopg import errors
from psycopg.pq import ExecStatus

from pgps_worker.connection import connect

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig
    from pgps_worker.connection import Connection

__all__ = ["Bell", "hang"]


class Bell:
    """A session that nobody else uses and that always waits in the server once it was looked at; no call blocks."""

    def __init__(self, connection: Connection) -> None:
        self.pid = connection.info.backend_pid
        self._pgconn = connection.pgconn
        self._heard = 0
        self._waiting = False

    def fileno(self) -> int:
        """Return the socket that is readable when there may have been a ring."""
        return self._pgconn.socket

    def rung(self) -> bool:
        """Return whether it was rung since the last look. Raises psycopg.OperationalError when its session is gone."""
        if not self._waiting:
            self._wait()
        self._pgconn.consume_input()
        rung = False
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                self._wait()
            elif result.status == ExecStatus.TUPLES_OK:
                heard = int(result.get_value(0, 0) or 0)
                rung = rung or heard > self._heard
                self._heard = heard
            else:
                # The interruption came at a moment at which the waiting function could not notice it.
                with contextlib.suppress(errors.QueryCanceled):
                    raise errors.error_from_result(result)
                rung = True
        return rung

    def _wait(self) -> None:
        self._waiting = True
        self._pgconn.send_query_params(b"select pgps.await_ring($1::bigint)", [str(self._heard).encode()])
        # The few bytes of this query fit into the socket's buffer, so that sending them does not block.
        self._pgconn.flush()


async def hang(config: WorkerConfig, connection: Connection, stack: AsyncExitStack) -> Bell | None:
    """Open a bell that lasts as long as `stack`; None where no transaction can be prepared, and publishers NOTIFY."""
    row = await (await connection.execute("show max_prepared_transactions")).fetchone()
    if row == ("0",):
        return None
    return Bell(await stack.enter_async_context(connect(config, "bell", statement_timeout=0)))
