"""500,000 waiting events read by a stream, against spark.read.jdbc of the same rows.

A query that runs already, in two partitions, with the columns that the table has, into Spark's sink noop, on a
subscription that is paused: timed is from its resumption until Spark reports the micro-batch that has them all. For
each run a subscription of its own, made before the events were published: all wait for the same delivery. The plain
table is read by two ranges of its key into the same sink. One run of each does not count. Reported besides: the same
from nothing, with what starting a query takes (Trigger.AvailableNow).
"""

from __future__ import annotations

import tempfile
import time
from typing import TYPE_CHECKING

import pgps_spark
from bench import spark as common
from bench.figures import Figure, Target, compare
from bench.house import alternate, opened, timed
from bench.subjects import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from bench.house import House

TITLE = "Spark: stream read of 500,000 waiting events"
_PATIENCE = 60.0


def run(house: House) -> list[Figure]:
    """Measure it."""
    number = house.scale(common.ROWS, 100_000)
    with common.session() as spark, common.broker(house) as (admin, dsn), opened(admin) as connection:
        source = (
            "select 'S' || n % 1000, (n % 10000)::numeric / 100, n, clock_timestamp()"
            f" from generate_series(1, {number}) n"
        )
        with opened(dsn) as publisher:
            names = [f"bench_stream_{number}" for number in range(2 * house.runs + 1)]
            for name in names:
                publisher.execute("select pgps.subscribe(%s, 'quote')", [name])
            publisher.execute(f"insert into pgps_event.quote ({COLUMNS}) {source}".encode())
            publisher.execute(f"insert into outbox ({COLUMNS}) {source}".encode())
        connection.execute("select pgps.dispatch()")
        connection.execute("vacuum analyze outbox")
        _plain(spark, dsn, number)
        _stream(spark, dsn, names.pop(), number)
        pgps, whole, other = [], [], []
        for turn in house.pairs():
            house.checkpoint()
            mine, theirs = alternate(
                turn,
                lambda: _stream(spark, dsn, names.pop(), number),
                lambda: timed(lambda: _plain(spark, dsn, number)),
            )
            pgps.append(number / mine)
            other.append(number / theirs)
            whole.append(number / _from_nothing(spark, dsn, names.pop()))
    note = f"{number:,} events; against spark.read.jdbc"
    return [
        compare(TITLE, pgps, other, unit="rows/s", target=Target("at least", 0.7), note=note),
        compare("the same, with the start of the query", whole, other, unit="rows/s", note="reported"),
    ]


def _writer(spark: SparkSession, dsn: str, subscription: str, checkpoint: str) -> DataStreamWriter:
    """Return the writer of a query that reads a subscription."""
    reader = spark.readStream.format("pgps").option("dsn", dsn).option("subscription", subscription)
    events = reader.options(partitions="2", columns=f"event_id,published_at,{COLUMNS}".replace(" ", "")).load()
    writer = events.writeStream.format("noop")
    return writer.option("checkpointLocation", checkpoint)


def _stream(spark: SparkSession, dsn: str, subscription: str, number: int) -> float:
    """Return how many seconds a running query takes for the waiting events."""
    with tempfile.TemporaryDirectory() as checkpoint, opened(dsn) as connection:
        connection.execute("select pgps.pause(%s)", [subscription])
        query = pgps_spark.start(_writer(spark, dsn, subscription, checkpoint).trigger(processingTime="0 seconds"))
        try:
            began = time.perf_counter()
            connection.execute("select pgps.resume(%s)", [subscription])
            while (query.lastProgress or {}).get("numInputRows") != number:
                if (ended := query.exception()) is not None:
                    raise ended
                if time.perf_counter() - began > _PATIENCE:
                    raise RuntimeError(f"no micro-batch of {number} events within {_PATIENCE:g} s")
                time.sleep(0.05)
            return time.perf_counter() - began
        finally:
            query.stop()


def _from_nothing(spark: SparkSession, dsn: str, subscription: str) -> float:
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = _writer(spark, dsn, subscription, checkpoint).trigger(availableNow=True)
        return timed(lambda: pgps_spark.start(writer).awaitTermination())


def _plain(spark: SparkSession, dsn: str, number: int) -> None:
    bounds = {"partitionColumn": "id", "lowerBound": "1", "upperBound": str(number), "numPartitions": "2"}
    reader = spark.read.format("jdbc").options(
        **pgps_spark.jdbc_options(dsn), **bounds, dbtable="outbox", fetchsize="10000"
    )
    reader.load().write.format("noop").mode("overwrite").save()
