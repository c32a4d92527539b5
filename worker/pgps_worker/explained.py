"""What an error of the server means to somebody who starts a worker, and what to type."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg

from pgps._catalogue import INSTALLED
from pgps.errors import InstallError, PgpsError, from_database
from pgps_worker.connection import connect_here

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig

__all__ = ["explained"]

_STATEMENT_TIMEOUT = 10.0


def explained(config: WorkerConfig, error: psycopg.Error) -> PgpsError:
    """Return the pgps error for what PostgreSQL reported to a worker, with a hint where the server gave none."""
    told = from_database(error)
    if told.hint is not None:
        return told
    if told.sqlstate == "08006":
        told.hint = "See whether the server runs, and what --dsn says: pgps doctor --dsn DSN"
        return told
    with contextlib.suppress(psycopg.Error):
        found = connect_here(config, "explained", statement_timeout=_STATEMENT_TIMEOUT)
        with contextlib.closing(found) as connection:
            row = connection.execute(INSTALLED).fetchone()
            role = connection.info.user
        if row is not None and not row[0]:
            said = f'pgps is not installed in database "{row[1]}"'
            return InstallError(said, hint="Install it: pgps install DSN", sqlstate=told.sqlstate)
        if told.sqlstate == "42501":
            told.hint = f'A worker needs the rights of pgps_worker: grant pgps_worker to "{role}"'
        elif told.sqlstate == "42883":
            told.hint = "The database is of another release: pgps upgrade DSN"
    return told
