"""The PostgreSQL server of a test run: a container when a Docker engine answers, else an embedded cluster.

One server serves all test processes of a run. The process in which pytest was
called starts it when it is first needed, and removes it at the end. If a run was
killed, the next run removes what it has left behind.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps import install
from pgps.embedded import EmbeddedCluster, layout, list_clusters, process

TEMPLATE = "pgps_template"
# Its log is copied with a cluster.
_LITTLE_WAL = {"min_wal_size": "32MB", "max_wal_size": "32MB"}
_ROOT = Path(__file__).resolve().parent.parent
_HOMES = f"pgps-test-{os.geteuid()}-"
# A file system in memory: a type has some thirty files, and to find a number for each takes ext4 a sixth of a run.
_MEMORY = Path("/dev/shm")
_ROOM = 4 * 1024**3  # twice what the files of a run take


@dataclass(frozen=True)
class Server:
    """A running server with a template database that has pgps installed.

    `base` connects as the superuser to the maintenance database.
    """

    base: str

    def dsn(self, dbname: str) -> str:
        return make_conninfo(self.base, dbname=dbname)

    def clone(self, dbname: str) -> str:
        """Make a database from the template and return its connection string."""
        with psycopg.connect(self.base, autocommit=True) as connection:
            when_alone(connection, f'create database "{dbname}" template {TEMPLATE} strategy file_copy')
        return self.dsn(dbname)

    def drop(self, dbname: str) -> None:
        with psycopg.connect(self.base, autocommit=True) as connection:
            when_alone(connection, f'drop database if exists "{dbname}" with (force)')


def when_alone(connection: psycopg.Connection, statement: str) -> None:
    """Run a statement that wants a database without sessions in it.

    The server ends those that it may, autovacuum's among them, and waits five seconds for them: on a busy machine not
    always enough.
    """
    deadline = time.monotonic() + 60.0
    while True:
        try:
            connection.execute(statement.encode())
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
        else:
            return


class Run:
    """What one test run has made, to be removed when it ends."""

    def __init__(self) -> None:
        _remove_leftovers()
        self._stack = contextlib.ExitStack()
        self._server: Server | None = None
        self.home = Path(tempfile.mkdtemp(prefix=f"{_HOMES}{os.getpid()}-", dir=_where_there_is_room()))
        # The server runs as another user, who has to be able to enter this directory.
        self.home.chmod(0o711)

    def server(self) -> Server:
        if self._server is None:
            base = self._stack.enter_context(_container() if _docker_answers() else _embedded(self.home))
            self._server = Server(base)
            make_template(base)
        return self._server

    def close(self) -> None:
        self._stack.close()
        _remove_home(self.home)


@contextlib.contextmanager
def _embedded(home: Path) -> Iterator[str]:
    # Each test process has a database of its own, and together they need more connections than the default allows.
    settings = {"max_connections": "300", "max_wal_size": "256MB"}
    with EmbeddedCluster("tests", fast=True, home=home, settings=settings, keep=False) as cluster:
        yield cluster.dsn()


@contextlib.contextmanager
def _container() -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not ours to mend
        from testcontainers.community.postgres import PostgresContainer
        from testcontainers.core.image import DockerImage

        image = DockerImage(
            path=str(_ROOT), dockerfile_path="docker/Dockerfile", tag="pgps-postgres:test", target="server"
        )
        with image, PostgresContainer(str(image), username="pgps", password="pgps", driver=None) as container:
            yield make_conninfo(container.get_connection_url(), dbname="postgres")


def _docker_answers() -> bool:
    answer = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not ours to mend
        with contextlib.suppress(Exception):
            from testcontainers.core.docker_client import DockerClient

            client = DockerClient(timeout=5).client
            answer = bool(client.ping())
            client.close()
        gc.collect()  # now, where they are ignored: sockets the attempt left open
    return answer


def make_template(base: str) -> None:
    """Make the database that others are cloned from; `base` leads to the server's maintenance database."""
    with psycopg.connect(base, autocommit=True) as connection:
        connection.execute(f"create database {TEMPLATE}".encode())
        install.install(make_conninfo(base, dbname=TEMPLATE))
        connection.execute(f"alter database {TEMPLATE} is_template true allow_connections false".encode())


