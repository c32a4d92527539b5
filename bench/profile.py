"""`python -m bench.profile NAME`: flame graphs of what server and worker do while a path is under load.

The server's processes are sampled by `perf` by the clock of the processor, which needs no counters and so runs in
virtual machines, too; the Python processes by `py-spy`. Written are an SVG for a browser and the folded stacks, for
the server and for the worker, into build/profiles.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from bench import flames
from bench.house import SETTINGS, House
from bench.loads import LOADS
from pgps.embedded import EmbeddedCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.flames import Folded

OUT = Path(__file__).parents[1] / "build" / "profiles"
_HERTZ = 997
"""A prime, so that nothing that happens periodically is always or never seen."""
_ATTEMPTS = 5
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


def main() -> int:
    """Profile the paths asked for, and print where the graphs are."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("name", nargs="*", metavar="NAME", help=f"a path: {', '.join(LOADS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long samples are taken (default 10)")
    parser.add_argument("--out", type=Path, default=OUT, help="the directory (default build/profiles)")
    options = parser.parse_args()
    for name in options.name:
        if name not in LOADS:
            parser.error(f"unknown path {name!r} (choose from {', '.join(LOADS)})")
    for program in ("perf", "py-spy"):
        _find(program)
    options.out.mkdir(parents=True, exist_ok=True)
    with (
        Progress(disable=True) as progress,
        EmbeddedCluster(f"profile-{os.getpid()}", settings=SETTINGS, keep=False) as cluster,
    ):
        house = House(cluster, 1, True, progress, progress.add_task("profile", line=""))
        house.prepare()
        for name in options.name or LOADS:
            _profile(house, name, options.seconds, options.out)
    return 0


def _profile(house: House, name: str, seconds: float, out: Path) -> None:
    with LOADS[name](house) as load, tempfile.TemporaryDirectory(prefix="pgps-profile-") as directory:
        # Once before: plans are made, catalogs are read.
        load.turn()
        samples = _Samples(house, load.processes, Path(directory))
        samples.take(seconds, load.turn)
        graphs = {"server": samples.of_server(), "worker": samples.of_python()}
    for part, folded in graphs.items():
        path = out / f"{name}-{part}.svg"
        path.write_text(flames.draw(folded, f"{name}: {part}"))
        path.with_suffix(".folded").write_text(flames.to_text(folded))
        print(path)


def family(pid: int) -> list[int]:
    """Return a process and its children."""
    children = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        # The name of the program, in parentheses, may contain anything.
        with contextlib.suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                children.append(int(status.parent.name))
    return [pid, *sorted(children)]


class _Samples:
    """The programs that sample, and what they have written."""

    def __init__(self, house: House, processes: dict[str, int], directory: Path) -> None:
        self._house, self._processes, self._directory = house, processes, directory
        self._names: dict[int, str] = {}

    def take(self, seconds: float, turn: Callable[[], object]) -> None:
        """Take samples while the load goes on; raises RuntimeError with what a program says that failed."""
        for _ in range(_ATTEMPTS):
            self._names = self._backends()
            said = self._take(seconds, turn)
            # A process that ended between the look at all of them and perf's own: autovacuum starts some now and then.
            if said is None or "No such process" not in said:
                break
        if said is not None:
            raise RuntimeError(said + _hint())

    def _take(self, seconds: float, turn: Callable[[], object]) -> str | None:
        """Return None when all has gone well, else what the programs have said."""
        log = self._directory / "log"
        with log.open("w") as said, contextlib.ExitStack() as stack:
            running = []
            for command in self._commands(seconds):
                process = subprocess.Popen([_find(command[0]), *command[1:]], stdout=said, stderr=said)
                stack.callback(process.wait)
                stack.callback(process.terminate)
                running.append(process)
            while any(process.poll() is None for process in running) and not any(p.returncode for p in running):
                turn()
            return log.read_text() if any(process.returncode for process in running) else None

    def _commands(self, seconds: float) -> Iterator[list[str]]:
        # The postmaster is among them, and with it all processes that it starts meanwhile.
        pids = ",".join(map(str, family(self._house.cluster.pid or 0)))
        yield [
            "perf", "record", "-e", "cpu-clock", "-F", str(_HERTZ), "-g", "-o", str(self._directory / "perf.data"),
            "-p", pids, "--", "sleep", str(seconds),
        ]  # fmt: skip
        for name, pid in self._processes.items():
            yield [
                "py-spy", "record", "--format", "raw", "--rate", "250", "--duration", str(max(1, int(seconds))),
                "--output", str(self._directory / name), "--pid", str(pid),
            ]  # fmt: skip

    def _backends(self) -> dict[int, str]:
        """Return what the server's processes are: the name of the application, else what kind they are."""
        with self._house.cluster.connect() as connection:
            rows = connection.execute(
                "select pid, coalesce(nullif(regexp_replace(application_name, '^pgps-worker/.*/', 'worker: '), ''),"
                " backend_type) from pg_stat_activity"
            ).fetchall()
        return dict(rows)

    def of_server(self) -> Folded:
        """Fold perf's samples."""
        command = [_find("perf"), "script", "-i", str(self._directory / "perf.data"), "-F", "comm,pid,ip,sym"]
        script = subprocess.run(command, check=True, text=True, capture_output=True).stdout
        return flames.of_perf(script, self._names | self._backends())

    def of_python(self) -> Folded:
        """Fold py-spy's samples of all processes."""
        folded: Folded = Counter()
        for name in self._processes:
            folded += flames.of_py_spy((self._directory / name).read_text(), name)
        return folded


def _find(program: str) -> str:
    """Return the path of a program, which may stand beside Python; raises SystemExit with what to type."""
    found = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if found is None:
        raise SystemExit(f"error: no program {program}\nhint: make profile installs it")
    return found


def _hint() -> str:
    if os.geteuid() and _PARANOID.exists() and int(_PARANOID.read_text()) > 1:
        return "hint: sudo sysctl kernel.perf_event_paranoid=1 kernel.yama.ptrace_scope=0"
    return ""


if __name__ == "__main__":
    sys.exit(main())
