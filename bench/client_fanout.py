"""All events to 100 subscribers in one process, against PgQ with 100 consumers.

5,000 events wait for 100 subscriptions without a filter; `AsyncClient` calls a handler of each for
every event, as a dictionary, and acknowledges. In turn 5,000 events of the same attributes, as JSON,
wait in a PgQ queue for 100 consumers, which one process serves over one connection: next batch, its
events, a handler called with the text of each, batch finished; 1,000 events are a batch on either side.
Deliveries a second, without publishing, dispatching, ticking and opening; no worker runs. Skipped without PgQ.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from bench.figures import Figure, Target, compare
from bench.house import alternate, opened, timed
from bench.subjects import COLUMNS, create_event_type
from pgps.client import AsyncClient, Event

if TYPE_CHECKING:
    import psycopg

    from bench.house import House

TITLE = "client: every event to 100 subscribers in one process"
_SUBSCRIBERS = 100
_BATCH = 1000
_ROW = "select 'S' || n % 100 as symbol, (n % 1000)::numeric / 100 as price, n as volume, now() as at"


def run(house: House) -> list[Figure]:
    """Measure it."""
    events = house.scale(5_000, 2_000)
    mine, theirs = [], []
    with house.database() as dsn, opened(dsn) as connection:
        create_event_type(connection)
        connection.execute("select pgps.subscribe('s' || n, 'quote') from generate_series(1, %s) n", [_SUBSCRIBERS])
        has_pgq = _set_up_pgq(connection)
        for number in house.pairs():
            connection.execute(
                f"insert into pgps_event.quote ({COLUMNS}) {_ROW} from generate_series(1, {events}) n".encode()
            )
            while connection.execute("select pgps.dispatch()").fetchall()[0][0]:
                pass
            if has_pgq:
                _publish_pgq(connection, events)
            connection.execute("vacuum analyze")
            house.checkpoint()
            seconds, other = alternate(
                number,
                lambda: asyncio.run(_deliver(dsn, events)),
                lambda: timed(lambda: _consume(dsn, events)) if has_pgq else 1.0,
            )
            mine.append(events * _SUBSCRIBERS / seconds)
            theirs.append(events * _SUBSCRIBERS / other)
    if not has_pgq:
        return [Figure(TITLE, mine, unit="/s", note="without PgQ, which is not installed")]
    return [compare(TITLE, mine, theirs, unit="/s", target=Target("at least", 1.5), note="against PgQ")]


async def _deliver(dsn: str, events: int) -> float:
    seen = [0] * _SUBSCRIBERS
    finished = asyncio.Event()
    left = _SUBSCRIBERS

    def handler_of(number: int) -> Any:
        def handle(event: Event[dict[str, Any]]) -> None:
            nonlocal left
            assert event.payload["volume"] > 0
            seen[number] += 1
            if seen[number] == events:
                left -= 1
                if not left:
                    finished.set()

        return handle

    async with AsyncClient(dsn) as client:
        subscriptions = [client.subscribe(f"s{number + 1}", prefetch=_BATCH) for number in range(_SUBSCRIBERS)]
        for subscription in subscriptions:
            await subscription.open()
        began = time.perf_counter()
        for number, subscription in enumerate(subscriptions):
            await subscription.start(handler_of(number))
        await finished.wait()
        for subscription in subscriptions:  # this acknowledges the last batches
            await subscription.close()
        seconds = time.perf_counter() - began
    assert set(seen) == {events}
    return seconds


def _set_up_pgq(connection: psycopg.Connection) -> bool:
    row = connection.execute("select count(*) from pg_available_extensions where name = 'pgq'").fetchone()
    if not row or not row[0]:
        print("PgQ is not installed (Debian: postgresql-15-pgq3); its comparison is skipped")
        return False
    connection.execute("create extension pgq")
    connection.execute("select pgq.create_queue('bench')")
    connection.execute("select pgq.register_consumer('bench', 'c' || n) from generate_series(1, %s) n", [_SUBSCRIBERS])
    return True


def _publish_pgq(connection: psycopg.Connection, events: int) -> None:
    for first in range(0, events, _BATCH):
        connection.execute(
            f"select pgq.insert_event('bench', 'quote', to_json(e)::text) from"
            f" (select * from ({_ROW} from generate_series({first + 1}, {first + _BATCH}) n) e) e".encode()
        )
        connection.execute("select pgq.force_tick('bench')")
        connection.execute("select pgq.ticker('bench')")


def _consume(dsn: str, events: int) -> None:
    seen = [0] * _SUBSCRIBERS

    def handle(number: int, text: str) -> None:
        assert text
        seen[number] += 1

    with opened(dsn) as connection:
        connection.prepare_threshold = 0
        while min(seen) < events:
            for number in range(_SUBSCRIBERS):
                batch = connection.execute("select pgq.next_batch('bench', %s)", [f"c{number + 1}"]).fetchall()[0][0]
                if batch is None:
                    continue
                for row in connection.execute("select * from pgq.get_batch_events(%s)", [batch]).fetchall():
                    handle(number, row[5])
                connection.execute("select pgq.finish_batch(%s)", [batch])
    assert set(seen) == {events}
