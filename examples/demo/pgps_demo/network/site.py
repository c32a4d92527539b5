"""The brokers of a network: embedded servers, databases in them, and a worker for each."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from pgps.embedded import EmbeddedCluster
from pgps.errors import PgpsError
from pgps_demo.worker import Worker

__all__ = ["Server", "Site", "at_once", "running", "wait_for"]

_LOOK_EVERY = 0.2
# If nothing changes for so many seconds, something is wrong.
_PATIENCE = 60.0
_STANDING: tuple[LiteralString, ...] = (
    "select name as link, state, lag_events, events_sent, events_received, last_error from pgps.links order by name",
    "select name as subscription, depth, delivered, retrying, failed, last_error from pgps.subscriptions order by name",
    "select event_type, published, waiting from pgps.activity order by event_type",
)


@dataclass(slots=True)
class Server:
    """An embedded cluster of this run."""

    name: str
    cluster: EmbeddedCluster = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = EmbeddedCluster(f"demo-{os.getpid()}-{self.name}")

    def start(self, database: str) -> None:
        """Start it, make a database, and install pgps into it."""
        self.cluster.start()
        with self.cluster.connect() as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(database)))
        # Run in a process of its own, so that several servers can be installed at once.
        command = [sys.executable, "-m", "pgps.cli", "install", self.cluster.dsn(database)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PgpsError(f"installing pgps into {database} failed:\n{done.stderr.strip()}")


@dataclass(slots=True)
class Site:
    """A broker: a database of a server, and a worker on it."""

    name: str
    server: Server
    worker: Worker = field(init=False)

    def __post_init__(self) -> None:
        self.worker = Worker(self.name, self.server.cluster.directory / f"worker-{self.name}.log")

    def dsn(self, role: str | None = None) -> str:
        """Return how a role connects; None is the superuser."""
        dsn = self.server.cluster.dsn(self.name)
        return dsn if role is None else make_conninfo(dsn, user=role)

    def run(self, script: str, role: str | None = None) -> None:
        """Run a script of the directory scene."""
        text = (resources.files("pgps_demo.network") / "scene" / f"{script}.sql").read_bytes()
        with psycopg.connect(self.dsn(role)) as connection:
            connection.execute(text)

    def call(self, query: LiteralString, parameters: Sequence[Any] = (), *, role: str = "broker_admin") -> None:
        """Run one statement."""
        with psycopg.connect(self.dsn(role), autocommit=True) as connection:
            connection.execute(query, parameters)

    def rows(
        self, query: LiteralString, parameters: Sequence[Any] = (), *, role: str = "broker_admin"
    ) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        with psycopg.connect(self.dsn(role), row_factory=dict_row) as connection:
            return connection.execute(query, parameters).fetchall()

    def start_worker(self) -> None:
        """Start its worker."""
        self.worker.start(self.dsn("broker_worker"))


def at_once(do: Callable[[Any], None], each: Sequence[Any]) -> None:
    """Do something for each at the same time; raises the first error."""
    with ThreadPoolExecutor(len(each)) as pool:
        list(pool.map(do, each))


@contextlib.contextmanager
def running(servers: Sequence[Server], sites: Sequence[Site]) -> Iterator[None]:
    """Stop all workers on exit, and remove the servers with all their data."""
    try:
        yield
    finally:
        for site in sites:
            site.worker.ask_to_stop()
        for site in sites:
            site.worker.stop()
        for server in servers:
            server.cluster.destroy()


def wait_for(look: Callable[[], object], sites: Sequence[Site], what: str) -> None:
    """Wait until `look` returns True; any other result is the current state, which has to change from time to time."""
    moved, before = time.monotonic(), object()
    while (now := look()) is not True:
        for site in sites:
            site.worker.check()
        if now != before:
            moved, before = time.monotonic(), now
        elif time.monotonic() - moved > _PATIENCE:
            standing = "\n".join(f"{site.name}: {_standing(site)}" for site in sites)
            raise PgpsError(f"nothing has moved for {_PATIENCE:.0f} seconds, waiting for {what}: {now}\n{standing}")
        time.sleep(_LOOK_EVERY)


def _standing(site: Site) -> str:
    """Return the state of a broker as text: its links, what is late, what failed."""
    with contextlib.suppress(psycopg.Error):
        found = [site.rows(query) for query in _STANDING]
        return ", ".join(" ".join(f"{key}={value}" for key, value in row.items()) for rows in found for row in rows)
    return "cannot be asked"
