"""The server that tests use, and its databases, each a copy of one in which pgps was installed."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgps import _scripts, install
from pgps.embedded import EmbeddedCluster, list_clusters

__all__ = ["Server", "embedded_server", "given_server"]

_CLUSTER = "testing-"
_counter = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Server:
    """A server and its template; `base` connects a superuser to its maintenance database."""

    base: str
    template: str

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Make a database with pgps, give its connection string, and drop it with whoever is still connected."""
        name = sql.Identifier(f"pgps_test_{os.getpid()}_{next(_counter)}")
        with psycopg.connect(self.base, autocommit=True) as connection:
            connection.execute(sql.SQL("create database {} template {}").format(name, sql.Identifier(self.template)))
            try:
                yield make_conninfo(self.base, dbname=name.as_string(None).strip('"'))
            finally:
                connection.execute(sql.SQL("drop database if exists {} with (force)").format(name))


def given_server(dsn: str) -> Server:
    """Return a server that is there, with a template of this release, which is made once and kept."""
    template = f"pgps_testing_{_scripts.code_digest()[:16]}"
    # Several test processes may begin at once.
    turn = filelock.FileLock(Path(tempfile.gettempdir()) / f"{template}_{os.getuid()}.lock")
    with turn, psycopg.connect(dsn, autocommit=True) as connection:
        query = "select datistemplate from pg_database where datname = %s"
        found = connection.execute(query, [template]).fetchone()
        if found is None or not found[0]:
            _make_template(connection, make_conninfo(dsn, dbname=template), sql.Identifier(template))
    return Server(dsn, template)


def _make_template(connection: psycopg.Connection, dsn: str, template: sql.Identifier) -> None:
    # What is there and no template yet was left by a run that was stopped while it made it.
    connection.execute(sql.SQL("drop database if exists {} with (force)").format(template))
    connection.execute(sql.SQL("create database {} template template0").format(template))
    install.install(dsn)
    connection.execute(sql.SQL("alter database {} is_template true allow_connections false").format(template))


@contextlib.contextmanager
def embedded_server() -> Iterator[Server]:
    """Make an embedded cluster for this process, and remove it behind the block."""
    _remove_leftovers()
    with EmbeddedCluster(f"{_CLUSTER}{os.getpid()}", fast=True, keep=False) as cluster:
        yield given_server(cluster.dsn())


def _remove_leftovers() -> None:
    """Remove the clusters of test processes that were killed before they could do so."""
    for status in list_clusters():
        owner = re.fullmatch(_CLUSTER + r"(\d+)", status.name)
        if owner and status.state != "unreadable" and not _is_running(int(owner.group(1))):
            EmbeddedCluster(status.name).destroy()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
