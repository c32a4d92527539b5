"""One private cluster: create, start, stop, destroy, find again.

    <home>/clusters/<name>/        root's or the caller's own
        cluster.json               how it was made
        postgresql.conf  pg_hba.conf  pg_ident.conf
        passfile                   0600: the password for TCP, in libpq's format
        server.log
        data/                      the server user's, 0700
        socket/                    the server user's, 0700: trust for whoever may enter
    <home>/clusters/.<name>.lock   held while somebody creates, starts, stops or destroys it

The configuration is kept outside the data directory, as Debian does, so that
root never writes into a directory an unprivileged user controls.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import filelock
import psycopg
from psycopg.conninfo import make_conninfo

from pgps import config
from pgps.embedded import layout, process
from pgps.embedded.binaries import Binaries, find_binaries
from pgps.errors import EmbeddedError, StartFailed

__all__ = ["ClusterStatus", "EmbeddedCluster", "list_clusters"]

# Not "pgps": a role of that name would find schema pgps first in its search_path ("$user") and create its tables there.
SUPERUSER = "postgres"
_PORT_ATTEMPTS = 5
_LOCK_TIMEOUT = 120.0
_POLL = 0.05


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What is known of a cluster without connecting to it; `pid` is None unless it runs.

    "unreadable": its record is damaged, or somebody else's.
    """

    name: str
    directory: Path
    state: Literal["absent", "stopped", "running", "unreadable"]
    pid: int | None
    port: int | None
    major: int | None
    fast: bool


