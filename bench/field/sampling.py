"""Where the time goes while something runs: statements, functions, wait events, processors."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.house import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

__all__ = ["Profile", "profiled"]

_EVERY = 0.01
_TICKS = os.sysconf("SC_CLK_TCK")
_MOST = 6
# The connections of a worker are named after their tasks; the others are recognised by the applications' role.
_WHO = """
select pid, case when application_name like 'pgps-worker/%%' then 'worker: ' || split_part(application_name, '/', 3)
    when usename = %s then 'clients'' backends' when backend_type <> 'client backend' then backend_type end as who,
    case when state = 'active' or backend_type <> 'client backend'
        then coalesce(wait_event_type || ': ' || wait_event, 'processor') end as what
from pg_stat_activity where pid <> pg_backend_pid() and (datname = current_database() or datname is null)
"""
_STATEMENTS = """
select calls, total_exec_time, rows, regexp_replace(left(query, 100), '\\s+', ' ', 'g') from pg_stat_statements
where toplevel and dbid = (select oid from pg_database where datname = current_database())
order by total_exec_time desc limit %s
"""
_FUNCTIONS = """
select calls, self_time, schemaname || '.' || funcname from pg_stat_user_functions order by self_time desc limit %s
"""


@dataclass(slots=True)
class Profile:
    """Measurements: milliseconds and calls of statements and functions, shares of samples, processor seconds."""

    seconds: float = 0.0
    statements: list[tuple[int, float, int, str]] = field(default_factory=list)
    functions: list[tuple[int, float, str]] = field(default_factory=list)
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    processors: Counter[str] = field(default_factory=Counter)
    samples: int = 0


def prepare(dsn: str) -> None:
    """Turn on what is counted, for connections made from now on; `dsn` is the superuser's."""
    with opened(dsn) as connection:
        name = connection.info.dbname
        connection.execute("create extension if not exists pg_stat_statements")
        connection.execute(f"alter database {name} set track_functions = 'all'".encode())
        connection.execute(f"alter database {name} set pg_stat_statements.track = 'all'".encode())


@contextlib.contextmanager
def profiled(dsn: str, role: str, own: dict[str, int]) -> Iterator[Profile]:
    """Profile the database while the block runs; `own` are processes that are not PostgreSQL's, by name."""
    profile = Profile()
    stop = threading.Event()
    with opened(dsn) as connection:
        connection.execute("select pg_stat_statements_reset(), pg_stat_reset()")
        before = _processors(connection, role, own)
        sampler = threading.Thread(target=_sample, args=(dsn, role, profile, stop))
        sampler.start()
        began = time.monotonic()
        try:
            yield profile
        finally:
            profile.seconds = time.monotonic() - began
            stop.set()
            sampler.join()
        for pid, (who, used) in _processors(connection, role, own).items():
            profile.processors[who] += max(0.0, used - before.get(pid, (who, 0.0))[1])  # type: ignore[assignment]
        profile.statements = connection.execute(_STATEMENTS.encode(), [_MOST]).fetchall()
        # Sessions report the counts of their functions only when they have been idle for a while.
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline and not profile.functions:
            profile.functions = connection.execute(_FUNCTIONS.encode(), [_MOST]).fetchall()
            time.sleep(0.2)


def _sample(dsn: str, role: str, profile: Profile, stop: threading.Event) -> None:
    with opened(dsn) as connection:
        while not stop.wait(_EVERY):
            for _, who, what in connection.execute(_WHO.encode(), [role]).fetchall():
                if who is not None and what is not None and not what.startswith("Activity"):
                    profile.waits[who, what] += 1
            profile.samples += 1


def _processors(connection: psycopg.Connection, role: str, own: dict[str, int]) -> dict[int, tuple[str, float]]:
    """Return the processor time that each process has used."""
    known = {pid: who for pid, who, _ in connection.execute(_WHO.encode(), [role]).fetchall() if who}
    known |= {pid: name for name, pid in own.items()}
    found = {}
    for pid, who in known.items():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[pid] = (who, (int(fields[11]) + int(fields[12])) / _TICKS)
    return found
