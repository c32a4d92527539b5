"""One link, against other ways to carry events between databases.

200,000 events of four attributes are published at one database in 20 transactions, while nothing
carries them; then they are carried to another database of the same server (wal_level logical, which
replication needs), by a link with a filter that all events pass, by PostgreSQL's logical replication
of a table, with the same row filter, in binary, and by a cascaded worker of pgq_node. Measured is the
time from when the carrier is connected until the other database has committed all. PgQ's packages
are installed by name if they are missing and can be; else it is left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.chain import LINK, ROWS, chained, eventually, value
from bench.figures import Figure, Target, compare
from bench.house import SETTINGS, House, opened
from bench.subjects import ATTRIBUTES, COLUMNS
from pgps.embedded import EmbeddedCluster

if TYPE_CHECKING:
    import psycopg

TITLE = "one link"
_PARTS = 20
_FILTER = "price >= 0"
_PACKAGES = ("postgresql-15-pgq-node", "python3-pgq")
_SYSTEM_PYTHON = "/usr/bin/python3"
_WORKER = """import sys
from pgq.cascade.worker import CascadedWorker
class Worker(CascadedWorker):
    def process_remote_event(self, source, target, event):
        # Events are copied into the queue of this node; only those of PgQ itself are acted upon.
        if event.ev_type.startswith("pgq."):
            super().process_remote_event(source, target, event)
