"""The worker's memory with many subscriptions.

There are 100,000 subscriptions, a worker starts, 10,000 events that match 50,000 times are published
and dispatched; then the resident memory of the worker's process counts, shared libraries included.
What its sessions hold in the server beyond shared buffers (anonymous memory) is reported beside it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.crowd import EACH, crowded, publish
from bench.crowd import many as number_of_many
from bench.figures import Figure, Target
from bench.house import opened, worker

if TYPE_CHECKING:
    import psycopg

    from bench.house import House

TITLE = "the worker's memory with 100,000 subscriptions"


def run(house: House) -> list[Figure]:
    """Measure it."""
    many = number_of_many(house)
    template, _ = crowded(house)
    with house.database(template) as dsn:
        resident, sessions = [], []
        with opened(dsn) as connection:
            for _ in house.pairs():
                house.say("memory")
                with worker(dsn) as pid:
                    for _ in range(3):
                        publish(connection, "many", 10_000, many // EACH)
                        _wait_until_dispatched(connection)
                    resident.append(megabytes(pid, "VmRSS"))
                    sessions.append(sum(megabytes(backend, "RssAnon") for backend in _backends(connection)))
    note = f"{many:,} subscriptions; its process" if many < 100_000 else "its process"
    return [
        Figure(TITLE, resident, Target("at most", 200, "MB"), resident, unit="MB", note=note),
        Figure("the same: its sessions in the server", sessions, pgps=sessions, unit="MB", note="reported"),
    ]


def _wait_until_dispatched(connection: psycopg.Connection) -> None:
    deadline = time.monotonic() + 120
    while connection.execute(
        "select count(*) from (select c.hi from pgps_internal.control c order by c.hi desc limit 1) c"
        " where c.hi > coalesce((select max(b.max_hi) from pgps_internal.batch b), 0)"
    ).fetchone() != (0,):
        if time.monotonic() > deadline:
            raise RuntimeError("the worker does not dispatch")
        time.sleep(0.1)


def _backends(connection: psycopg.Connection) -> list[int]:
    rows = connection.execute(
        "select pid from pg_stat_activity where datname = current_database() and application_name like 'pgps-worker/%'"
    ).fetchall()
    return [pid for (pid,) in rows]


def megabytes(pid: int, what: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {what} of process {pid}")
