"""500,000 events by INSERT … SELECT.

A table of 500,000 rows is inserted into the publish endpoint and into the outbox in one statement
each, commit included, after a checkpoint; no worker runs. The rows of earlier runs stay in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.figures import Figure, Target, compare
from bench.house import alternate, opened, timed
from bench.subjects import COLUMNS, create_event_type, create_outbox

if TYPE_CHECKING:
    import psycopg

    from bench.house import House

TITLE = "publish 500,000 events by INSERT … SELECT, four attributes"


def run(house: House) -> list[Figure]:
    """Measure it."""
    rows = 500_000
    with house.database() as dsn, opened(dsn) as connection:
        create_event_type(connection)
        create_outbox(connection)
        connection.execute(
            "create table source as select 'S' || n %% 1000 as symbol, (n %% 10000)::numeric / 100 as price,"
            " n as volume, clock_timestamp() as at from generate_series(1, %s) n",
            [rows],
        )
        connection.execute("vacuum analyze source")
        pgps, outbox = [], []
        for number in house.pairs():
            mine, theirs = alternate(
                number,
                lambda: _insert(house, connection, "pgps_event.quote"),
                lambda: _insert(house, connection, "outbox"),
            )
            pgps.append(mine)
            outbox.append(theirs)
    return [compare(TITLE, pgps, outbox, unit="s", target=Target("at most", 1.0), note="against a hand-written outbox")]


def _insert(house: House, connection: psycopg.Connection, target: str) -> float:
    house.checkpoint()
    return timed(lambda: connection.execute(f"insert into {target} ({COLUMNS}) select {COLUMNS} from source".encode()))
