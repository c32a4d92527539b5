"""The driver's memory while a million audited events are archived.

`pgps-spark` runs the job archive in a process of its own, with tasks in the driver (local[2]) and at most 768 MB of
heap, once over 100,000 events and once over 1,000,000. What counts is the
largest resident memory of the JVM, heap and all else.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import spark as common
from bench.figures import Figure, Target, ratios
from bench.house import opened
from bench.subjects import COLUMNS

if TYPE_CHECKING:
    from bench.house import House

TITLE = "Spark: driver's memory, archive of 1,000,000 audited events"
_HEAP = "768m"


def steps(house: House) -> int:
    """Return how many runs there are: more would tell nothing new."""
    return 1 if house.quick else 2


def run(house: House) -> list[Figure]:
    """Measure it."""
    few, many = [], []
    for _ in house.pairs(steps(house)):
        few.append(_archive(house, 100_000))
        many.append(_archive(house, house.scale(1_000_000, 200_000)))
    return [
        Figure(TITLE, many, Target("at most", 1500, "MB"), many, unit="MB", note=f"heap of at most {_HEAP}"),
        Figure("the same: growth from 100,000 events", ratios(many, few), Target("at most", 1.2), many, few, "MB"),
    ]


def _archive(house: House, events: int) -> float:
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
        path.write_text(
            f'[pipeline]\ndsn = "{dsn}"\n[spark]\n"spark.ui.enabled" = "false"\n'
            '[jobs.keep]\nkind = "archive"\nevent_type = "quote"\nsubscription = "bench_archive"\n'
            f'directory = "{directory}/archive"\n'
        )
        return _largest(path)


def _largest(path: Path) -> float:
    """Run the job, and return the largest resident memory of its JVM in MB."""
    command = [sys.executable, "-m", "pgps_spark", "run", str(path), "--master", "local[2]", "--driver-memory", _HEAP]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        largest = 0.0
        while process.poll() is None:
            largest = max(largest, *(_high_water(child) for child in _children(process.pid)), 0.0)
            time.sleep(0.2)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(log.read().decode(errors="replace")[-2000:])
    return largest


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _high_water(pid: int) -> float:
    """Return the largest resident memory of a JVM so far, 0 of anything else."""
    try:
        if "java" not in Path(f"/proc/{pid}/comm").read_text():
            return 0.0
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0
