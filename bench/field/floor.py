"""The limits of this machine: the same work without a queue around it."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import psycopg

from bench.house import opened, timed
from bench.pgbench import pgbench

if TYPE_CHECKING:
    from pathlib import Path

    from bench.house import House

__all__ = ["Floor", "measure"]

Floor = dict[str, float]

_TABLE = "n bigint not null, symbol text not null, price numeric not null, volume bigint not null"
_ROWS = 200_000
_SOURCE = f"select n, 'S' || n % 100, n % 1000, n from generate_series(1, {_ROWS}) n"
_INSERT = "\\set n random(1, 100)\ninsert into bare (n, symbol, price, volume) values (:n, 'S' || :n, :n, :n);\n"


def measure(house: House) -> Floor:
    """Return events or operations a second; NOTIFY in milliseconds."""
    seconds = house.scale(3, 1)
    with house.database("template1") as dsn, opened(dsn) as connection:
        connection.execute(f"create table bare ({_TABLE})".encode())
        floor = {"fsync a second, 8 kB written before each": _fsyncs(house.cluster.directory, seconds)}
        for clients in (1, 20):
            house.say(f"floor: INSERT, {clients} clients")
            floor[f"bare INSERT, one a transaction, {clients} clients"] = pgbench(
                dsn, _INSERT, seconds=seconds, clients=clients
            )
        house.say("floor: INSERT … SELECT, COPY, SELECT, NOTIFY")
        bulk = [timed(lambda: connection.execute(f"insert into bare {_SOURCE}".encode())) for _ in range(3)]
        floor[f"bare INSERT … SELECT, {_ROWS:,} rows"] = _ROWS / statistics.median(bulk)
        floor[f"COPY, {_ROWS:,} rows"] = _ROWS / statistics.median(_copy(connection) for _ in range(3))
        floor["SELECT of 100 rows as jsonb, rows a second, one client"] = _select(connection, seconds)
        floor["LISTEN/NOTIFY, milliseconds"] = _notify(dsn, 200)
    return floor


def _fsyncs(directory: Path, seconds: float) -> float:
    """Return how often a second a page can be written and forced to the disk of the clusters."""
    done = 0
    with tempfile.TemporaryFile(dir=directory) as file:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            os.pwrite(file.fileno(), b"\1" * 8192, 8192 * (done % 1000))
            os.fdatasync(file.fileno())
            done += 1
    return done / seconds


def _copy(connection: psycopg.Connection) -> float:
    rows = b"".join(b"%d\tS%d\t%d\t%d\n" % (n, n % 100, n % 1000, n) for n in range(_ROWS))

    def copy() -> None:
        with connection.cursor() as cursor, cursor.copy("copy bare from stdin") as stream:
            stream.write(rows)

    return timed(copy)


def _select(connection: psycopg.Connection, seconds: float) -> float:
    rows = 0
    connection.execute("create table page as select to_jsonb(b) as payload from bare b limit 100")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        rows += len(connection.execute("select payload from page").fetchall())
    return rows / seconds


def _notify(dsn: str, times: int) -> float:
    taken: list[float] = []
    ready = threading.Event()

    def listen() -> None:
        with psycopg.connect(dsn, autocommit=True) as listener:
            listener.execute("listen floor")
            ready.set()
            for notification in listener.notifies(timeout=30, stop_after=times):
                taken.append((time.time() - float(notification.payload)) * 1000)  # noqa: PERF401 - as they come

    thread = threading.Thread(target=listen)
    thread.start()
    ready.wait()
    with opened(dsn) as sender:
        for _ in range(times):
            sender.execute("select pg_notify('floor', %s)", [repr(time.time())])
            time.sleep(0.005)  # one at a time: the floor is that of an idle server
    thread.join()
    return statistics.median(taken)
