"""Sessions whose role, database or server limits how long a statement may take (statement_timeout)."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from pgps.errors import host_names

__all__: list[str] = []

_UNLIMITED: LiteralString = "select pg_catalog.set_config('statement_timeout', '0', true); "
_RETRIES = Retrying(
    retry=retry_if_exception_type(psycopg.errors.QueryCanceled), stop=stop_after_attempt(100), reraise=True
)


def connect(dsn: str, application_name: str) -> psycopg.Connection:
    """Open a session whose statements may take as long as they need. Raises ConfigError when no host can be that."""
    with host_names():
        connection = psycopg.connect(dsn, fallback_application_name=application_name)
    lift(connection)
    return connection


def lift(connection: psycopg.Connection[Any]) -> None:
    """Let the statements of a session take as long as they need.

    This is not asked for when connecting, because poolers refuse that.
    """
    settle(connection, "select pg_catalog.set_config('statement_timeout', '0', false)")


def limit(connection: psycopg.Connection[Any], seconds: float) -> None:
    """Let each statement of a session take so many seconds, whatever was set before; 0: as long as it needs."""
    lift(connection)
    if seconds:
        milliseconds = str(round(seconds * 1000))
        connection.execute("select pg_catalog.set_config('statement_timeout', %s, false)", [milliseconds])


def settle(connection: psycopg.Connection[Any], settings: LiteralString) -> None:
    """Change settings of a session; again when the timeout was too short even for that.

    A timeout that ends just as a message ends strikes the next one, whose answer then comes as that of the message
    after it. So the limit is lifted for this message first, and the server heeds or stops the clock within it.
    """
    given = connection.autocommit
    connection.autocommit = True
    _RETRIES(connection.execute, _UNLIMITED + settings, prepare=False)
    connection.autocommit = given
