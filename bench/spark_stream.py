"""500,000 waiting events read by a stream, against spark.read.jdbc of the same rows.

The stream takes all of them in one micro-batch (Trigger.AvailableNow), in two partitions, with the default
columns, into Spark's sink noop; a new checkpoint each time, the subscription moved back before. The plain table is read
by two ranges of its key into the same sink. One run of each does not count.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pgps_spark
from bench import spark as common
from bench.figures import Figure, Target, compare
from bench.house import alternate, opened, timed
from bench.subjects import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.house import House

TITLE = "Spark: stream read of 500,000 waiting events"


def run(house: House) -> list[Figure]:
    """Measure it."""
    number = house.scale(common.ROWS, 100_000)
    with common.session() as spark, common.broker(house) as (admin, dsn), opened(admin) as connection:
        source = (
            "select 'S' || n % 1000, (n % 10000)::numeric / 100, n, clock_timestamp()"
            f" from generate_series(1, {number}) n"
        )
        with opened(dsn) as publisher:
            publisher.execute("select pgps.subscribe('bench_stream', 'quote')")
            publisher.execute(f"insert into pgps_event.quote ({COLUMNS}) {source}".encode())
            publisher.execute(f"insert into outbox ({COLUMNS}) {source}".encode())
        connection.execute("select pgps.dispatch()")
        connection.execute("vacuum analyze outbox")
        _plain(spark, dsn, number)
        _stream(spark, dsn)
        pgps, other = [], []
        for turn in house.pairs():
            with opened(dsn) as publisher:
                publisher.execute("select pgps.seek('bench_stream', 'earliest')")
            house.checkpoint()
            mine, theirs = alternate(
                turn,
                lambda: timed(lambda: _stream(spark, dsn)),
                lambda: timed(lambda: _plain(spark, dsn, number)),
            )
            pgps.append(number / mine)
            other.append(number / theirs)
    note = f"{number:,} events; against spark.read.jdbc"
    return [compare(TITLE, pgps, other, unit="rows/s", target=Target("at least", 0.7), note=note)]


def _stream(spark: SparkSession, dsn: str) -> None:
    reader = spark.readStream.format("pgps").option("dsn", dsn).option("subscription", "bench_stream")
    writer = reader.option("partitions", "2").load().writeStream.format("noop")
    with tempfile.TemporaryDirectory() as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()


def _plain(spark: SparkSession, dsn: str, number: int) -> None:
    bounds = {"partitionColumn": "id", "lowerBound": "1", "upperBound": str(number), "numPartitions": "2"}
    reader = spark.read.format("jdbc").options(
        **pgps_spark.jdbc_options(dsn), **bounds, dbtable="outbox", fetchsize="10000"
    )
    reader.load().write.format("noop").mode("overwrite").save()
