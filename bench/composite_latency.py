"""The latency from the commit of a composite event's terminator to the callback of its rule.

pgbench publishes single events of type b at a steady rate (exponential gaps, 4 connections). Each ends an occurrence of
`a ; b` keyed by 1,000 symbols, whose a came before and stays the most recent one. A callback of an internal
subscription notes when it runs; a worker runs at its defaults. In turn, in a database of its own, the same events go to
a callback that is subscribed to b itself. A latency is the moment of the callback less the commit timestamp of the
transaction that published.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, LiteralString

from bench.composite import call, prepare, rows, value
from bench.figures import Target, compare
from bench.house import alternate, opened, worker
from bench.pgbench import rate, start

if TYPE_CHECKING:
    import psycopg

    from bench.figures import Figure
    from bench.house import House

TITLE = "composite event: terminator's commit to callback"
RATE = 100
_SCRIPT = (
    "\\set symbol random(1, 1000)\n"
    "insert into pgps_event.b (symbol, n) values ('s' || :symbol, txid_current() & 2147483647);\n"
)
_LATENCIES: LiteralString = """
    select extract(epoch from called - pg_xact_commit_timestamp(xid::text::xid))::float8 * 1000 from seen
"""
_PATIENCE = 30.0


def run(house: House) -> list[Figure]:
    """Measure it."""
    seconds = house.scale(20, 6)
    mine: dict[str, list[float]] = {"median": [], "99th percentile": []}
    theirs: dict[str, list[float]] = {"median": [], "99th percentile": []}
    for number in house.pairs():
        found: dict[bool, list[float]] = {}
        alternate(
            number,
            lambda found=found: _measure(house, found, seconds, composite=True),  # type: ignore[misc]
            lambda found=found: _measure(house, found, seconds, composite=False),  # type: ignore[misc]
        )
        for into, one in ((mine, found[True]), (theirs, found[False])):
            into["median"].append(statistics.median(one))
            into["99th percentile"].append(statistics.quantiles(one, n=100)[98])
    note = f"{RATE} events/s for {seconds} s; against an internal subscription to the event itself"
    return [
        compare(
            f"{TITLE}, {what}", mine[what], theirs[what], unit="ms", note=note,
            target=Target("at most", 2) if what == "median" else None,
        )
        for what in mine
    ]  # fmt: skip


def _measure(house: House, found: dict[bool, list[float]], seconds: int, *, composite: bool) -> float:
    house.say(f"latency of {'composite' if composite else 'ordinary'} events")
    with house.database() as dsn, opened(dsn) as connection:
        prepare(connection)
        rows(connection, "create table seen (xid bigint, called timestamptz)")
        if composite:
            call(connection, "create_composite_event", "pair", "a ; b", partition_by="symbol", attributes="n int = b.n")
            rows(connection, "insert into pgps_event.a select 's' || g, 0 from generate_series(1, 1000) g")
        kind = "pair" if composite else "b"
        rows(
            connection,
            f"create function see(event pgps_event.{kind}) returns void language sql as"
            " $$ insert into seen values (event.n, clock_timestamp()) $$",
        )
        call(connection, "subscribe", "see", kind, execute="see")
        with worker(dsn):
            process = start(dsn, _SCRIPT, ["--rate", str(RATE)], seconds=seconds, clients=4)
            output, _ = process.communicate()
            rate(output)
            sent = int(output.split("number of transactions actually processed: ")[1].split()[0].split("/")[0])
            _all_seen(connection, sent)
        found[composite] = [float(latency) for (latency,) in rows(connection, _LATENCIES)]
        assert len(found[composite]) == sent
    return statistics.median(found[composite])


def _all_seen(connection: psycopg.Connection, sent: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while (seen := value(connection, "select count(*) from seen")) < sent:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{sent} sent, {seen} seen")
        time.sleep(0.1)


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return house.runs
