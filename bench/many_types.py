"""Many event types: what one costs to make, and a session that publishes to all of them to hold.

1,000 event types of four attributes, made in transactions of their own by one session. Then a new session publishes one
event to each; what its process in the server holds beyond shared buffers (anonymous memory) counts, less that of a
session that has published to one. Beside it the same for 1,000 outboxes written by hand.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from bench.figures import Figure, Target
from bench.house import opened, timed
from bench.memory import megabytes
from bench.subjects import ATTRIBUTES, COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from bench.house import House

TITLE = "many event types"
_ROW = "'S1', 10.5, 100, now()"


def run(house: House) -> list[Figure]:
    """Measure it."""
    number = house.scale(1_000, 100)
    with house.database() as dsn:
        with opened(dsn) as connection:
            house.say(f"making {number:,} event types")
            made = [_make(connection, n) for n in range(number)]
        held, tables, queues = [], [], []
        for _ in house.pairs():
            house.say("publishing to each")
            held.append(_held(dsn, number, lambda n: f"pgps_event.type_{n}"))
            tables.append(_held(dsn, number, lambda n: f"outbox_{n}"))
            with opened(dsn) as connection:
                queues.append(timed(lambda: connection.execute("select * from pgps.queues").fetchall()) * 1000)
    tenths = [statistics.median(made[n : n + number // 10]) for n in range(0, number, number // 10)]
    return [
        Figure(
            "making an event type", tenths, Target("at most", 30, "ms"), tenths, unit="ms",
            note=f"medians of the tenths of {number:,}",
        ),
        Figure(
            f"a session that has published to {number:,} event types", held, Target("at most", 200, "MB"), held, tables,
            unit="MB", note="more than one that has published to one; beside it tables",
        ),
        Figure(f"pgps.queues with {number:,} event types", queues, pgps=queues, unit="ms", note="reported"),
    ]  # fmt: skip


def _make(connection: psycopg.Connection, number: int) -> float:
    """Make an event type and a table; return how many milliseconds the event type took."""
    name = f"type_{number}"
    took = timed(lambda: connection.execute("select pgps.create_event_type(%s, %s)", [name, ATTRIBUTES]))
    connection.execute("select pgps.advertise(%s)", [name])
    columns = f"id bigserial primary key, created_at timestamptz not null default now(), {ATTRIBUTES}"
    connection.execute(f"create table outbox_{number} ({columns})".encode())
    return took * 1000


def _held(dsn: str, number: int, name: Callable[[int], str]) -> float:
    """Return the megabytes that a session holds for publishing to all but the first."""
    with opened(dsn) as connection:
        before = 0.0
        for n in range(number):
            connection.execute(f"insert into {name(n)} ({COLUMNS}) values ({_ROW})".encode())
            if n == 0:
                before = megabytes(connection.info.backend_pid, "RssAnon")
        return megabytes(connection.info.backend_pid, "RssAnon") - before
