"""Start many workers cheaply: they are forked from a process that has imported all modules already.

That process, the nursery, reads commands from its standard input, one JSON list a line. A list of a name, a log file, a
connection string and a pulse starts a worker; the answer is its process id. A list of a process id kills that worker;
the answer comes when it is gone. When the input ends, the nursery kills the workers that are left, and ends. The pulse
is the factor by which the worker's heartbeats and polling intervals are multiplied.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from pgps_worker import logs
from pgps_worker.config import WorkerConfig
from pgps_worker.links import keeper, pump, service
from pgps_worker.worker import run_worker

# A worker whose link broke pauses for 4 to 64 seconds, which would be most of a story of half a minute.
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
# Every other story uses this factor: with shorter intervals the same things happen sooner, and in other orders.
FAST = 0.25


class Crew:
    """Starts and kills workers, one a broker."""

    def __init__(self, directory: Path, *, pulse: float = 1.0) -> None:
        self._directory = directory
        self._pulse = pulse
        self._pids: dict[str, int] = {}
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.links.storm.crew"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )

    def _ask(self, command: list[Any]) -> int:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        print(json.dumps(command), file=self._nursery.stdin, flush=True)
        return int(self._nursery.stdout.readline())

    def start(self, name: str, dsn: str) -> None:
        """Start a worker for a broker, unless it has one."""
        if name not in self._pids:
            self._pids[name] = self._ask([name, str(self.log(name)), dsn, self._pulse])

    def kill(self, name: str) -> None:
        """Kill a broker's worker with SIGKILL, if it has one."""
        if name in self._pids:
            self._ask([self._pids.pop(name)])

    def log(self, name: str) -> Path:
        """Return the file into which the workers of a broker log."""
        return self._directory / f"worker-{name}.log"

    def ask_for_stacks(self) -> list[str]:
        """Have all workers log the stacks of their threads; return brokers whose worker ended without being killed."""
        gone = []
        for name, pid in self._pids.items():
            status = Path(f"/proc/{pid}/stat")
            # A process that has ended stays a zombie until the nursery waits for it.
            if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
                gone.append(name)
            else:
                os.kill(pid, signal.SIGUSR1)
        return gone

    def kill_all(self) -> None:
        """Kill all workers."""
        for name in list(self._pids):
            self.kill(name)

    def close(self) -> None:
        """Kill all workers, and end the nursery."""
        for pipe in (self._nursery.stdin, self._nursery.stdout):
            if pipe is not None:
                pipe.close()
        self._nursery.wait(60)


def _work(name: str, log: str, dsn: str, pulse: float) -> None:
    """Run a worker until it is killed."""
    with Path(log).open("ab") as target:
        os.dup2(target.fileno(), 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    with Path(os.devnull).open("r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    keeper._FIRST_PAUSE, keeper._LONGEST_PAUSE = FIRST_PAUSE, LONGEST_PAUSE
    keeper._ELSEWHERE_PAUSE *= pulse
    pump.HEARTBEAT *= pulse
    service._POLL *= pulse
    logs.set_up("info", as_json=False, worker=name)
    sys.setswitchinterval(0.0005)
    asyncio.run(run_worker(WorkerConfig(dsn=dsn, name=name, concurrency=1)))


def _bear(name: str, log: str, dsn: str, pulse: float) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _work(name, log, dsn, pulse)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def _bury(pid: int) -> None:
    """Kill a worker; its process id cannot be used again before the call of waitpid."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _nurse() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    alive: set[int] = set()
    for line in sys.stdin:
        command = json.loads(line)
        if len(command) == 1:
            _bury(command[0])
            alive.discard(command[0])
            print(command[0], flush=True)
        else:
            pid = _bear(*command)
            alive.add(pid)
            print(pid, flush=True)
    for pid in alive:
        _bury(pid)


if __name__ == "__main__":
    _nurse()
