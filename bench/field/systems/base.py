"""The interface of a system for the experiments."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlencode

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.field.crew import Records
from bench.field.plan import PORTFOLIOS
from bench.house import opened
from pgps.embedded.process import server_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import psycopg

    from bench.field.crew import Program
    from bench.field.plan import Plan
    from bench.house import House

__all__ = [
    "APP",
    "Database",
    "Session",
    "System",
    "daemon",
    "database",
    "directory",
    "free_port",
    "listens",
    "processes",
]

APP = "field_app"
"""The role of the applications, which owns its database and nothing else."""
_PASSWORD = secrets.token_urlsafe(12)


@dataclass(slots=True)
class Session:
    """A system that is ready for one plan.

    `dsn` is the application's database; `pids` are the processes of servers
    other than PostgreSQL. Without `clients` the database itself consumes.
    """

    program: Program
    dsn: str
    pids: Sequence[int] = ()
    clients: bool = True

    def handled(self) -> dict[int, Records]:
        """Return the contents of the application table for each subscriber."""
        with opened(self.dsn) as connection:
            rows = connection.execute(
                "select subscriber, array_agg(n), array_agg(extract(epoch from at)::float8)"
                " from (select * from handled order by at, ctid) h group by 1"
            ).fetchall()
        return {index: Records(array("q", numbers), array("d", times)) for index, numbers, times in rows}

    def clear(self) -> None:
        """Empty the application table."""
        with opened(self.dsn) as connection:
            connection.execute("truncate handled")

    def handled_count(self) -> int:
        """Return how many rows the application table has."""
        with opened(self.dsn) as connection:
            return int(connection.execute("select count(*) from handled").fetchall()[0][0])


class System(ABC):
    """The adapter of one system: how it is installed, run, and used by applications."""

    name: ClassVar[str]
    title: ClassVar[str]
    once: ClassVar[bool] = False
    """Whether each event is promised to arrive once, not at least once."""
    ordered: ClassVar[bool] = False
    """Whether the events of a publisher are promised in their order."""

    def missing(self) -> str | None:
        """Return why it cannot run here, or None when it is ready. Fetches packages that are missing."""
        return None

    @abstractmethod
    def version(self) -> str:
        """Return what was measured, in a few words."""

    @abstractmethod
    def open(self, house: House, plan: Plan) -> contextlib.AbstractContextManager[Session]:
        """Make and run everything that the plan needs; remove it at the end of the block."""


@dataclass(frozen=True, slots=True)
class Database:
    """The application's database: connection strings of its role and of the superuser."""

    app: str
    admin: str
    tcp: Mapping[str, str]
    """What drivers that know no sockets are given."""

    @property
    def uri(self) -> str:
        """The application's connection string as drivers without libpq read it."""
        known = conninfo_to_dict(self.app)
        return f"postgresql://{APP}@/{known['dbname']}?" + urlencode({"host": known["host"], "port": known["port"]})


@contextlib.contextmanager
def database(house: House, plan: Plan, *, template: str = "template1") -> Iterator[Database]:
    """Make a database with the application's tables, that belongs to a plain role."""
    with house.database(template) as admin:
        with opened(admin) as connection:
            _role(connection)
        app = make_conninfo(admin, user=APP)
        with opened(app) as connection:
            _application(connection, plan)
        known = conninfo_to_dict(admin)
        yield Database(
            app, admin,
            {
                "host": "127.0.0.1", "port": str(known["port"]), "dbname": str(known["dbname"]),
                "user": APP, "password": _PASSWORD,
            },
        )  # fmt: skip


def _role(connection: psycopg.Connection) -> None:
    """Give the database to the role that applications have; it is made when it is needed first."""
    if not connection.execute("select 1 from pg_roles where rolname = %s", [APP]).fetchone():
        connection.execute(f"create role {APP} login password '{_PASSWORD}'".encode())
    connection.execute(f"alter database {connection.info.dbname} owner to {APP}".encode())


def _application(connection: psycopg.Connection, plan: Plan) -> None:
    if not plan.synchronous:
        name = connection.info.dbname
        connection.execute(f"alter database {name} set synchronous_commit = off".encode())
    connection.execute(
        "create table handled (subscriber integer not null, n bigint not null, symbol text not null,"
        " price numeric not null, volume bigint not null, at timestamptz not null default clock_timestamp())"
    )
    if plan.consume == "idempotent":
        connection.execute("alter table handled add primary key (subscriber, n)")
    if plan.filters == "portfolio":
        connection.execute(
            "create table portfolios (portfolio_id integer, symbol text, primary key (portfolio_id, symbol))"
        )
        connection.execute(
            "insert into portfolios select k, 'S' || n from generate_series(0, %s) k, generate_series(0, %s) n",
            [PORTFOLIOS - 1, plan.symbols - 1],
        )
    connection.execute("vacuum analyze")


def processes(plan: Plan) -> int:
    """Return over how many processes subscribers are spread when a client library has one thread a process."""
    return 2 if plan.subscribers >= 20 else 1


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.contextmanager
def daemon(
    command: Sequence[str], ready: Callable[[], bool], *, home: Path | None = None,
    environment: Mapping[str, str] | None = None, timeout: float = 60.0,
) -> Iterator[int]:  # fmt: skip
    """Run a server as an unprivileged user; yield its process id once it is ready, and end it after the block."""
    user = server_user()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=home or "/",
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", **(environment or {})},
            user=user.uid, group=user.gid, extra_groups=[] if user.uid is not None else None, start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + timeout
            while not ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} did not start: {log.read().decode(errors='replace')[-1500:]}")
                time.sleep(0.1)
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """Make a directory that the unprivileged user owns."""
    with tempfile.TemporaryDirectory(prefix="field", ignore_cleanup_errors=True) as name:
        server_user().own(Path(name))
        yield Path(name)


def listens(port: int) -> bool:
    """Return whether a server accepts connections there."""
    with socket.socket() as tried:
        tried.settimeout(1)
        return tried.connect_ex(("127.0.0.1", port)) == 0
