"""Kills while two workers detect composite events, from seeds: the same is detected as without, once, and in order.

    python -m tests.chaos.detection --seed 1 --count 10 [--journal FILE]

A story has readings of twenty patients in transactions of their own, and two workers; workers, their sessions and the
server are killed at random moments. Exit status: 0 all clean, 1 something was lost, repeated, out of order or not done.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg

from pgps import install
from pgps.embedded import EmbeddedCluster
from tests.fix_broker import call, make_type, rows, value
from tests.fix_db import wait_until
from tests.fix_worker import WorkerProcess, worker_login
from tests.journal import Entry, Journal, commit

PATIENTS = range(20)
TEMPLATE = "detection_template"
SESSION = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and application_name like 'pgps-worker/%%/composites'
    order by pid offset %s limit 1"""
Pairs = dict[int, list[tuple[int, int]]]


class Story:
    """One database of a cluster that is the story's own, and what should be detected in it."""

    def __init__(self, cluster: EmbeddedCluster, home: Path, seed: int) -> None:
        self.cluster, self.home, self.chance = cluster, home, random.Random(seed)
        self.name = f"story_{seed}"
        self.workers: list[WorkerProcess] = []
        self.started = self.kills = self.last = 0
        self.waiting: dict[int, list[int]] = {patient: [] for patient in PATIENTS}
        self.expected: Pairs = {patient: [] for patient in PATIENTS}

    def tell(self) -> str:
        """Play it; return "clean", or what was wrong."""
        with self.cluster.connect() as connection:
            rows(connection, f"create database {self.name} template {TEMPLATE}")
        try:
            for _ in range(2):
                self.start_worker()
            for _ in range(30):
                self.publish()
                if self.chance.random() < 0.3:
                    self.chance.choice((self.kill_worker, self.kill_worker, self.kill_session, self.kill_server))()
            wait_until(self.is_complete, what=f"all pairs: {self.found()} of {self.expected}")
            return "clean" if self.found() == self.expected else f"{self.found()} instead of {self.expected}"
        finally:
            for worker in self.workers:
                worker.kill9()
            with self.cluster.connect() as connection:
                rows(connection, f"drop database {self.name} with (force)")

    def start_worker(self) -> None:
        self.started += 1
        dsn = self.cluster.dsn(self.name)
        log = self.home / f"{self.name}-{self.started}.log"
        self.workers.append(WorkerProcess(dsn, worker_login(dsn), f"w{self.started}", log, ()))

    def publish(self) -> None:
        """Publish readings of some patients; pair each, in this order, with the oldest that has no pair."""
        some = [(self.chance.choice(PATIENTS), self.last + n) for n in range(1, self.chance.randint(1, 40) + 1)]
        self.last = some[-1][1]
        given = [[patient for patient, _ in some], [n for _, n in some]]
        with psycopg.connect(self.cluster.dsn(self.name)) as connection:
            rows(connection, "insert into pgps_event.reading select * from unnest(%s::integer[], %s::integer[])", given)
        for patient, n in some:
            if n % 7 and self.waiting[patient]:
                self.expected[patient].append((self.waiting[patient].pop(0), n))
            self.waiting[patient].append(n)

    def kill_worker(self) -> None:
        self.kills += 1
        self.workers.pop(self.chance.randrange(len(self.workers))).kill9()
        self.start_worker()

    def kill_session(self) -> None:
        self.kills += 1
        with psycopg.connect(self.cluster.dsn(self.name)) as connection:
            rows(connection, SESSION, [self.chance.randrange(2)])

    def kill_server(self) -> None:
        self.kills += 1
        self.cluster.kill9()
        self.cluster.start()

    def found(self) -> Pairs:
        """Return what was detected of each patient, in order of delivery."""
        query = """
            select l.patient, l.first, l.second from pgps_internal.pair_log l
            left join pgps_internal.batch_type b on b.type_id = (select t.type_id from pgps_internal.event_type t
                where t.name = 'pair') and l.event_id <@ b.ids
            order by b.batch_id nulls last, l.event_id"""
        found: Pairs = {patient: [] for patient in PATIENTS}
        with psycopg.connect(self.cluster.dsn(self.name)) as connection:
            for patient, first, second in rows(connection, query):
                found[patient].append((first, second))
        return found

    def is_complete(self) -> bool:
        """Tell whether as much was detected as there should be, and nothing is left to be done."""
        with psycopg.connect(self.cluster.dsn(self.name)) as connection:
            lag = value(connection, "select lag from pgps.composite_events")
            count = value(connection, "select count(*) from pgps_internal.pair_log")
            return bool(lag == 0 and count >= sum(map(len, self.expected.values())))


def prepare(cluster: EmbeddedCluster) -> None:
    """Make the database that stories begin with."""
    with cluster.connect() as connection:
        rows(connection, f"create database {TEMPLATE}")
    install.install(cluster.dsn(TEMPLATE))
    with psycopg.connect(cluster.dsn(TEMPLATE), autocommit=True) as connection:
        make_type(connection, "reading", "patient integer not null, n integer not null")
        call(
            connection, "create_composite_event", "pair", "reading a ; reading b", context="chronicle", max_open=1000,
            partition_by="patient", filter="b.n % 7 <> 0", auditable=True,
            attributes="patient integer = a.patient, first integer = a.n, second integer = b.n",
        )  # fmt: skip


def run(seeds: range, note: Callable[[Entry], object]) -> bool:
    """Tell the stories of some seeds; return whether all were clean."""
    all_clean = True
    with (
        tempfile.TemporaryDirectory(prefix="pgps-detection-") as home,
        EmbeddedCluster(f"detection-{seeds[0]}", keep=False) as cluster,
    ):
        prepare(cluster)
        for seed in seeds:
            began, story = time.monotonic(), Story(cluster, Path(home), seed)
            result = story.tell()
            counts = {"events": story.last, "kills": story.kills}
            note(Entry("detection", seed, commit(), result, round(time.monotonic() - began, 1), counts))
            all_clean = all_clean and result == "clean"
    return all_clean


def main() -> int:
    """Read the arguments, run, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.detection", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--journal", type=Path, help="append each story to this file; see tests/journal.py")
    args = parser.parse_args()

    def note(entry: Entry) -> None:
        print(f"{entry.seed}: {entry.result}, {entry.counts}, {entry.seconds} s", flush=True)
        if args.journal:
            Journal(args.journal).note(entry)

    with suppress(KeyboardInterrupt):
        return 0 if run(range(args.seed, args.seed + args.count), note) else 1
    return 1


if __name__ == "__main__":
    sys.exit(main())
