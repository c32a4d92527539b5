"""Many subscriptions `symbol = … and price > …`, for the benchmarks that need them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.house import opened
from bench.subjects import COLUMNS, create_event_type

if TYPE_CHECKING:
    import psycopg

    from bench.house import House

__all__ = ["EACH", "FEW", "crowded", "many", "publish"]

EACH = 5
"""Subscriptions that every event matches: those of its symbol."""

FEW = 100
"""Subscriptions to event type "few"."""

_CHUNK = 1000
_TEMPLATE = "bench_crowd"


def many(house: House) -> int:
    """Return how many subscriptions there are to event type "many"."""
    return house.scale(100_000, 10_000)


def crowded(house: House) -> tuple[str, float]:
    """Return the template database with event types "few" and "many", and subscriptions made a second.

    It is made once, by the line that needs it first.
    """

    def make(dsn: str) -> float:
        _subscribe(house, dsn, "few", FEW)
        return _subscribe(house, dsn, "many", many(house))

    return _TEMPLATE, house.made(_TEMPLATE, make)


def _subscribe(house: House, dsn: str, event_type: str, number: int) -> float:
    """Create an event type and `number` subscriptions in one transaction; return subscriptions a second."""
    with opened(dsn) as connection:
        create_event_type(connection, event_type)
    began = time.perf_counter()
    with opened(dsn, autocommit=False) as connection:
        for first in range(0, number, _CHUNK):
            house.say(f"subscribing {first:,} of {number:,}")
            connection.execute(
                """
                select pgps.subscribe(format('%%s_%%s', %(type)s::text, n), %(type)s,
                    format('symbol = %%L and price > %%s', 'S' || n / %(each)s, n %% %(each)s))
                from generate_series(%(first)s::integer, %(last)s) n
                """,
                {"type": event_type, "each": EACH, "first": first, "last": min(first + _CHUNK, number) - 1},
            )
        connection.commit()
    rate = number / (time.perf_counter() - began)
    with opened(dsn) as connection:
        # Autovacuum does this within a minute; without it the plans made before would be measured.
        connection.execute("vacuum analyze")
    return rate


def publish(connection: psycopg.Connection, event_type: str, events: int, symbols: int) -> None:
    """Publish events in one statement; their symbols take turns."""
    connection.execute(
        f"insert into pgps_event.{event_type} ({COLUMNS})"
        " select 'S' || n %% %s, 100, n, clock_timestamp() from generate_series(1, %s) n".encode(),
        [symbols, events],
    )
