"""The demonstration's own server and worker."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgps import install
from pgps.embedded import EmbeddedCluster, list_clusters
from pgps.errors import PgpsError
from pgps_demo import scene
from pgps_demo.worker import Worker

__all__ = ["Broker", "remove_leftovers"]

DATABASE = "demo"
KEPT = "demo"


class Broker:
    """An embedded cluster with pgps in database `demo`, and a `pgps-worker` process on it.

    As a context manager it stops the worker on exit and, unless `keep`,
    removes the server with all its data.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.cluster = EmbeddedCluster(KEPT if keep else f"demo-{os.getpid()}", keep=False)
        self._worker = Worker("demo", self.cluster.directory / "worker.log")
        self._complete = False

    def __enter__(self) -> Self:
        remove_leftovers()
        if self.keep and self.cluster.status().state != "absent":
            raise PgpsError(
                "the broker of an earlier demonstration is still there",
                hint=f"Remove it: {self.remove_command}",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop_worker()
        finally:
            if not self.keep or not self._complete:
                self.cluster.destroy()

    def dsn(self, role: str | None = None) -> str:
        """Return how a role connects; None is the superuser."""
        dsn = self.cluster.dsn(DATABASE)
        return dsn if role is None else make_conninfo(dsn, user=role)

    def start_server(self) -> int:
        """Make and start the server; return its major version."""
        self.cluster.start()
        with self.cluster.connect() as connection:
            return connection.info.server_version // 10_000

    def prepare(self) -> None:
        """Make the database, install pgps into it and set the scene."""
        with self.cluster.connect() as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
        install.install(self.dsn())
        scene.build(self.dsn)

    def start_worker(self) -> None:
        """Start `pgps-worker` as a process of its own, under a role that is no superuser."""
        self._worker.start(self.dsn("broker_worker"))

    def check_worker(self) -> None:
        """Raise PgpsError when the worker has ended."""
        self._worker.check()

    def stop_worker(self) -> int | None:
        """Let the worker finish its batch and end; return its exit status, or None when there was no worker."""
        return self._worker.stop()

    def complete(self) -> None:
        """Record that the run was complete: only then does --keep keep the server."""
        self._complete = True

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id."""
        return self._worker.pid

    @property
    def remove_command(self) -> str:
        """Return the command that removes a broker that was kept."""
        return f"python -m pgps.embedded destroy {self.cluster.name}"


def remove_leftovers() -> None:
    """Destroy the brokers of demonstrations that were killed."""
    for status in list_clusters():
        owner = re.fullmatch(r"demo-(\d+)(-\w+)?", status.name)
        if owner and not Path(f"/proc/{owner.group(1)}").exists():
            EmbeddedCluster(status.name).destroy()
