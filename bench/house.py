"""What all benchmarks share: a private cluster, databases in it, workers, progress."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

from pgps import install
from pgps.embedded import EmbeddedCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress, TaskID

__all__ = ["PGPS", "House", "opened"]

# Durable, and with so much room in the WAL that no checkpoint happens during one half of a pair.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "track_commit_timestamp": "on",
}
PGPS = "bench_template"
"""The template database in which pgps is installed."""
_REPORTED = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level", "wal_sync_method",
    "shared_buffers", "max_wal_size", "checkpoint_timeout", "autovacuum", "jit",
    "track_commit_timestamp", "max_connections",
)  # fmt: skip


@dataclass(slots=True)
class House:
    """The cluster of a run; `quick` trades precision for time."""

    cluster: EmbeddedCluster
    runs: int
    quick: bool
    progress: Progress
    task: TaskID
    settings: dict[str, str] = field(default_factory=lambda: SETTINGS)
    """Of its cluster, and of those that are made beside it."""
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])
    _databases: int = 0
    _servers: int = 0
    _made: dict[str, float] = field(default_factory=dict)

    def prepare(self) -> None:
        """Install pgps once; the databases of the benchmarks are cloned from there."""
        with self.cluster.connect() as connection:
            connection.execute(f"create database {PGPS}".encode())
        install.install(self.cluster.dsn(PGPS))

    @contextlib.contextmanager
    def another(self) -> Iterator[House]:
        """Run one more server with pgps, with the same settings, while the block lasts."""
        self._servers += 1
        name = f"{self.cluster.name}-{self._servers}"
        with EmbeddedCluster(name, settings=self.settings, keep=False) as cluster:
            house = House(cluster, self.runs, self.quick, self.progress, self.task, self.settings)
            house.prepare()
            yield house

    def made(self, name: str, make: Callable[[str], float]) -> float:
        """Make a template that takes long to make, once; return what `make` did, given its connection string."""
        if name not in self._made:
            with self.cluster.connect() as connection:
                connection.execute(f"create database {name} template {PGPS}".encode())
            self._made[name] = make(self.cluster.dsn(name))
        return self._made[name]

    @contextlib.contextmanager
    def database(self, template: str = PGPS) -> Iterator[str]:
        """Clone a database with pgps; yield its connection string, and drop it."""
        self._databases += 1
        name = f"bench_{self._databases}"
        with self.cluster.connect() as connection:
            connection.execute(f"create database {name} template {template}".encode())
        try:
            yield self.cluster.dsn(name)
        finally:
            with self.cluster.connect() as connection:
                connection.execute(f"drop database {name} with (force)".encode())

    def pairs(self, runs: int | None = None) -> Iterator[int]:
        """Yield the numbers of the runs of a benchmark, and show its progress."""
        for number in range(runs or self.runs):
            yield number
            self.progress.advance(self.task)

    def say(self, text: str) -> None:
        """Show what is going on."""
        self.progress.update(self.task, description=text)

    def scale(self, full: int, quick: int) -> int:
        """Return how much work to do: less in a quick run."""
        return quick if self.quick else full

    def checkpoint(self) -> None:
        """Write the pages that earlier runs changed, so that the next run does not pay for it."""
        with self.cluster.connect() as connection:
            connection.execute("checkpoint")

    def describe(self) -> dict[str, str]:
        """Return the server's version and the settings that matter."""
        with self.cluster.connect() as connection:
            rows = connection.execute(
                "select name, current_setting(name) from pg_settings where name = any (%s)", [list(_REPORTED)]
            ).fetchall()
        return dict(rows)


def alternate(number: int, first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float]:
    """Measure both in alternating order, so that a slow drift of the machine affects both alike."""
    if number % 2 == 0:
        one = first()
        return one, second()
    two = second()
    return first(), two


@contextlib.contextmanager
def opened(dsn: str, *, autocommit: bool = True) -> Iterator[psycopg.Connection]:
    """Open a connection and close it at the end of the block; leaving the block never commits."""
    with contextlib.closing(psycopg.connect(dsn, autocommit=autocommit)) as connection:
        yield connection


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds a call took."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextlib.contextmanager
def worker(dsn: str) -> Iterator[int]:
    """Run a worker at its default settings, with a worker's rights; yield its process id once it dispatches."""
    with opened(dsn) as connection:
        role = (
            "do 'begin create role broker_worker login in role pgps_worker; exception when duplicate_object then end'"
        )
        connection.execute(role.encode())
    login = make_conninfo(dsn, user="broker_worker")
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, "-m", "pgps_worker", "--dsn", login], stderr=log, cwd=_root())
        try:
            _wait_for_dispatcher(dsn, process)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_dispatcher(dsn: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    with opened(dsn) as connection:
        # It first checks that nothing was missed and then sleeps, so its connection is idle after a dispatch.
        while not connection.execute(
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and application_name like 'pgps-worker/%/dispatcher' and state = 'idle' and query like '%dispatch%')"
        ).fetchall()[0][0]:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the worker does not dispatch (exit status {process.poll()})")
            time.sleep(0.05)


def _root() -> Path:
    return Path(__file__).resolve().parent.parent
