"""Connections that cannot hang: every one is named, has time limits, and notices a dead peer."""

from __future__ import annotations

import contextlib
import select
from typing import TYPE_CHECKING, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgps.errors import PgpsError, host_names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pgps_worker.config import WorkerConfig
    from pgps_worker.stop import Stop

__all__ = ["Connection", "connect", "connect_here", "in_one_line", "is_alive", "notified", "take_notifications"]

Connection: TypeAlias = psycopg.AsyncConnection[tuple[object, ...]]

# These settings hold for every session. They travel as start-up options, so that RESET ALL in or after a callback
# returns to them and not to the server's defaults. With client_connection_check_interval the server ends a callback and
# releases its locks within a second of the worker's death, instead of when the callback ends. Statements are short and
# their plans are cached, so compiling them (jit) does not pay: it took 570 ms of a run_subscriber that takes 2 ms
# without. A database may have another default isolation level, in which no position can be moved, its own way to write
# times, and a lock_timeout, for which a filter or callback that waits for a lock would be blamed.
_SESSION = {
    "client_connection_check_interval": "1s",
    "datestyle": "ISO",
    "default_transaction_isolation": "read committed",
    "quote_all_identifiers": "off",
    "idle_in_transaction_session_timeout": "60s",
    "jit": "off",
    "lock_timeout": "0",
    "row_security": "on",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
_LIBPQ = {
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "11000",
}


@contextlib.asynccontextmanager
async def connect(
    config: WorkerConfig, service: str, *, statement_timeout: float, settings: dict[str, str] | None = None
) -> AsyncIterator[Connection]:
    """Open a connection of `service` in autocommit, and close it behind the block.

    `statement_timeout` is in seconds; `settings` are further server settings.
    Nothing is prepared by name: a filter or callback that runs in the session
    could replace a prepared statement, and have its own run with the worker's
    rights. Raises psycopg.OperationalError when the server cannot be reached,
    ConfigError when no host can have such a name.
    """
    params = _params(config, service, statement_timeout, settings or {})
    with host_names():
        connection = await psycopg.AsyncConnection.connect(autocommit=True, prepare_threshold=None, **params)  # type: ignore[arg-type]
    try:
        yield connection
    finally:
        await connection.close()


def connect_here(config: WorkerConfig, service: str, *, statement_timeout: float) -> psycopg.Connection:
    """Open a connection as `connect` does, in a thread that may be blocked, which closes it.

    Raises what `connect` does.
    """
    params = _params(config, service, statement_timeout, {})
    with host_names():
        return psycopg.connect(autocommit=True, prepare_threshold=None, **params)  # type: ignore[arg-type]


def _params(config: WorkerConfig, service: str, statement_timeout: float, settings: dict[str, str]) -> dict[str, str]:
    given = conninfo_to_dict(config.dsn)
    session = _SESSION | {"statement_timeout": f"{statement_timeout * 1000:.0f}ms"} | settings
    params = _LIBPQ | {key: str(value) for key, value in given.items() if value is not None}
    params["application_name"] = f"pgps-worker/{config.name}/{service}"
    params["options"] = " ".join([str(given.get("options") or ""), *map(_option, session.items())]).strip()
    return params


def is_alive(connection: Connection) -> bool:
    """Return False when the server has hung up on an idle connection; costs a system call, no round trip.

    So a session that died while it was idle is told apart from one that a callback killed.
    """
    # What the server sent before it hung up has to be read first; only then the end of the connection shows.
    while not connection.closed and select.select([connection.fileno()], [], [], 0)[0]:
        try:
            connection.pgconn.consume_input()
        except psycopg.OperationalError:
            return False
    return not connection.closed


async def notified(connection: Connection, timeout: float, *, stop: Stop) -> set[str]:  # noqa: ASYNC109
    """Wait for a notification and return the channels; none after `timeout` seconds or when asked to stop.

    A notification that came while a statement ran counts, too.
    """
    told = set()
    # A notification that came in one packet with the last answer is already in libpq's buffer, while psycopg would wait
    # for the next packet.
    while notify := connection.pgconn.notifies():
        told.add(notify.relname.decode())
    if not told:
        async with stop.cuts_short():
            async for one in connection.notifies(timeout=timeout, stop_after=1):
                told.add(one.channel)
    return told


def in_one_line(error: BaseException | None) -> str:
    """Return what an error says, without its context, for a log of one line each."""
    if isinstance(error, PgpsError):
        text: str | None = error.message
    else:
        text = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return " ".join((text or str(error)).split())


def take_notifications(connection: Connection) -> int:
    """Take the notifications that libpq has read already, and return how many there were."""
    taken = 0
    while connection.pgconn.notifies():
        taken += 1
    return taken


def _option(setting: tuple[str, str]) -> str:
    name, value = setting
    escaped = value.replace("\\", "\\\\").replace(" ", "\\ ")
    return f"-c {name}={escaped}"
