"""From publication to the micro-batch that has the event, at 100 events a second.

A worker dispatches; a publisher inserts an event every 10 ms in a transaction of its own; a stream with a trigger of
200 ms collects each micro-batch. What counts is the driver's clock when the rows are there, less published_at.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

from bench import spark as common
from bench.figures import Figure, Target, percentile
from bench.house import opened, worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from bench.house import House

TITLE = "Spark: publish to micro-batch at 100 events/s, median"
_EVERY = 0.01


def run(house: House) -> list[Figure]:
    """Measure it."""
    seconds = house.scale(20, 8)
    medians, tails = [], []
    with common.session() as spark, common.broker(house) as (admin, dsn), worker(admin):
        with opened(dsn) as connection:
            connection.execute("select pgps.subscribe('bench_latency', 'quote')")
        seen: list[float] = []

        def look(df: DataFrame, _: int) -> None:
            rows: list[Any] = df.collect()
            now = time.time()
            seen.extend(now - row.published_at.timestamp() for row in rows)

        events = spark.readStream.format("pgps").option("dsn", dsn).option("subscription", "bench_latency").load()
        writer = events.select("published_at").writeStream.foreachBatch(look)
        with tempfile.TemporaryDirectory() as checkpoint:
            query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="200 milliseconds").start()
            _publish(dsn, 5)
            if (ended := query.exception()) is not None:
                raise ended
            for _ in house.pairs():
                seen.clear()
                _publish(dsn, seconds)
                time.sleep(3)
                medians.append(statistics.median(seen) * 1000)
                tails.append(percentile(seen, 0.99) * 1000)
            query.stop()
    return [
        Figure(TITLE, medians, Target("at most", 1000, "ms"), medians, unit="ms", note="trigger every 200 ms"),
        Figure("the same: 99th percentile", tails, pgps=tails, unit="ms", note="reported"),
    ]


def _publish(dsn: str, seconds: float) -> None:
    pause = threading.Event()
    began = time.monotonic()
    with opened(dsn) as connection:
        for turn in range(int(seconds / _EVERY)):
            connection.execute("insert into pgps_event.quote values ('A', 1, 1, clock_timestamp())")
            pause.wait(max(0.0, began + (turn + 1) * _EVERY - time.monotonic()))
