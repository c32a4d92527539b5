"""Publish one event in each transaction, with 20 clients.

pgbench inserts one event a transaction over 20 connections, in turn into the publish endpoint, the
outbox, an outbox whose trigger notifies, and PgQ's queue; a worker runs all the time, with one
subscription that takes a tenth of the events. The order changes from run to run. It is reported,
too, without a worker. Publishers are plain roles, as those of applications are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.figures import Figure, Target, compare
from bench.house import opened, worker
from bench.pgbench import pgbench
from bench.subjects import COLUMNS, create_event_type, create_outbox, publisher

if TYPE_CHECKING:
    import psycopg

    from bench.house import House

TITLE = "one event a transaction, 20 clients"

_VALUES = r"""\set n random(1, 100)
\set price random(1, 1000)
"""
_INSERT = _VALUES + f"insert into {{}} ({COLUMNS}) values ('S' || :n, :price, :n, now());\n"
_SCRIPTS = {
    "pgps": _INSERT.format("pgps_event.quote"),
    "outbox": _INSERT.format("outbox"),
    "notify": _INSERT.format("notifying"),
    "pgq": _VALUES
    + """select pgq.insert_event('bench', 'quote',
    format('{"symbol":"S%s","price":%s,"volume":%s}', :n::text, :price::text, :n::text));\n""",
}


def run(house: House) -> list[Figure]:
    """Measure it."""
    with house.database() as dsn:
        with opened(dsn) as connection:
            has_pgq = _set_up(connection)
        subjects = [name for name in _SCRIPTS if name != "pgq" or has_pgq]
        with worker(dsn):
            measured = {mode: _measure(house, dsn, subjects, mode) for mode in ("prepared", "simple")}
        alone = _measure(house, dsn, ["pgps", "outbox"], "prepared")
    figures = []
    for mode, rates in measured.items():
        figures += _figures(mode, rates)
    figures.append(compare(f"{TITLE}: no worker", alone["pgps"], alone["outbox"], unit="/s", note="reported"))
    return figures


def _figures(mode: str, rates: dict[str, list[float]]) -> list[Figure]:
    targets = {"outbox": ("an outbox", 0.7), "notify": ("an outbox with a NOTIFY trigger", 2.0), "pgq": ("PgQ", 1.0)}
    figures = []
    for other, (what, value) in targets.items():
        # Most drivers prepare their statements; the figures without prepared statements are reported as well.
        target = Target("at least", value) if mode == "prepared" else None
        note = f"against {what}"
        if other in rates:
            figures.append(
                compare(f"{TITLE}, -M {mode}", rates["pgps"], rates[other], unit="/s", target=target, note=note)
            )
    return figures


def _measure(house: House, dsn: str, subjects: list[str], mode: str) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in subjects}
    seconds = house.scale(8, 3)
    for number in house.pairs():
        turn = number % len(subjects)
        for name in subjects[turn:] + subjects[:turn]:
            house.say(f"single: {name}, {mode}")
            rates[name].append(pgbench(publisher(dsn), _SCRIPTS[name], seconds=seconds, clients=20, mode=mode))
    return rates


def _set_up(connection: psycopg.Connection) -> bool:
    """Create all subjects; return whether PgQ is there."""
    create_event_type(connection)
    create_outbox(connection)
    create_outbox(connection, "notifying")
    connection.execute(
        """
        create function notify_outbox() returns trigger language plpgsql as $$
        begin notify outbox; return null; end $$;
        create trigger notify_outbox after insert on notifying for each statement execute function notify_outbox()
        """
    )
    connection.execute("select pgps.subscribe('tenth', 'quote', 'price > 900')")
    row = connection.execute("select count(*) from pg_available_extensions where name = 'pgq'").fetchone()
    if not row or not row[0]:
        print("PgQ is not installed (Debian: postgresql-15-pgq3); its comparison is skipped")
        return False
    connection.execute("create extension pgq")
    connection.execute("select pgq.create_queue('bench')")
    connection.execute("grant pgq_writer to bench_publisher")
    return True


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 3 * house.runs
