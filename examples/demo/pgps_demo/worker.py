"""A `pgps-worker` of the demonstration, as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pgps.errors import PgpsError

__all__ = ["Worker"]

_STOP_TIMEOUT = 10.0


class Worker:
    """One worker process; nothing happens until `start`."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False

    @property
    def pid(self) -> int | None:
        """Its process id, None when it does not run."""
        return self._process.pid if self._process else None

    def start(self, dsn: str) -> None:
        """Start it on a broker."""
        command = [sys.executable, "-m", "pgps_worker", "--dsn", dsn, "--name", self.name]
        # In a session of its own the worker does not get Ctrl-C; this program handles it and ends the worker.
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._asked = False

    def check(self) -> None:
        """Raise PgpsError when it has ended."""
        if self._process is not None and self._process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise PgpsError(f"worker {self.name} ended with status {self._process.returncode}:\n{tail}")

    def ask_to_stop(self) -> None:
        """Tell it to finish its batch and end; do not wait for that."""
        if self._process is not None and not self._asked:
            # A second signal would make it end in the middle of its batch.
            self._process.terminate()
            self._asked = True

    def stop(self) -> int | None:
        """Let it finish its batch and end; return its exit status, or None when it did not run."""
        self.ask_to_stop()
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            return process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