def copied_cluster(name: str, *, home: Path, mold: int = 0, settings: dict[str, str] | None = None) -> EmbeddedCluster:
    """Return a cluster, not started, that has the template: the copy of one that is made once in a run.

    Copies of one mold have the same system identifier: brokers that are to meet each other come from different ones.
    """
    molded = EmbeddedCluster(f"mold-{mold}", fast=True, home=home, settings=_LITTLE_WAL)
    with filelock.FileLock(home / f"mold-{mold}.lock"):
        if molded.status().state == "absent":
            try:
                with molded:
                    make_template(molded.dsn())
            except BaseException:
                molded.destroy()
                raise
    places = layout.Places.of(home, name)
    # The files belong to the server's user, who is not always ours. Made aside: whoever lists the clusters meanwhile
    # would read a record of which a part is copied.
    made = places.directory.parent.parent / f"copy-{name}"
    subprocess.run(["cp", "--archive", molded.directory, made], check=True)
    made.rename(places.directory)
    places.log.unlink()
    if not places.socket.exists():
        places.socket.mkdir(mode=0o700)
        process.server_user().own(places.socket)
    record = layout.Record.read(places)
    assert record is not None
    record.with_changes(port=0, settings=settings or {}).write(places)
    return EmbeddedCluster(name, home=home, keep=False)


def _where_there_is_room() -> Path:
    """Return memory, if there is room for a run, and some is left for its processes; else the temporary directory."""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if available and int(available.group(1)) * 1024 > 2 * _ROOM and os.access(_MEMORY, os.W_OK | os.X_OK):
        if shutil.disk_usage(_MEMORY).free > _ROOM:
            return _MEMORY
    return Path(tempfile.gettempdir())


def _remove_leftovers() -> None:
    """What runs have left that were killed. Two that begin at once take turns, so that none removes what is gone."""
    with filelock.FileLock(Path(tempfile.gettempdir()) / f"{_HOMES}leftovers.lock"):
        _remove_homes_of_the_dead()


def _remove_homes_of_the_dead() -> None:
    for home in [*Path(tempfile.gettempdir()).glob(_HOMES + "*"), *_MEMORY.glob(_HOMES + "*")]:
        owner = re.match(r"(\d+)-", home.name.removeprefix(_HOMES))
        if owner and not Path(f"/proc/{owner.group(1)}").exists():
            # A run that has ended since they were listed has removed its own.
            with contextlib.suppress(FileNotFoundError):
                if home.stat().st_uid == os.geteuid():
                    _remove_home(home)


def _remove_home(home: Path) -> None:
    for status in list_clusters(home=home):
        EmbeddedCluster(status.name, home=home).destroy()
    shutil.rmtree(home, ignore_errors=True)


_RUN = pytest.StashKey[Run]()


def _run_of(config: pytest.Config) -> Run:
    if _RUN not in config.stash:
        config.stash[_RUN] = Run()
    return config.stash[_RUN]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a test process of pytest-xdist the server's address."""
    run = _run_of(node.config)
    node.workerinput["pgps_server"] = run.server().base
    node.workerinput["pgps_home"] = str(run.home)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _RUN in config.stash:
        config.stash[_RUN].close()


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Server:
    """The server of this run."""
    given = getattr(pytestconfig, "workerinput", None)
    return Server(given["pgps_server"]) if given else _run_of(pytestconfig).server()


@pytest.fixture(scope="session")
def embedded_home(pytestconfig: pytest.Config) -> Path:
    """Where embedded clusters of this run live; all of them are destroyed at its end."""
    given = getattr(pytestconfig, "workerinput", None)
    return Path(given["pgps_home"]) if given else _run_of(pytestconfig).home
