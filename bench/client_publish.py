"""The client library publishing batches, against the same batches in SQL.

One connection publishes 100 batches of 1,000 events, dictionaries of four attributes, a transaction
each: with `Client.publish`, and in turn with the INSERT … SELECT FROM unnest(…) that one would write
by hand with psycopg. Both make arrays of the same dictionaries. It is reported, too, with producer
numbers. No worker runs.
"""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING

import psycopg

from bench.figures import Figure, Target, compare
from bench.house import alternate, opened, timed
from bench.subjects import COLUMNS, create_event_type, publisher
from pgps.client import Client

if TYPE_CHECKING:
    from bench.house import House

TITLE = "client: publish batches of 1,000 events"
_BATCH = 1000
_INSERT = f"""
    insert into pgps_event.quote ({COLUMNS})
    select * from unnest(%s::text[], %s::numeric[], %s::integer[], %s::timestamptz[])
"""


def run(house: House) -> list[Figure]:
    """Measure it."""
    batches = house.scale(100, 20)
    at = dt.datetime.now(dt.UTC)
    events = [
        {"symbol": f"S{n % 100}", "price": decimal.Decimal(n) / 100, "volume": n, "at": at} for n in range(_BATCH)
    ]
    rates: dict[str, list[float]] = {"client": [], "sql": [], "numbered": []}
    with house.database() as dsn:
        with opened(dsn) as connection:
            create_event_type(connection)
        with (
            psycopg.connect(publisher(dsn), autocommit=True, prepare_threshold=0) as raw,
            Client(publisher(dsn)) as client,
            Client(publisher(dsn), producer="bench") as numbered,
        ):

            def by_hand() -> object:
                return raw.execute(_INSERT, [[event[name] for event in events] for name in events[0]])

            for number in house.pairs():
                house.checkpoint()
                mine, theirs = alternate(
                    number,
                    lambda: timed(lambda: [client.publish("quote", events) for _ in range(batches)]),
                    lambda: timed(lambda: [by_hand() for _ in range(batches)]),
                )
                rates["client"].append(batches * _BATCH / mine)
                rates["sql"].append(batches * _BATCH / theirs)
                again = timed(lambda: [numbered.publish("quote", events) for _ in range(batches)])
                rates["numbered"].append(batches * _BATCH / again)
    return [
        compare(TITLE, rates["client"], rates["sql"], unit="/s", target=Target("at least", 0.8), note="against SQL"),
        compare(f"{TITLE}, with producer numbers", rates["numbered"], rates["sql"], unit="/s", note="reported"),
    ]
