"""What the lines about Spark share: a session, connections over TCP, the rows that are written and read."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

import pgps_spark
from bench.house import opened
from bench.subjects import create_event_type, create_outbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from bench.house import House

__all__ = ["broker", "rows", "session"]

_PASSWORD = "bench"
ROWS = 500_000


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    """Yield a session with two tasks at a time."""
    spark = pgps_spark.session(
        "bench",
        master="local[2]",
        driver_memory="1g",
        spark__ui__enabled="false",
        spark__ui__showConsoleProgress="false",
        spark__sql__session__timeZone="UTC",
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def broker(house: House) -> Iterator[tuple[str, str]]:
    """Yield connection strings of a fresh broker: the superuser's, and a plain role's over TCP."""
    with house.database() as dsn, opened(dsn) as connection:
        create_event_type(connection)
        create_outbox(connection)
        connection.execute(f"alter role bench_publisher password '{_PASSWORD}'".encode())
        connection.execute(b"grant select on pgps_event.quote to bench_publisher")
        yield dsn, make_conninfo(dsn, host="127.0.0.1", user="bench_publisher", password=_PASSWORD)


def rows(spark: SparkSession, number: int = ROWS) -> DataFrame:
    """Return the rows, in two partitions."""
    return spark.range(0, number, 1, 2).selectExpr(
        "concat('S', id % 1000) symbol",
        "cast((id % 10000) / 100 as decimal(10, 2)) price",
        "cast(id as int) volume",
        "timestamp'2024-01-01 00:00:00' + make_dt_interval(0, 0, 0, id / 1000) at",
    )
