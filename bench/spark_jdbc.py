"""500,000 rows by Spark's own JDBC writer, in two partitions.

The same DataFrame is written to the publish endpoint and to a plain table with a bigserial key, with the
options that pgps_spark.jdbc_options gives, after a checkpoint and one run of each that does not count; no worker runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pgps_spark
from bench import spark as common
from bench.figures import Figure, Target, compare
from bench.house import alternate, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from bench.house import House

TITLE = "Spark: JDBC write of 500,000 rows, two partitions"


def run(house: House) -> list[Figure]:
    """Measure it."""
    number = house.scale(common.ROWS, 100_000)
    with common.session() as spark, common.broker(house) as (_, dsn):
        options = pgps_spark.jdbc_options(dsn)
        df = common.rows(spark, number)
        for table in ("pgps_event.quote", "outbox"):
            _write(common.rows(spark, 20_000), options, table)
        pgps, other = [], []
        for turn in house.pairs():
            house.checkpoint()
            mine, theirs = alternate(
                turn,
                lambda: timed(lambda: _write(df, options, "pgps_event.quote")),
                lambda: timed(lambda: _write(df, options, "outbox")),
            )
            pgps.append(number / mine)
            other.append(number / theirs)
    note = f"{number:,} rows; against a table with a bigserial key"
    return [compare(TITLE, pgps, other, unit="rows/s", target=Target("at least", 0.7), note=note)]


def _write(df: DataFrame, options: dict[str, str], table: str) -> None:
    df.write.format("jdbc").options(**options, dbtable=table).mode("append").save()
