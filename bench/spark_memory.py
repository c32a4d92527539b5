"""The driver's memory while audited events are archived: 100,000 of them, and 1,000,000.

`pgps-spark` runs the job archive in a process of its own, with tasks in the driver (local[2]). What counts is the
largest resident memory of that process and all below it at one time: the JVM, the Python of the driver, of the
source and of the tasks; pages that they share count once. A JVM collects garbage when its heap is full, not before,
so that its size would say how much garbage there has been: the heap has a fixed size, and whether it does is what is
measured. Reported besides: the most that a marking of the heap has found in use.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench import spark as common
from bench.figures import Figure, Target, ratios
from bench.house import opened
from bench.subjects import COLUMNS

if TYPE_CHECKING:
    from bench.house import House

TITLE = "Spark: driver's memory, archive of 1,000,000 audited events"
_HEAP = "512m"
_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class _Most:
    """MB: of all processes at one time, and of the heap in use."""

    resident: float
    heap: float


def steps(house: House) -> int:
    """Return how many runs there are; more of them would tell nothing new."""
    return 1 if house.quick else 2


def run(house: House) -> list[Figure]:
    """Measure it."""
    few, many = [], []
    for _ in house.pairs(steps(house)):
        few.append(_archive(house, 100_000))
        many.append(_archive(house, house.scale(1_000_000, 200_000)))
    resident, before = [most.resident for most in many], [most.resident for most in few]
    heap, used = [most.heap for most in many], statistics.median(most.heap for most in few)
    growth = "the same: growth from 100,000 events"
    return [
        Figure(TITLE, resident, Target("at most", 1500, "MB"), resident, unit="MB", note=f"heap {_HEAP}, and Python"),
        Figure(growth, ratios(resident, before), Target("at most", 1.2), resident, before, "MB"),
        Figure("the same: heap in use", heap, pgps=heap, unit="MB", note=f"reported; of 100,000: {used:g} MB"),
    ]


def _archive(house: House, events: int) -> _Most:
    house.say(f"archive of {events:,} events")
    with common.broker(house) as (admin, dsn), opened(admin) as connection, tempfile.TemporaryDirectory() as directory:
        connection.execute("select pgps.alter_queue('quote_in', auditable => true)")
        with opened(dsn) as publisher:
            publisher.execute("select pgps.subscribe('bench_archive', 'quote')")
            publisher.execute(
                f"insert into pgps_event.quote ({COLUMNS}) select 'S' || n %% 1000, (n %% 10000)::numeric / 100, n,"
                " clock_timestamp() from generate_series(1, %s) n".encode(),
                [events],
            )
        connection.execute("select pgps.dispatch()")
        path = Path(directory) / "pipeline.toml"
        log = Path(directory) / "gc.log"
        path.write_text(
            f'[pipeline]\ndsn = "{dsn}"\n[spark]\n"spark.ui.enabled" = "false"\n'
            f'"spark.driver.extraJavaOptions" = "-Xms{_HEAP} -Xlog:gc:file={log}"\n'
            '[jobs.keep]\nkind = "archive"\nevent_type = "quote"\nsubscription = "bench_archive"\n'
            f'directory = "{directory}/archive"\n'
        )
        return _Most(_largest(path), _in_use(log))


def _largest(path: Path) -> float:
    """Run the job, and return the largest resident memory of its processes together, in MB."""
    command = [sys.executable, "-m", "pgps_spark", "run", str(path), "--master", "local[2]", "--driver-memory", _HEAP]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        largest = 0.0
        while process.poll() is None:
            largest = max(largest, sum(_resident(pid) for pid in _tree(process.pid)))
            time.sleep(_EVERY)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(log.read().decode(errors="replace")[-2000:])
    return largest


def _tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for each in found:
        # Look at each thread, because a process is the child of the thread that has started it.
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found


def _resident(pid: int) -> float:
    """Return the resident memory of a process in MB, its part of what it shares with others."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return int(text.partition("\nPss:")[2].split()[0]) / 1024 if "\nPss:" in text else 0.0


def _in_use(log: Path) -> float:
    """Return the largest heap in use that a marking phase of the garbage collector has found, in MB."""
    return max((float(mb) for mb in re.findall(r"Pause (?:Remark|Full).*->(\d+)M\(", log.read_text())), default=0.0)
