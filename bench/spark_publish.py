"""500,000 rows published exactly once from Spark, in two partitions.

`pgps_spark.publish` with a job and a batch, against Spark's own JDBC writer into a plain table with a bigserial key:
the same DataFrame, after a checkpoint and one run of each that does not count; no worker runs.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pgps_spark
from bench import spark as common
from bench.figures import Figure, Target, compare
from bench.house import alternate, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from bench.house import House

TITLE = "Spark: 500,000 rows published exactly once, two partitions"


def run(house: House) -> list[Figure]:
    """Measure it."""
    number = house.scale(common.ROWS, 100_000)
    with common.session() as spark, common.broker(house) as (_, dsn):
        options = pgps_spark.jdbc_options(dsn)
        df = common.rows(spark, number)

        def publish(rows: DataFrame, batch: int) -> None:
            pgps_spark.publish(rows, "quote", dsn=dsn, job="bench", batch=batch, progress=False)

        def write(rows: DataFrame) -> None:
            rows.write.format("jdbc").options(**options, dbtable="outbox").mode("append").save()

        few = common.rows(spark, 20_000)
        publish(few, 0)
        write(few)
        pgps, other = [], []
        for turn in house.pairs():
            house.checkpoint()
            once = functools.partial(publish, df, turn + 1)
            mine, theirs = alternate(turn, functools.partial(timed, once), lambda: timed(lambda: write(df)))
            pgps.append(number / mine)
            other.append(number / theirs)
    note = f"{number:,} rows; against JDBC's write into a table with a bigserial key"
    return [compare(TITLE, pgps, other, unit="rows/s", target=Target("at least", 0.8), note=note)]
