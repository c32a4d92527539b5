"""10,000 single-event publishes in one transaction.

A client sends 10,000 prepared INSERTs in pipeline mode (psycopg's executemany), and a plpgsql loop
runs as many; both into the publish endpoint and into the outbox, commit included. The client's is
the one that is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.figures import Figure, Target, compare
from bench.house import alternate, opened, timed
from bench.subjects import COLUMNS, create_event_type, create_outbox, publisher

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from bench.house import House

    Insert = Callable[[psycopg.Connection, str], float]

TITLE = "10,000 single-event publishes in one transaction"
_EVENTS = 10_000


def run(house: House) -> list[Figure]:
    """Measure it."""
    with house.database() as dsn:
        with opened(dsn) as connection:
            create_event_type(connection)
            create_outbox(connection)
        with opened(publisher(dsn)) as connection:
            client = _measure(house, connection, _from_client)
            loop = _measure(house, connection, _in_loop)
    return [
        compare(f"{TITLE}: a client", *client, unit="s", target=Target("at most", 1.8), note="against an outbox"),
        compare(f"{TITLE}: a plpgsql loop", *loop, unit="s", note="reported"),
    ]


def _measure(house: House, connection: psycopg.Connection, insert: Insert) -> tuple[list[float], list[float]]:
    pgps, outbox = [], []
    for target in ("pgps_event.quote", "outbox"):
        insert(connection, target)
    for number in house.pairs():
        mine, theirs = alternate(
            number, lambda: insert(connection, "pgps_event.quote"), lambda: insert(connection, "outbox")
        )
        pgps.append(mine)
        outbox.append(theirs)
    return pgps, outbox


def _from_client(connection: psycopg.Connection, target: str) -> float:
    rows = [(f"S{n % 100}", n % 1000, n, "2026-01-01T00:00:00Z") for n in range(_EVENTS)]
    statement = f"insert into {target} ({COLUMNS}) values (%s, %s, %s, %s)".encode()

    def insert() -> None:
        with connection.transaction(), connection.cursor() as cursor:
            cursor.executemany(statement, rows)

    return timed(insert)


def _in_loop(connection: psycopg.Connection, target: str) -> float:
    block = f"""do $$ begin
        for n in 1..{_EVENTS} loop
            insert into {target} ({COLUMNS}) values ('S' || n % 100, n % 1000, n, '2026-01-01T00:00:00Z');
        end loop;
    end $$"""
    return timed(lambda: connection.execute(block.encode()))


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 2 * house.runs