class EmbeddedCluster:
    """A private PostgreSQL cluster with superuser role `postgres`.

    Nothing happens until `create` or `start`; both do nothing when there is
    nothing to do. As a context manager it starts on entry and stops on exit,
    and with `keep=False` is destroyed on exit. `fast=True` is for tests: data
    survive a crash of the server, but not one of the machine.
    `settings` are further lines of postgresql.conf. `fast` and `settings` of
    an existing cluster stay as they are when None is given.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        fast: bool | None = None,
        settings: Mapping[str, str] | None = None,
        home: Path | None = None,
        keep: bool = True,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,39}", name):
            raise EmbeddedError(
                f'cluster name "{name}" is not allowed',
                hint="Use up to 40 letters, digits, points, hyphens and underscores.",
            )
        self.name = name
        self._fast = fast
        self._settings = dict(settings) if settings is not None else None
        self._keep = keep
        self._places = layout.Places.of(home or config.default_home(), name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keep:
            self.stop()
        else:
            self.destroy()

    @property
    def directory(self) -> Path:
        """Where everything of this cluster is kept."""
        return self._places.directory

    @property
    def log(self) -> Path:
        """The server's log."""
        return self._places.log

    @property
    def pid(self) -> int | None:
        """The postmaster's pid, verified to belong to this cluster; None unless it runs."""
        return self._places.postmaster()

    @property
    def password(self) -> str:
        """The superuser's password for TCP; the socket needs none."""
        return self._places.passfile.read_text().strip().rpartition(":")[2]

    def status(self) -> ClusterStatus:
        """Return what is known without connecting."""
        known = layout.Record.read(self._places)
        if known is None:
            return ClusterStatus(self.name, self.directory, "absent", None, None, None, fast=False)
        pid = self.pid
        state: Literal["stopped", "running"] = "running" if pid else "stopped"
        return ClusterStatus(self.name, self.directory, state, pid, known.port, known.major, known.fast)

    def dsn(self, dbname: str = "postgres", *, tcp: bool = False) -> str:
        """Return a libpq connection string for the superuser.

        Over the private socket by default; over the loopback address, with
        the password in a passfile, when `tcp`. Raises EmbeddedError for a
        cluster that has never been started.
        """
        known = layout.Record.read(self._places)
        if known is None or not known.port:
            raise EmbeddedError(
                f'embedded cluster "{self.name}" has not been started',
                hint=f"Start it: python -m pgps.embedded start {self.name}",
            )
        if tcp:
            return make_conninfo(
                host="127.0.0.1",
                port=known.port,
                user=SUPERUSER,
                dbname=dbname,
                passfile=str(self._places.passfile),
            )
        return make_conninfo(host=str(self._places.socket), port=known.port, user=SUPERUSER, dbname=dbname)

    def create(self) -> Self:
        """Make the cluster unless it exists."""
        with self._locked():
            self._create()
        return self

    def start(self, *, timeout: float = 60.0) -> Self:
        """Make the cluster unless it exists, and start it unless it runs.

        Returns when it accepts connections. Raises StartFailed, with the end
        of the server's log, when it does not within `timeout` seconds; one
        that is still recovering by then goes on, and the next start waits for it.
        """
        deadline = time.monotonic() + timeout
        with self._locked():
            known = self._create()
            while self.pid is not None and not self._places.is_ready():
                if time.monotonic() > deadline:
                    raise self._still_starting(timeout)
                time.sleep(_POLL)
            if self.pid is None:
                self._start(known, timeout)
        return self

    def stop(self, *, timeout: float = 30.0) -> None:
        """Stop it unless it is stopped: fast, and after `timeout` seconds immediate."""
        with self._locked():
            self._stop((signal.SIGINT, timeout), (signal.SIGQUIT, 10.0))

    def destroy(self) -> None:
        """Stop it and remove everything of it, unless it is gone already."""
        with self._locked():
            # Nobody needs a checkpoint of data that is about to be removed. But a server that is killed leaves its
            # shared memory to the system.
            self._stop((signal.SIGQUIT, 10.0))
            self._places.remove()

    def kill9(self) -> None:
        """Kill the server and all its backends with SIGKILL, and wait until they are gone."""
        pid = self.pid
        if pid is None:
            return
        if survivors := process.kill_family(pid, timeout=30.0):
            raise EmbeddedError(f"processes of embedded cluster {self.name} survive SIGKILL: {survivors}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        layout.make_private_parent(self._places.directory.parent)
        lock = filelock.FileLock(self._places.lock, timeout=_LOCK_TIMEOUT)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise EmbeddedError(
                f'embedded cluster "{self.name}" is being started or stopped elsewhere for {_LOCK_TIMEOUT:g} seconds',
                hint=f"Wait for that, or see who holds it: fuser -v {self._places.lock}",
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _create(self) -> layout.Record:
        known = layout.Record.read(self._places)
        if known is not None:
            return self._changed(known)
        binaries = find_binaries()
        user = process.server_user()
        # What a create that was interrupted left behind; cluster.json is written last.
        self._places.remove()
        layout.make_directories(self._places, user)
        password = secrets.token_urlsafe(24)
        try:
            self._initdb(binaries, user, password)
            layout.write_passfile(self._places, SUPERUSER, password)
            return layout.Record(
                major=binaries.major,
                user=user.name,
                port=0,
                fast=bool(self._fast),
                settings=self._settings or {},
            ).write(self._places)
        except BaseException:
            self._places.remove()
            raise

    def _changed(self, known: layout.Record) -> layout.Record:
        """Return the record with what was asked for as `fast` and `settings`; both take effect at the next start."""
        fast = known.fast if self._fast is None else self._fast
        settings = known.settings if self._settings is None else self._settings
        if (fast, settings) == (known.fast, known.settings):
            return known
        return known.with_changes(fast=fast, settings=settings).write(self._places)

    def _initdb(self, binaries: Binaries, user: process.ServerUser, password: str) -> None:
        with tempfile.NamedTemporaryFile("w", dir=self.directory) as pwfile:
            pwfile.write(password + "\n")
            pwfile.flush()
            user.own(Path(pwfile.name))
            command = [
                binaries.program("initdb"),
                "--pgdata",
                str(self._places.data),
                "--username",
                SUPERUSER,
            ]
            command += [
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--auth-local=trust",
                "--auth-host=scram-sha-256",
            ]
            command += ["--pwfile", pwfile.name, "--no-instructions"]
            if self._fast:
                command.append("--no-sync")
            done = process.run_as(user, command)
        if done.returncode != 0:
            raise EmbeddedError(
                f'initdb failed as user {user.name} in "{self.directory}":\n{done.stdout.strip()}',
                hint="Set PGPS_HOME to a directory that user can reach.",
            )

    def _start(self, known: layout.Record, timeout: float) -> None:
        binaries = find_binaries(major=known.major)
        user = process.server_user()
        if user.name != known.user:
            raise StartFailed(
                f'embedded cluster "{self.name}" belongs to user {known.user}, not {user.name}',
                hint="Start it as the user who made it, or set PGPS_HOME to a directory of your own.",
            )
        layout.make_socket_directory(self._places, user)
        layout.remove_stale_lock_files(self._places)
        for _ in range(_PORT_ATTEMPTS):
            port, socket = layout.free_port(known.port), str(self._places.socket)
            known = known.with_changes(port=port, socket=socket).write(self._places)
            layout.write_configuration(self._places, known)
            log_start = self.log.stat().st_size if self.log.exists() else 0
            if self._pg_ctl_start(binaries, user, timeout):
                return
            tail = self._log_since(log_start)
            if "could not bind" not in tail:
                break
            known = known.with_changes(port=0)
        raise StartFailed(
            f'embedded cluster "{self.name}" did not start:\n{tail}',
            hint=f"The whole log is in {self.log}",
        )

    def _pg_ctl_start(self, binaries: Binaries, user: process.ServerUser, timeout: float) -> bool:
        command = [binaries.program("pg_ctl"), "start", "--wait", "--timeout", str(max(1, round(timeout)))]
        command += ["--pgdata", str(self.directory)]
        with layout.open_log(self._places) as log:
            try:
                done = process.run_as(user, command, output=log, timeout=timeout + 10)
            except subprocess.TimeoutExpired:
                raise self._still_starting(timeout) from None
        if done.returncode != 0 and self.pid is not None:
            # It recovers. If it were stopped, the next start would begin that anew.
            raise self._still_starting(timeout)
        return done.returncode == 0

    def _still_starting(self, timeout: float) -> StartFailed:
        return StartFailed(
            f'embedded cluster "{self.name}" goes on starting: no connections after {timeout:g} seconds',
            hint=f"Start it again to wait longer (--timeout). What it does is in {self.log}",
        )

    def _log_since(self, offset: int) -> str:
        with self.log.open(errors="replace") as log:
            log.seek(offset)
            return "".join(log.readlines()[-15:]).strip()

    def _stop(self, *attempts: tuple[signal.Signals, float]) -> None:
        pid = self.pid
        if pid is None:
            return
        for number, patience in attempts:
            process.kill(pid, number)
            if process.wait_gone([pid], timeout=patience):
                return
        self.kill9()

    def connect(self, dbname: str = "postgres") -> psycopg.Connection:
        """Return an autocommit connection as the superuser."""
        return psycopg.connect(self.dsn(dbname), autocommit=True)


def list_clusters(*, home: Path | None = None) -> list[ClusterStatus]:
    """Return every embedded cluster of this home, by name."""
    root = (home or config.default_home()) / layout.CLUSTERS
    if not root.is_dir() or not os.access(root, os.R_OK):
        return []
    names = sorted(entry.name for entry in root.iterdir() if (entry / layout.RECORD).exists())
    return [_listed(EmbeddedCluster(name, home=home)) for name in names]


def _listed(cluster: EmbeddedCluster) -> ClusterStatus:
    """Return the status of a cluster, whatever is the matter with it: it hides no other one."""
    try:
        return cluster.status()
    except EmbeddedError:
        return ClusterStatus(cluster.name, cluster.directory, "unreadable", None, None, None, fast=False)
