"""Reclaim while a dead consumer holds everything.

A subscription that nobody reads holds 10 million events (a quick run: 1 million) of one type. Of
another type six transactions of many single statements and one large statement are published,
dispatched and passed over. When what can go has gone, `pgps.reclaim()` is called as a worker calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.figures import Figure, Target
from bench.house import opened, timed
from bench.subjects import COLUMNS, create_event_type

if TYPE_CHECKING:
    import psycopg

    from bench.house import House

TITLE = "reclaim, 10 million events held by a dead consumer"
_AT_ONCE = 500_000
_ROWS = f"select 'S', 1, g, now() from generate_series(1, {_AT_ONCE}) g"
_STATEMENTS = """
do $$ begin for i in 1..20000 loop
    insert into pgps_event.tick (n) values (i);
end loop; end $$
"""


def run(house: House) -> list[Figure]:
    """Measure it."""
    with house.database() as dsn, opened(dsn) as connection:
        create_event_type(connection)
        connection.execute("select pgps.subscribe('dead', 'quote')")
        for _ in range(house.scale(20, 2)):
            connection.execute(f"insert into pgps_event.quote ({COLUMNS}) {_ROWS}".encode())
            connection.execute("select pgps.dispatch()")
        _publish_another(connection)
        while _reclaimed(connection):
            pass
        seconds = [timed(lambda: _reclaimed(connection)) for _ in house.pairs()]
    return [Figure(TITLE, [1000 * taken for taken in seconds], Target("at most", 50.0, "ms"), unit="ms")]


def _publish_another(connection: psycopg.Connection) -> None:
    connection.execute("select pgps.create_event_type('tick', 'n integer')")
    connection.execute("select pgps.advertise('tick')")
    connection.execute("select pgps.subscribe('alive', 'tick')")
    for _ in range(6):
        connection.execute(_STATEMENTS)
    connection.execute("insert into pgps_event.tick (n) select generate_series(1, 300000)")
    connection.execute("select pgps.dispatch()")
    connection.execute("select pgps.seek('alive', 'now')")


def _reclaimed(connection: psycopg.Connection) -> int:
    row = connection.execute("select pgps.reclaim()").fetchone()
    assert row is not None
    return int(row[0])
