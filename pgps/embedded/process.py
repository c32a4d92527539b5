"""Server processes: whose they are, whether they live, how they end.

A postmaster is recognised by its own command line, never by a pid alone: after
a crash the pid in a pidfile may belong to anybody.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pgps.errors import EmbeddedError

__all__ = [
    "ServerUser",
    "children_of",
    "is_postmaster",
    "kill",
    "kill_family",
    "release_memory",
    "run_as",
    "server_user",
    "wait_gone",
]

_ENDED = ("Z", "X", None)
_IPC_RMID = 0  # as in <sys/ipc.h>
_POLL = 0.02  # seconds between looks at a process that is starting or ending


@dataclass(frozen=True, slots=True)
class ServerUser:
    """Who the server runs as; None in `uid` means the caller, who is not root."""

    name: str
    uid: int | None
    gid: int | None

    def own(self, path: Path) -> None:
        """Give a path to this user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def server_user() -> ServerUser:
    """Return the caller, or for root the `postgres` user, else `nobody`."""
    if os.geteuid() != 0:
        return ServerUser(pwd.getpwuid(os.geteuid()).pw_name, None, None)
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return ServerUser(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        "PostgreSQL does not run as root, and there is neither a user postgres nor nobody",
        hint="Make one: useradd --system postgres",
    )


def run_as(
    user: ServerUser, command: list[str], *, output: IO[str] | int = subprocess.PIPE, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a program as that user, in / and with a bare environment; never raises on its exit status.

    The environment is cut down so that PGDATA, PGPORT and friends of the
    caller cannot lead the server anywhere else.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        user=user.uid,
        group=user.gid,
        extra_groups=[] if user.uid is not None else None,
        umask=0o077,
        text=True,
        check=False,
        timeout=timeout,
    )


def is_postmaster(pid: int, directory: Path) -> bool:
    """Say whether this pid is, at this moment, the postmaster started with `-D directory`."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    program = os.path.basename(arguments[0])  # noqa: PTH119 - bytes
    if program not in (b"postgres", b"postmaster"):
        return False
    # Not by its text: it may have been started by another name of the same directory.
    return any(_is_same(argument, directory) for argument in arguments[1:])


def _is_same(argument: bytes, directory: Path) -> bool:
    if not argument.startswith(b"/"):
        return False
    try:
        return argument == os.fsencode(directory) or directory.samefile(os.fsdecode(argument))
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """Return the pids of the direct children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError, ValueError):
            # The name field may hold spaces and parentheses; the fields after its end do not.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def kill(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_gone(pids: list[int], *, timeout: float) -> bool:
    """Wait until none of the processes runs (a zombie does not); False when the time is up."""
    deadline = time.monotonic() + timeout
    while any(_runs(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def release_memory(key: int, number: int) -> None:
    """Give a shared memory segment of System V back, if it is still the one with this key and nobody is attached."""
    with contextlib.suppress(FileNotFoundError):
        for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
            fields = line.split()
            if (int(fields[0]) % 2**32, int(fields[1]), int(fields[6])) == (key % 2**32, number, 0):
                ctypes.CDLL(None).shmctl(number, _IPC_RMID, None)


def kill_family(pid: int, *, timeout: float) -> list[int]:
    """Kill a process and its children, and wait until they are gone; return those that are not when the time is up.

    The process is stopped first: a child that it made between the look at its children and its end would survive, and
    a server's session keeps the server's memory, so that it cannot start again.
    """
    kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + timeout
    # It may still be in the middle of making a child; it is not when it is seen to be stopped.
    while _state(pid) not in ("T", "t", *_ENDED) and time.monotonic() < deadline:
        time.sleep(_POLL)
    family = [pid, *children_of(pid)]
    for member in family:
        kill(member, signal.SIGKILL)
    wait_gone(family, timeout=deadline - time.monotonic())
    return [member for member in family if _runs(member)]


def _runs(pid: int) -> bool:
    return _state(pid) not in _ENDED


def _state(pid: int) -> str | None:
    """Return the letter for the state of a process; None when there is none of that pid."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
