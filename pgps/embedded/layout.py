"""The files of an embedded cluster: where they are and what is in them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import shutil
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from pgps.embedded import process
from pgps.errors import EmbeddedError, StartFailed

__all__ = [
    "CLUSTERS",
    "RECORD",
    "Places",
    "Record",
    "free_port",
    "make_directories",
    "make_private_parent",
    "make_socket_directory",
    "open_log",
    "remove_stale_lock_files",
    "write_configuration",
    "write_passfile",
]

CLUSTERS = "clusters"
RECORD = "cluster.json"

# A socket's path is limited to 107 bytes, and the server adds "/.s.PGSQL.65535".
_SOCKET_DIRECTORY_BYTES = 107 - 16

# Below Linux's ephemeral range (32768 and up), so that no outgoing connection takes the port between
# the look and the start, and above the ports that services are known by.
_PORTS = range(20_000, 32_000)

_DEFAULTS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "max_prepared_transactions": "0",
    # The estimates for the queue views are high: compiling them takes a second, running them milliseconds.
    "jit": "off",
    "shared_buffers": "256MB",
    "log_line_prefix": "%m [%p] %q%u@%d %a ",
    "logging_collector": "off",
    "timezone": "UTC",
}
# The server may still be killed at any time, the machine may not. So synchronous_commit stays on: without it
# a commit that was acknowledged is lost with the server; without fsync it costs next to nothing.
# In files of the data directory is also what a killed server leaves of shared memory: it goes with the directory.
_FAST = {"fsync": "off", "full_page_writes": "off", "dynamic_shared_memory_type": "mmap"}

_HBA = """\
# TYPE  DATABASE     USER  ADDRESS       METHOD
local   all          all                 trust
local   replication  all                 trust
host    all          all   127.0.0.1/32  scram-sha-256
"""


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of one cluster."""

    directory: Path
    data: Path
    socket: Path
    log: Path
    passfile: Path
    record: Path
    lock: Path

    @classmethod
    def of(cls, home: Path, name: str) -> Self:
        """Return the paths of the cluster of that name, which are the same by whatever name its home is reached."""
        directory = (home / CLUSTERS).resolve() / name
        record = directory / RECORD
        return cls(
            directory=directory,
            data=directory / "data",
            socket=_socket_directory(directory, record),
            log=directory / "server.log",
            passfile=directory / "passfile",
            record=record,
            lock=directory.parent / f".{name}.lock",
        )

    @property
    def pidfile(self) -> Path:
        """The server's own pidfile."""
        return self.data / "postmaster.pid"

    def recorded_pid(self) -> int | None:
        """Return the pid in the pidfile, whoever has it now."""
        try:
            return int(self.pidfile.read_text().splitlines()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None

    def postmaster(self) -> int | None:
        """Return the pid of the running postmaster of this cluster."""
        pid = self.recorded_pid()
        return pid if pid is not None and process.is_postmaster(pid, self.directory) else None

    def is_ready(self) -> bool:
        """Say whether the server accepts connections, by what it has written into its pidfile."""
        try:
            return self.pidfile.read_text().splitlines()[7].strip() in ("ready", "standby")
        except (FileNotFoundError, IndexError):
            return False

    def remove(self) -> None:
        """Remove everything but the lock; no server runs on it."""
        # A server that was killed has left its shared memory to the next one, which there will not be.
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
            key, number = map(int, self.pidfile.read_text().splitlines()[6].split())
            process.release_memory(key, number)
        if self.directory.exists():
            shutil.rmtree(self.directory)
        # What somebody else has put there in the meantime is none of ours.
        if _stranger(self.socket, process.server_user()) is None:
            shutil.rmtree(self.socket)


@dataclass(frozen=True, slots=True)
class Record:
    """How a cluster was made; port 0 means not started yet, and then no `socket` is known."""

    major: int
    user: str
    port: int
    fast: bool
    settings: dict[str, str]
    socket: str = ""

    @classmethod
    def read(cls, places: Places) -> Self | None:
        """Return the record, None when there is no such cluster."""
        try:
            return cls(**json.loads(places.record.read_text()))
        except FileNotFoundError:
            return None
        except PermissionError:
            raise EmbeddedError(
                f'embedded cluster in "{places.directory}" belongs to somebody else',
                hint="Set PGPS_HOME to a directory of your own.",
            ) from None
        except (ValueError, TypeError) as error:
            raise EmbeddedError(
                f'"{places.record}" is damaged: {error}', hint=f"Remove the cluster: rm -r {places.directory}"
            ) from None

    def write(self, places: Places) -> Self:
        """Write the record, whole or not at all, and return it."""
        new = places.record.with_suffix(".new")
        new.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")
        new.replace(places.record)
        return self

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with some fields replaced."""
        return dataclasses.replace(self, **changes)


def _socket_directory(directory: Path, record: Path) -> Path:
    near = directory / "socket"
    if len(os.fsencode(near)) <= _SOCKET_DIRECTORY_BYTES:
        return near
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    far = Path(tempfile.gettempdir()) / f"pgps-{os.geteuid()}-{digest}"
    try:
        recorded = Path(json.loads(record.read_text())["socket"])
    except (OSError, ValueError, TypeError, KeyError):
        return far
    # The last start may have had another TMPDIR. Of a home that was copied, it has told of the other one's.
    return recorded if recorded.is_absolute() and recorded.name == far.name else far


def _stranger(path: Path, user: process.ServerUser) -> str | None:
    """Return what is wrong with a directory that the server's user alone is to enter; None when nothing is."""
    try:
        found = path.lstat()
    except OSError as error:
        return error.strerror or "it cannot be read"
    if not stat.S_ISDIR(found.st_mode):
        return "it is no directory"
    if found.st_uid != (os.geteuid() if user.uid is None else user.uid):
        return f"it belongs to user {found.st_uid}"
    return f"its mode is {stat.S_IMODE(found.st_mode):o}" if found.st_mode & 0o077 else None


def make_socket_directory(places: Places, user: process.ServerUser) -> None:
    """Make the directory of the socket unless it is there.

    Raises StartFailed for one that somebody else has made, or may enter:
    whoever reaches the socket is superuser. It may lie where everybody can
    make directories, and be swept away there.
    """
    try:
        places.socket.mkdir(mode=0o700)
        user.own(places.socket)
    except FileExistsError:
        pass
    except OSError as error:
        raise StartFailed(
            f'cannot make "{places.socket}": {error.strerror}', hint="Set TMPDIR, or PGPS_HOME."
        ) from error
    if (wrong := _stranger(places.socket, user)) is not None:
        raise StartFailed(
            f'"{places.socket}" is not for the server alone: {wrong}',
            hint=f"Find out who has made it, and remove it: rm -r {places.socket}",
        )


def make_private_parent(parent: Path) -> None:
    """Make the directory that holds the clusters."""
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as error:
        raise EmbeddedError(
            f'cannot make "{parent}": {error.strerror}', hint="Set PGPS_HOME to a directory you may write to."
        ) from error


def make_directories(places: Places, user: process.ServerUser) -> None:
    """Make a cluster's directories and check that the server's user can enter them."""
    places.directory.mkdir(mode=0o755)
    places.data.mkdir(mode=0o700)
    user.own(places.data)
    make_socket_directory(places, user)
    done = process.run_as(user, ["/bin/sh", "-c", 'test -w "$0"', str(places.data)])
    if done.returncode != 0:
        places.remove()
        raise EmbeddedError(
            f'user {user.name}, whom the server runs as, cannot reach "{places.directory}"',
            hint="Set PGPS_HOME to a directory whose parents everybody may enter, such as /var/lib/pgps.",
        )


def write_passfile(places: Places, user: str, password: str) -> None:
    """Write libpq's passfile, readable by the caller alone."""
    handle = os.open(places.passfile, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as passfile:
        passfile.write(f"127.0.0.1:*:*:{user}:{password}\n")


def write_configuration(places: Places, record: Record) -> None:
    """Write postgresql.conf and its companions, from the record alone."""
    settings = {
        **_DEFAULTS,
        **(_FAST if record.fast else {}),
        **record.settings,
        "data_directory": str(places.data),
        "unix_socket_directories": str(places.socket),
        "port": str(record.port),
    }
    lines = [f"{name} = {_quoted(value)}\n" for name, value in settings.items()]
    (places.directory / "postgresql.conf").write_text("# Written at each start.\n" + "".join(lines))
    (places.directory / "pg_hba.conf").write_text(_HBA)
    (places.directory / "pg_ident.conf").write_text("")


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def open_log(places: Places) -> IO[str]:
    """Open the log for appending; the server inherits it."""
    handle = os.open(places.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return os.fdopen(handle, "a")


def remove_stale_lock_files(places: Places) -> None:
    """Remove what a killed server left behind and a new one could take for a live server's.

    The server looks at the pid alone, which may have been reused or belong to
    a zombie nobody reaps. The caller knows that no postmaster of this cluster
    runs; a backend that survived one is still found by the server, through the
    shared memory it is attached to.
    """
    pid = places.recorded_pid()
    if pid is not None and Path(f"/proc/{pid}").exists():
        places.pidfile.unlink(missing_ok=True)
    for left in places.socket.glob(".s.PGSQL.*"):
        left.unlink(missing_ok=True)


def free_port(preferred: int) -> int:
    """Return a free port on the loopback address, the preferred one when it is free."""
    # Not a secret: any spread will do, so that clusters made at once do not collide.
    draw = random.SystemRandom()
    for port in [preferred, *draw.sample(_PORTS, 50)]:
        if port and _is_free(port):
            return port
    raise EmbeddedError("no free port on 127.0.0.1 between 20000 and 32000", hint="Stop what is using them.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
