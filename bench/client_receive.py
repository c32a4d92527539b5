"""The client library receiving and acknowledging, against a bare COPY of the same rows.

50,000 events of four attributes wait for a subscription. `Subscription.batches()` receives them, as
dictionaries, and acknowledges each batch: of 10,000, and of 1,000, which is the default. In turn psycopg decodes
a `COPY … TO STDOUT` of a table that holds the same rows: id, time, publisher, transaction, origin,
attempt and the attributes. Each run receives other events of the same type; no worker runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.figures import Figure, Target, compare
from bench.house import alternate, opened, timed
from bench.subjects import COLUMNS, create_event_type
from pgps.client import Client

if TYPE_CHECKING:
    import psycopg

    from bench.house import House

TITLE = "client: receive and acknowledge"
_TYPES = ["int8", "timestamptz", "text", "int8", "text", "int4", "text", "text", "numeric", "int4", "timestamptz"]


def run(house: House) -> list[Figure]:
    """Measure it."""
    events = house.scale(50_000, 20_000)
    figures = []
    for batch, target in ((10_000, Target("at least", 0.7)), (1000, None)):
        mine, theirs = [], []
        with house.database() as dsn, opened(dsn) as connection, Client(dsn) as client:
            create_event_type(connection)
            with client.subscribe("all", "quote") as subscription:
                _publish(connection, events)
                connection.execute(
                    "create table same as select * from pgps_queue.quote_receive(array['all'], %s)", [events]
                )
                connection.execute("vacuum analyze")
                # By the session that has received: the client would be another consumer.
                connection.execute("select pgps.ack('all')")
                for number in house.pairs():
                    _publish(connection, events)
                    house.checkpoint()

                    def receive() -> None:
                        count = sum(len(part) for part in subscription.batches(batch, timeout=0.0))  # noqa: B023
                        assert count == events, count

                    seconds, other = alternate(number, lambda: timed(receive), lambda: timed(lambda: _copy(connection)))
                    mine.append(events / seconds)
                    theirs.append(events / other)
        note = "against COPY … TO STDOUT of the same rows, decoded by psycopg"
        figures.append(compare(f"{TITLE} {batch:,} at once", mine, theirs, unit="/s", target=target, note=note))
    return figures


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 2 * house.runs


def _publish(connection: psycopg.Connection, events: int) -> None:
    connection.execute(
        f"insert into pgps_event.quote ({COLUMNS}) select 'S' || n %% 100, (n %% 1000)::numeric / 100, n, now()"
        " from generate_series(1, %s) n".encode(),
        [events],
    )
    while connection.execute("select pgps.dispatch()").fetchall()[0][0]:
        pass


def _copy(connection: psycopg.Connection) -> int:
    with connection.cursor() as cursor, cursor.copy("copy same to stdout") as copy:
        copy.set_types(_TYPES)
        return sum(1 for _ in copy.rows())
