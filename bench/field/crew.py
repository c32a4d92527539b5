"""The client processes of one system for one plan."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ROOT", "Client", "Crew", "Program", "Published", "Records"]

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Program:
    """The command that starts a client, and its configuration beside plan and role."""

    command: Sequence[str]
    config: Mapping[str, Any]
    processes: int = 1
    """Over how many processes its subscribers are spread."""
    publishing: int = 1
    """Over how many its publishers are."""


@dataclass(slots=True)
class Records:
    """Event numbers and wall-clock times, of a subscriber or of all publishers."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True, slots=True)
class Published:
    """Events first … first + count - 1: when it began and ended, and when each was sent."""

    first: int
    count: int
    began: float
    ended: float
    sent: Records

    @property
    def numbers(self) -> range:
        """The events."""
        return range(self.first, self.first + self.count)


class Client:
    """One process, which reads commands from its standard input and answers on its standard output."""

    def __init__(self, program: Program, config: Mapping[str, Any]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop
        self._process = subprocess.Popen(
            list(program.command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.tell(**program.config, **config)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                self._answers.put(line)
        self._answers.put(b"")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, **what: Any) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()

    def answer(self, timeout: float = _PATIENCE) -> dict[str, Any]:
        """Return the next line; raises with the end of its log when there is none."""
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            line = b""
        if not line:
            raise RuntimeError(f"a client does not answer: {self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-1500:].strip() or "it logged nothing"

    def stop(self) -> None:
        """Let it clean up and end; kill it if it does not end."""
        self.tell(do="stop")
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._log.close()


class Crew:
    """All publishers and subscribers of a plan, running from entry to exit, over many rounds."""

    def __init__(self, program: Program, plan: Mapping[str, Any], *, subscribing: bool = True) -> None:
        self._program = program
        self._plan = plan
        self._subscribing = subscribing
        self._publishers: list[Client] = []
        self._subscribers: list[tuple[Client, list[int]]] = []
        self._files = tempfile.TemporaryDirectory(prefix="field")

    def __enter__(self) -> Crew:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        subscribers = self._plan["subscribers"] if self._subscribing else 0
        for indexes in _spread(subscribers, self._program.processes):
            config = {"role": "subscriber", "plan": self._plan, "subscribers": indexes}
            self._subscribers.append((Client(self._program, config), indexes))
        for client, _ in self._subscribers:
            client.answer()
        for indexes in _spread(self._plan["publishers"], self._program.publishing):
            config = {
                "role": "publisher", "plan": self._plan, "publishers": self._plan["publishers"], "indexes": indexes,
            }  # fmt: skip
            self._publishers.append(Client(self._program, config))
        for client in self._publishers:
            client.answer()

    def __exit__(self, *_: object) -> None:
        for client in [*self._publishers, *(client for client, _ in self._subscribers)]:
            client.stop()
        self._files.cleanup()

    def pids(self) -> dict[str, int]:
        """Return the process ids by the role of the process."""
        named = {f"publishers' process {number}": one.pid for number, one in enumerate(self._publishers)}
        return named | {f"subscribers' process {number}": one.pid for number, (one, _) in enumerate(self._subscribers)}

    def publish(self, first: int, count: int, rate: float | None = None) -> Published:
        """Publish so many events, at `rate` a second or as fast as it goes."""
        for client, _ in self._subscribers:
            client.tell(do="begin")
        for number, client in enumerate(self._publishers):
            client.tell(do="publish", first=first, count=count, rate=rate, file=self._file("published", number))
        patience = _PATIENCE + (count / rate if rate else 0)
        answers = [client.answer(patience) for client in self._publishers]
        sent = Records()
        for number in range(len(self._publishers)):
            for records in _read(self._file("published", number)).values():
                sent.numbers.extend(records.numbers)
                sent.times.extend(records.times)
        if sum(one["published"] for one in answers) != count:
            raise RuntimeError(f"{count} events were to be published: {answers}")
        began, ended = min(one["began"] for one in answers), max(one["ended"] for one in answers)
        return Published(first, count, began, ended, sent)

    def collect(self, expect: Sequence[int], timeout: float) -> dict[int, Records]:
        """Wait until each subscriber has that many, or for `timeout` seconds; return what they have."""
        deadline = time.monotonic() + timeout + _PATIENCE
        for number, (client, indexes) in enumerate(self._subscribers):
            file = self._file("received", number)
            client.tell(do="collect", expect=[expect[k] for k in indexes], timeout=timeout, file=file)
        seen: dict[int, Records] = {}
        for number, (client, _) in enumerate(self._subscribers):
            client.answer(max(1.0, deadline - time.monotonic()))
            seen |= _read(self._file("received", number))
        return seen

    def _file(self, what: str, number: int) -> str:
        return str(Path(self._files.name) / f"{what}{number}")


def _spread(count: int, processes: int) -> list[list[int]]:
    """Distribute the numbers 0 … count - 1 over at most so many processes."""
    return [list(range(count))[start::processes] for start in range(min(count, processes))]


def _read(file: str) -> dict[int, Records]:
    """Read records: for each subscriber its index and count, then its numbers and its times; all of 8 bytes."""
    data = memoryview(Path(file).read_bytes())
    found: dict[int, Records] = {}
    at = 0
    while at < len(data):
        head = array("q", data[at : at + 16].tobytes())
        at += 16
        size = 8 * head[1]
        numbers, times = data[at : at + size].tobytes(), data[at + size : at + 2 * size].tobytes()
        found[head[0]] = Records(array("q", numbers), array("d", times))
        at += 2 * size
    return found
