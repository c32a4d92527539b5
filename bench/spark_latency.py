"""From publication to the micro-batch that has the event, at 100 events a second.

A worker dispatches; a publisher inserts an event every 10 ms in a transaction of its own; a stream with a trigger of
200 ms collects each micro-batch. What counts is the driver's clock when the rows are there, less published_at.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import pgps_spark
from bench import spark as common
from bench.figures import Figure, Target, percentile
from bench.house import opened, worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from bench.house import House

TITLE = "Spark: publish to micro-batch at 100 events/s, median"
_EVERY = 0.01
_PATIENCE = 60.0


def run(house: House) -> list[Figure]:
    """Measure it."""
    seconds = house.scale(20, 8)
    medians, tails = [], []
    with common.session() as spark, common.broker(house) as (admin, dsn), worker(admin):
        with opened(dsn) as connection:
            connection.execute("select pgps.subscribe('bench_latency', 'quote')")
        with _reading(spark, dsn) as (query, seen):
            _publish(dsn, 5)
            _wait(query, seen, 5)
            for _ in house.pairs():
                seen.clear()
                _publish(dsn, seconds)
                _wait(query, seen, seconds)
                medians.append(statistics.median(seen) * 1000)
                tails.append(percentile(seen, 0.99) * 1000)
    return [
        Figure(TITLE, medians, Target("at most", 1000, "ms"), medians, unit="ms", note="trigger every 200 ms"),
        Figure("the same: 99th percentile", tails, pgps=tails, unit="ms", note="reported"),
    ]


@contextlib.contextmanager
def _reading(spark: SparkSession, dsn: str) -> Iterator[tuple[StreamingQuery, list[float]]]:
    """Read the subscription; yield the query and how old each event was, in seconds, when its micro-batch had it."""
    seen: list[float] = []

    def look(df: DataFrame, _: int) -> None:
        rows: list[Any] = df.collect()
        now = time.time()
        seen.extend(now - row.published_at.timestamp() for row in rows)

    events = spark.readStream.format("pgps").option("dsn", dsn).option("subscription", "bench_latency").load()
    writer = events.select("published_at").writeStream.foreachBatch(look).trigger(processingTime="200 milliseconds")
    with tempfile.TemporaryDirectory() as checkpoint:
        query = pgps_spark.start(writer.option("checkpointLocation", checkpoint))
        try:
            yield query, seen
        finally:
            query.stop()


def _wait(query: StreamingQuery, seen: list[float], seconds: float) -> None:
    """Wait until all events that were published have come."""
    deadline = time.monotonic() + _PATIENCE
    while len(seen) < int(seconds / _EVERY):
        if (ended := query.exception()) is not None:
            raise ended
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(seen)} of {int(seconds / _EVERY)} events came within {_PATIENCE:g} s")
        time.sleep(0.1)


def _publish(dsn: str, seconds: float) -> None:
    pause = threading.Event()
    began = time.monotonic()
    with opened(dsn) as connection:
        for turn in range(int(seconds / _EVERY)):
            connection.execute("insert into pgps_event.quote values ('A', 1, 1, clock_timestamp())")
            pause.wait(max(0.0, began + (turn + 1) * _EVERY - time.monotonic()))
