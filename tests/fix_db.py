"""Databases, connections, roles and names for tests."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgps.embedded import EmbeddedCluster
from tests.fix_server import TEMPLATE, Server, copied_cluster, when_alone
from tests.fix_sessions import Sessions

# Distinguishes the processes of a run; roles are shared by all of them.
_PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "gw")
_counter = itertools.count(1)
_PASSWORD = "test"


class Connect(Protocol):
    """Opens connections that the test's end closes."""

    def __call__(
        self, role: str | None = None, autocommit: bool = True, *, dsn: str | None = None
    ) -> psycopg.Connection: ...


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, embedded_home: Path) -> None:
    """Keep the developer's settings out, and embedded clusters where the run's end removes them."""
    for variable in list(os.environ):
        # Where the server's programs are depends on the machine, so this variable stays.
        if variable.startswith(("PG", "PGPS_")) and variable != "PGPS_PG_BIN":
            monkeypatch.delenv(variable)
    monkeypatch.setenv("PGPS_HOME", str(embedded_home))


@pytest.fixture(scope="session")
def database(server: Server) -> Iterator[str]:
    """The connection string of this process's database, cloned from the template."""
    dbname = f"pgps_{_PROCESS}"
    yield server.clone(dbname)
    server.drop(dbname)


@pytest.fixture(scope="session")
def _watcher(server: Server) -> Iterator[psycopg.Connection]:
    """A session beside all databases of tests, for looking after each; kept, so that it has plans."""
    with psycopg.connect(server.base, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def _cleaner(database: str) -> Iterator[psycopg.Connection]:
    """A session in this process's database, for dropping what each test has made; kept, so that it has plans."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def _sessions(database: str) -> Iterator[Sessions]:
    """Sessions in this process's database that tests use one after the other."""
    kept = Sessions(database)
    yield kept
    kept.close()


@pytest.fixture
def dsn(
    database: str, _watcher: psycopg.Connection, _cleaner: psycopg.Connection, _sessions: Sessions
) -> Iterator[str]:
    """The connection string of this process's database; the test must leave no connection open."""
    yield database
    kept = [_cleaner.info.backend_pid, *_sessions.pids()]
    _check_left_connections(_watcher, str(conninfo_to_dict(database)["dbname"]), but=kept)


@pytest.fixture
def own_database(
    server: Server, _watcher: psycopg.Connection, _connections: contextlib.ExitStack, _roles: dict[str, None]
) -> Iterator[str]:
    """The connection string of a fresh clone, for what concerns a whole broker: dispatch, reclaim."""
    dbname = f"pgps_{_PROCESS}_{next(_counter)}"
    yield server.clone(dbname)
    _connections.close()
    try:
        _check_left_connections(_watcher, dbname)
    finally:
        server.drop(dbname)


@pytest.fixture
def empty_database(server: Server) -> Iterator[str]:
    """The connection string of a database without pgps."""
    dbname = f"empty_{_PROCESS}_{next(_counter)}"
    with psycopg.connect(server.base, autocommit=True) as connection:
        connection.execute(f"create database {dbname} template template0".encode())
    yield server.dsn(dbname)
    server.drop(dbname)


@pytest.fixture
def own_cluster(embedded_home: Path) -> Iterator[EmbeddedCluster]:
    """A running embedded cluster with pgps in database postgres, for `kill9` and restart."""
    with copied_cluster(f"own-{_PROCESS}-{next(_counter)}", home=embedded_home) as cluster:
        with psycopg.connect(cluster.dsn("template1"), autocommit=True) as connection:
            when_alone(connection, "drop database postgres")
            when_alone(connection, f"create database postgres template {TEMPLATE}")
        yield cluster


@pytest.fixture
def _connections(_roles: dict[str, None]) -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def connect(dsn: str, _connections: contextlib.ExitStack, _roles: dict[str, None]) -> Iterator[Connect]:
    """Open connections, as the superuser or as a role, to this process's database or another."""
    default = dsn

    def opened(role: str | None = None, autocommit: bool = True, *, dsn: str | None = None) -> psycopg.Connection:
        target = dsn or default
        if role in _roles:
            # The role logs in, so that RESET leads back to the role itself and not to the superuser.
            target = make_conninfo(target, user=role, password=_PASSWORD)
        connection = psycopg.connect(target, autocommit=True)
        _connections.callback(connection.close)
        if role is not None and role not in _roles:
            connection.execute(sql.SQL("set session authorization {}").format(sql.Identifier(role)))
        connection.autocommit = autocommit
        return connection

    yield opened
    _connections.close()


@pytest.fixture
def admin(dsn: str, _roles: dict[str, None], _sessions: Sessions) -> Iterator[psycopg.Connection]:
    """An autocommit connection of the superuser, which may have served other tests before, as a pooler's."""
    kept = _sessions.take()
    yield kept
    _sessions.give_back(kept)


@pytest.fixture
def _roles(_cleaner: psycopg.Connection) -> Iterator[dict[str, None]]:
    roles: dict[str, None] = {}
    yield roles
    for role in reversed(roles):
        _drop_role(_cleaner, role)


@pytest.fixture
def role(_watcher: psycopg.Connection, _roles: dict[str, None]) -> Callable[..., str]:
    """Make roles with names of their own: `role("alice", "pgps_admin")` is a member of pgps_admin.

    They may log in, through `connect(role)`, and are dropped with all they own.
    """

    def made(prefix: str = "role", *memberships: str) -> str:
        name = f"{prefix}_{_PROCESS}_{next(_counter)}"
        _watcher.execute(
            sql.SQL("create role {} login password {}").format(sql.Identifier(name), sql.Literal(_PASSWORD))
        )
        for group in memberships:
            _watcher.execute(sql.SQL("grant {} to {}").format(sql.Identifier(group), sql.Identifier(name)))
        _roles[name] = None
        return name

    return made


@pytest.fixture
def name(_cleaner: psycopg.Connection, _roles: dict[str, None]) -> Iterator[Callable[..., str]]:
    """Make names for whatever a test creates; the event types among them are dropped at its end."""
    names: list[str] = []

    def made(prefix: str = "event") -> str:
        names.append(f"{prefix}_{_PROCESS}_{next(_counter)}")
        return names[-1]

    yield made
    if names:
        _cleaner.execute(
            """
            select pgps.drop_event_type(e.name, cascade => true)
            from pgps_internal.event_type e where e.name = any (%s)
            """,
            [names],
        )


def wait_until(condition: Callable[[], object], *, timeout: float = 60.0, what: str = "") -> None:
    """Wait until the condition holds; fail the test when it does not within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout:g} seconds: {what or condition}")
        time.sleep(0.01)


def notifications(connection: psycopg.Connection) -> list[psycopg.Notify]:
    """Return what the connection has been notified of and has not read: at least what was committed before this call.

    Nothing is waited for but an own notification, which comes behind them: they arrive in the order of their commits.
    What is committed meanwhile may come together with it, and behind it.
    """
    own = "pgps_test_last"
    connection.execute("listen pgps_test_last")
    connection.execute("notify pgps_test_last")
    found: list[psycopg.Notify] = []
    while all(one.channel != own for one in found):
        found += connection.notifies(timeout=60, stop_after=1)
    connection.execute("unlisten pgps_test_last")
    return [one for one in found if one.channel != own]


def lock_waiters(connection: psycopg.Connection, number: int) -> list[int]:
    """The sessions of the connection's database that wait for an advisory lock of this number; of two, the first.

    Its database only: in one beside it another process may run the same test.
    """
    return [
        pid
        for (pid,) in connection.execute(
            """
            select pid from pg_locks
            where locktype = 'advisory' and not granted
                and case objsubid when 1 then objid else classid end = %s::bigint::oid
                and database = (select oid from pg_database where datname = current_database())
            """,
            [number],
        )
    ]


def table_waiters(connection: psycopg.Connection, table: str) -> int:
    """How many sessions wait for a lock on a table of the connection's database."""
    row = connection.execute(
        """
        select count(*) from pg_locks
        where relation = %s::regclass and not granted
            and database = (select oid from pg_database where datname = current_database())
        """,
        [table],
    ).fetchone()
    assert row is not None
    return int(row[0])


def _drop_role(connection: psycopg.Connection, role: str) -> None:
    for statement in ("drop owned by {} cascade", "drop role {}"):
        connection.execute(sql.SQL(statement).format(sql.Identifier(role)))


def _check_left_connections(watcher: psycopg.Connection, dbname: str, *, but: Sequence[int] = ()) -> None:
    """Fail when the test left a connection open, `but` those; a closed one's backend needs a moment to go."""
    query = """
        select pid, application_name, state, left(query, 80) from pg_stat_activity
        where datname = %s and backend_type = 'client backend' and pid <> all (%s)
    """
    deadline = time.monotonic() + 60.0
    while left := watcher.execute(query, [dbname, list(but)]).fetchall():
        if time.monotonic() > deadline:
            for pid, *_ in left:
                watcher.execute("select pg_terminate_backend(%s)", [pid])
            pytest.fail(f"the test left connections open: {left}")
        time.sleep(0.02)