Worker("cascade", "target", sys.argv[1:]).start()
"""


def run(house: House) -> list[Figure]:
    """Measure it."""
    events = house.scale(200_000, 40_000)
    has_pgq = _has_pgq()
    linked: list[float] = []
    others: dict[str, list[float]] = {"logical replication": [], "pgq_node": []}
    cluster = EmbeddedCluster(f"bench-peers-{os.getpid()}", settings=SETTINGS | {"wal_level": "logical"}, keep=False)
    with cluster:
        peers = House(cluster, house.runs, house.quick, house.progress, house.task)
        peers.prepare()
        for number in house.pairs():
            measures = [("link", _link), ("logical replication", _replicate)] + [("pgq_node", _cascade)] * has_pgq
            turn = number % len(measures)
            for name, measure in measures[turn:] + measures[:turn]:
                house.say(f"peers: {name}")
                (linked if name == "link" else others[name]).append(measure(peers, events))
    target = Target("at least", 1.0)
    return [
        compare(f"{TITLE} against {name}", linked, rates, unit="/s", target=target)
        for name, rates in others.items() if rates
    ]  # fmt: skip


def _link(house: House, events: int) -> float:
    with chained(house, 2) as chain:
        chain.subscribe("all", 1, _FILTER)
        chain.pause()
        chain.publish(events, _PARTS)
        house.checkpoint()
        chain.resume()
        began = time.perf_counter()
        chain.wait_for(events)
        rate = events / (time.perf_counter() - began)
        chain.first.execute("select pgps.alter_link(%s, enabled => false)", [LINK])
        return rate


def _replicate(house: House, events: int) -> float:
    with house.database() as source, house.database() as target, opened(source) as here, opened(target) as there:
        for session in (here, there):
            session.execute(f"create table quote ({ATTRIBUTES})".encode())
        here.execute(f"create publication bench for table quote where ({_FILTER}) with (publish = 'insert')".encode())
        here.execute("select pg_create_logical_replication_slot('bench', 'pgoutput')")
        there.execute(
            f"create subscription bench connection '{source}' publication bench"
            " with (create_slot = false, slot_name = 'bench', copy_data = false, enabled = false,"
            " binary = true)".encode()
        )
        try:
            for number in range(_PARTS):
                last = value(here, "select pg_current_wal_insert_lsn()::text")
                _insert(here, f"insert into quote ({COLUMNS}) select {ROWS}", events, number)
            house.checkpoint()
            there.execute("alter subscription bench enable")
            eventually(lambda: value(there, "select count(pid) from pg_stat_subscription"), every=0.001)
            began = time.perf_counter()
            reached = (
                "select coalesce(pg_replication_origin_progress('pg_' || oid, false) > %s::pg_lsn, false)"
                " from pg_subscription"
            )
            eventually(lambda: value(there, reached, last), every=0.005, within=600)
            # The position is told before the transaction that comes to it is seen.
            eventually(lambda: value(there, "select count(*) from quote") == events, every=0.001)
            return events / (time.perf_counter() - began)
        finally:
            there.execute("alter subscription bench disable")
            there.execute("alter subscription bench set (slot_name = none)")
            there.execute("drop subscription bench")
            idle = "select not active from pg_replication_slots where slot_name = 'bench'"
            eventually(lambda: value(here, idle))
            here.execute("select pg_drop_replication_slot('bench')")


def _insert(session: psycopg.Connection, statement: str, events: int, part: int) -> None:
    session.execute(
        f"{statement} from generate_series(%s::integer, %s::integer) n".encode(),
        [part * events // _PARTS + 1, (part + 1) * events // _PARTS],
    )


def _cascade(house: House, events: int) -> float:
    with house.database() as source, house.database() as target, opened(source) as here, opened(target) as there:
        _make_nodes(here, there, source, target)
        for number in range(_PARTS):
            payload = f"select row_to_json(r)::text from (select {ROWS}) r"
            _insert(here, f"select count(pgq.insert_event('bench', 'quote', ({payload})))", events, number)
            here.execute("select pgq.force_tick('bench')")
            here.execute("select pgq.ticker('bench')")
        house.checkpoint()
        last = value(here, "select max(tick_id) from pgq.tick")
        with tempfile.TemporaryDirectory() as directory:
            process = _start_worker(Path(directory), target)
            try:
                connected = (
                    "select count(*) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                )
                eventually(lambda: value(here, connected), every=0.001)
                began = time.perf_counter()
                eventually(lambda: value(there, "select max(tick_id) from pgq.tick") >= last, every=0.005, within=600)
                return events / (time.perf_counter() - began)
            finally:
                process.terminate()
                process.wait(timeout=30)


def _make_nodes(here: psycopg.Connection, there: psycopg.Connection, source: str, target: str) -> None:
    for session in (here, there):
        session.execute("create extension pgq")
        session.execute("create extension pgq_node")
        for name, dsn in (("here", source), ("there", target)):
            session.execute("select pgq_node.register_location('bench', %s, %s, false)", [name, dsn])
    here.execute("select pgq_node.create_node('bench', 'root', 'here', 'worker_here', null, null, null)")
    here.execute("select pgq_node.register_subscriber('bench', 'there', 'worker_there', null)")
    watermark = value(here, "select max(tick_id) from pgq.tick")
    there.execute(
        "select pgq_node.create_node('bench', 'branch', 'there', 'worker_there', 'here', %s, null)", [watermark]
    )


def _start_worker(directory: Path, target: str) -> subprocess.Popen[bytes]:
    (directory / "worker.py").write_text(_WORKER)
    (directory / "worker.ini").write_text(
        # The session acts as a replica, because nobody else may write into the queue of a branch.
        f"[cascade]\njob_name = worker_there\nqueue_name = bench\nloop_delay = 0.05\n"
        f"target = {target} options=-csession_replication_role=replica\n"
        f"logfile = {directory}/log\npidfile = {directory}/pid\n"
    )
    with (directory / "output").open("wb") as output:
        return subprocess.Popen(
            [_SYSTEM_PYTHON, str(directory / "worker.py"), str(directory / "worker.ini")], stdout=output, stderr=output
        )


def _has_pgq() -> bool:
    """Look for PgQ and install it where that is possible; show a message when it is not."""
    if not _is_there() and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(
            ["apt-get", "install", "--yes", "--no-install-recommends", *_PACKAGES],
            check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    if not _is_there():
        print(f"pgq_node is not installed (Debian: {', '.join(_PACKAGES)}); its comparison is skipped")
    return _is_there()


def _is_there() -> bool:
    """Return whether the system's Python has PgQ's worker; the server's extension is in the other package."""
    if not Path(_SYSTEM_PYTHON).exists():
        return False
    found = subprocess.run([_SYSTEM_PYTHON, "-c", "import pgq.cascade.worker"], check=False, stderr=subprocess.DEVNULL)
    return found.returncode == 0 and any(Path("/usr/share/postgresql").glob("*/extension/pgq_node.control"))
