"""The latency from a commit to the callback of a waiting client.

pgbench publishes single events at a steady rate (exponential gaps, 4 connections); a client in a
process of its own waits on the subscription's channel, receives, calls back, acknowledges; a worker
runs at its defaults. In the same run, in turn, the same transactions are bare NOTIFYs to a
listening process. A latency is the moment of the callback less the commit timestamp that the server
kept for the publishing transaction (track_commit_timestamp), both by the same machine's clock: the
disk's part of a commit is in it. A bare NOTIFY writes nothing and waits for no disk; one that
inserts a row first, which is what an event costs, is measured as well and reported. A run takes 20
seconds at one event a second and 6 at the other rates, for each of the three.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from bench.figures import Figure, Target, compare, percentile
from bench.house import opened, worker
from bench.pgbench import rate, start
from bench.subjects import COLUMNS, create_event_type, create_outbox, publisher
from bench.waiting import listener, running, subscriber

if TYPE_CHECKING:
    import psycopg

    from bench.house import House
    from bench.waiting import Waiting

TITLE = "commit to callback"
RATES = (1, 100, 1000)
_ENOUGH = 100

_VALUES = "values ('S', 1, 1, now())"
_SCRIPTS = {
    "pgps": f"insert into pgps_event.quote ({COLUMNS}) {_VALUES};\n",
    "bare": "select pg_notify('bare', pg_current_xact_id()::text);\n",
    "written": (
        f"with event as (insert into outbox ({COLUMNS}) {_VALUES} returning id)"
        " select pg_notify('bare', pg_current_xact_id()::text) from event;\n"
    ),
}


def run(house: House) -> list[Figure]:
    """Measure it."""
    with house.database() as dsn, opened(dsn) as connection:
        create_event_type(connection)
        create_outbox(connection)
        connection.execute("select pgps.subscribe('waiting', 'quote')")
        channel = str(_one(connection, "select channel from pgps.subscriptions where name = 'waiting'"))
        with (
            worker(dsn),
            running(subscriber, dsn, channel=channel, subscription="waiting") as events,
            running(listener, dsn, channel="bare") as notifications,
        ):
            clients = {"pgps": events, "bare": notifications, "written": notifications}
            figures = []
            for per_second in RATES:
                figures += _at_rate(house, connection, dsn, clients, per_second)
    return figures


def _at_rate(
    house: House, connection: psycopg.Connection, dsn: str, clients: dict[str, Waiting], per_second: int
) -> list[Figure]:
    seen: dict[str, list[list[float]]] = {name: [] for name in _SCRIPTS}
    seconds = house.scale(20, 12) if per_second == 1 else house.scale(6, 4)
    names = list(_SCRIPTS)
    for number in house.pairs():
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            house.say(f"latency: {name}, {per_second} events/s")
            seen[name].append(_measure(connection, dsn, clients[name], name, per_second, seconds))
    medians = {name: [statistics.median(one) for one in runs] for name, runs in seen.items()}
    figures = []
    for what, values, bound in (("median", medians, 6.0), ("99th percentile", _tails(seen), 10.0)):
        title = f"{TITLE}, {per_second:,}/s, {what}"
        target = Target("at most", bound)
        count = f"{sum(map(len, seen['pgps'])):,} events"
        figures.append(
            compare(
                title, values["pgps"], values["bare"], unit="ms", target=target, note=f"{count}; against a bare NOTIFY"
            )
        )
        figures.append(compare(title, values["pgps"], values["written"], unit="ms", note="a row written and a NOTIFY"))
    return figures


def _tails(seen: dict[str, list[list[float]]]) -> dict[str, list[float]]:
    """Return the 99th percentile of each run, or one of all runs together where a run has less than 100 events."""
    tails = {}
    for name, runs in seen.items():
        enough = min(len(one) for runs in seen.values() for one in runs) >= _ENOUGH
        tails[name] = [
            percentile(one, 0.99) for one in (runs if enough else [[latency for one in runs for latency in one]])
        ]
    return tails


def _measure(
    connection: psycopg.Connection, dsn: str, client: Waiting, name: str, per_second: int, seconds: int
) -> list[float]:
    """Return latencies in milliseconds."""
    client.result()
    process = start(publisher(dsn), _SCRIPTS[name], ["--rate", str(per_second)], seconds=seconds, clients=4)
    output, _ = process.communicate()
    rate(output)
    time.sleep(0.5)  # what was published last is on its way
    seen = client.result()
    sent = int(output.split("number of transactions actually processed: ")[1].split()[0].split("/")[0])
    if len(seen) != sent:
        raise RuntimeError(f"{name}: {sent} sent, {len(seen)} seen")
    rows = connection.execute(
        "select x, extract(epoch from pg_xact_commit_timestamp((x & 4294967295)::text::xid))"
        " from unnest(%s::bigint[]) x",
        [list(seen)],
    ).fetchall()
    return [(seen[xid] - float(committed)) * 1000 for xid, committed in rows]


def _one(connection: psycopg.Connection, query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return len(RATES) * house.runs
