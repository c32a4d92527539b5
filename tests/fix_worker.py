"""Workers as processes of their own, as people run them, and what tests ask of them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.fix_db import Connect, wait_until
from tests.migration.releases import Release

# What the fixture `role` is: it makes a role, a member of those named.
RoleFactory = Callable[..., str]

_READY = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name = format('pgps-worker/%s/subscribers', {name}::text)
    and state = 'idle' and wait_event = 'ClientRead' and query like '%%pending_subscribers%%'
"""


def _program(safety: float | None) -> list[str]:
    """Return the arguments of Python that run a worker, with another safety poll when one is given."""
    if safety is None:
        return ["-m", "pgps_worker"]
    patch = f"from pgps_worker import pace; pace.SAFETY = {safety}"
    return ["-c", f"{patch}; from pgps_worker.__main__ import main; main()"]


class WorkerProcess:
    """One `pgps-worker`, started in a process of its own: it connects with `login`, a test looks with `dsn`."""

    def __init__(
        self,
        dsn: str,
        login: str,
        name: str,
        log: Path,
        options: tuple[str, ...],
        *,
        safety: float | None = None,
        release: Release | None = None,
    ) -> None:
        self.dsn = dsn
        self.name = name
        self._log = log
        with log.open("wb") as target:
            self._process = subprocess.Popen(
                [sys.executable, *_program(safety), "--dsn", login, "--name", name, "--json-logs", *options],
                stderr=target,
                env={**(release.environment if release else os.environ), "PYTHONWARNINGS": "error"},
                cwd=release.home if release else None,
            )

    @property
    def log(self) -> list[dict[str, Any]]:
        """What it has logged so far, line by line."""
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    @property
    def messages(self) -> str:
        """What it has logged so far, as one text to search."""
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill9(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self, timeout: float = 60.0) -> int:
        """Wait until it has left, and return its exit code."""
        return self._process.wait(timeout)

    def stop(self) -> int:
        """Ask it to leave, and return its exit code."""
        self._process.terminate()
        return self.wait()

    def is_running(self) -> bool:
        return self._process.poll() is None


def worker_login(dsn: str) -> str:
    """Return a connection string for a role with exactly the rights of a worker, when `dsn` is a superuser's."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "select rolsuper and to_regrole('pgps_worker') is not null from pg_roles where rolname = current_user"
        row = connection.execute(query).fetchone()
        if row is None or not row[0]:
            return dsn
        # Another test process may make it in the same server at this moment.
        for made in ("create role broker_worker login password 'test'", "grant pgps_worker to broker_worker"):
            there = "exception when duplicate_object or unique_violation or internal_error then null"
            connection.execute(f"do $$ begin {made}; {there}; end $$".encode())
    return make_conninfo(dsn, user="broker_worker", password="test")


class Workers:
    """Starts workers, and ends those still running when the test is over."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[WorkerProcess] = []

    def __call__(
        self,
        dsn: str,
        *options: str,
        ready: bool = True,
        superuser: bool = False,
        safety: float | None = None,
        release: Release | None = None,
    ) -> WorkerProcess:
        """Start a worker, which may do what workers may and no more unless `superuser` is true.

        Wait, unless `ready` is false, until it has looked for work and waits for more. `safety`: how often its
        dispatcher looks without being told, in seconds; what comes much sooner has been told.
        `release`: an earlier one, whose worker it is to be.
        """
        name = f"w{len(self._started) + 1}"
        login = dsn if superuser else worker_login(dsn)
        worker = WorkerProcess(
            dsn, login, name, self._directory / f"{name}.log", options, safety=safety, release=release
        )
        self._started.append(worker)
        if ready:
            with contextlib.closing(_Look(worker)) as look:
                wait_until(look.is_ready, what=f"{name} is ready: {worker.messages}")
        return worker

    def close(self) -> None:
        for worker in self._started:
            if worker.is_running():
                worker.kill9()


class _Look:
    """Looks whether a worker is ready, through one session as long as there is a server: to begin one takes longer."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self._connection: psycopg.Connection | None = None

    def is_ready(self) -> bool:
        assert self._worker.is_running(), self._worker.messages
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._worker.dsn, autocommit=True)
            row = self._connection.execute(sql.SQL(_READY).format(name=self._worker.name)).fetchone()
        except psycopg.OperationalError:
            self.close()
            return False
        return row is not None and row[0] == 1

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Start workers; list this fixture behind the one of the database, so that they end before it goes."""
    started = Workers(tmp_path)
    yield started
    started.close()


def leaders(connection: psycopg.Connection) -> list[str]:
    """Return the names of the workers that dispatch."""
    rows = connection.execute(
        """
        select split_part(a.application_name, '/', 2)
        from pgps_internal.leader l join pg_stat_activity a on a.pid = l.pid and a.backend_start = l.started_at
        """
    ).fetchall()
    return [name for (name,) in rows]


def counted(connection: psycopg.Connection, query: str) -> Callable[[], int]:
    """Return a function that runs a query for one number."""

    def count() -> int:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    return count


class Ticks:
    """The event type `tick` with its number, and a table `seen` in which callbacks leave what they got."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        connection.execute("select pgps.create_event_type('tick', 'n integer not null')")
        connection.execute("select pgps.advertise('tick')")
        connection.execute(
            """
            create table public.seen (
                who text, n integer, at timestamptz default clock_timestamp(), place bigserial, unique (who, n)
            )
            """
        )

    def subscribe(self, name: str, body: str = "null", *, more: str = "", declare: str = "") -> None:
        """Make an internal subscription whose callback runs `body` (PL/pgSQL, the event is e) and notes the event."""
        self.connection.execute(
            f"""
            create function public.on_{name}(e pgps_event.tick) returns void language plpgsql as $$
            {declare}
            begin
                {body};
                insert into public.seen (who, n) values ('{name}', e.n);
            end
            $$
            """.encode()
        )
        self.connection.execute(
            f"select pgps.subscribe('{name}', 'tick', execute => 'public.on_{name}', max_attempts => 1{more})".encode()
        )

    def publish(self, *numbers: int) -> None:
        """Publish all numbers in one transaction."""
        self.connection.execute("insert into pgps_event.tick (n) select unnest(%s::integer[])", [list(numbers)])

    def seen(self, who: str) -> list[int]:
        """What a callback has noted, in order."""
        rows = self.connection.execute("select n from public.seen where who = %s order by place", [who]).fetchall()
        return [n for (n,) in rows]

    def wait_for(self, who: str, number: int, *, timeout: float = 60.0) -> None:
        """Wait until a callback has noted a number."""
        wait_until(lambda: number in self.seen(who), timeout=timeout, what=f"{who} got {number}")

    def failed(self, who: str) -> list[tuple[int, str]]:
        """The numbers and SQLSTATEs in the exception queue for a subscription."""
        rows = self.connection.execute(
            """
            select n, sqlstate from pgps_queue.tick_exception
            where subscription = %s and state = 'failed' order by event_id
            """,
            [who],
        ).fetchall()
        return [(n, state) for n, state in rows]


@pytest.fixture
def ticks(own_database: str, connect: Connect) -> Ticks:
    """An event type in the test's own database."""
    return Ticks(connect(dsn=own_database))


def free_port() -> int:
    """Return a port for a server that starts soon.

    It is below those that the system gives to whoever connects, one of which might be taken in the meantime.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def page(port: int, path: str) -> tuple[int, str]:
    """Return what a worker serves there, with its status; (0, "") while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def metrics(port: int) -> str:
    """Return what a worker serves under /metrics."""
    return page(port, "/metrics")[1]
