"""Job archive: an event type's audited queues into Parquet, each event once, small files put together.

    <directory>/<event type>/in/date=2010-03-01/batch=<query>-<number>/part-….parquet
    <directory>/<event type>/out/…            deliveries: which event went to which subscription, and when
    <directory>/<event type>/exception/…      as the exception queue stands at the end of the run

The in queue comes through a subscription. A micro-batch has directories of its own, which are
written anew when it is repeated. A micro-batch that was written, put together (merge.py) and then, for want of its
commit, written again is in both: putting together keeps each event once.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from pgps_spark.claims import query_producer
from pgps_spark.connection import resolved
from pgps_spark.pipeline.config import Archive
from pgps_spark.pipeline.files import Files
from pgps_spark.pipeline.merge import clean, together

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["finish", "run"]

# Spark reads the names of directories as columns, and does not tell "Date" from "date".
_DIRECTORIES = ("date", "batch")


def run(spark: SparkSession, job: Archive) -> Any:
    """Return the writer that archives the in queue; `finish` does the rest when it has ended."""
    clean(spark, f"{job.directory}/{job.event_type}/in")
    reader = spark.readStream.format("pgps").option("dsn", resolved(job.dsn)).option("subscription", job.subscription)
    reader = reader.option("patience", str(job.patience))
    events = reader.option("maxEventsPerTrigger", str(job.max_events)).load()
    writer = events.writeStream.queryName(job.name).option("checkpointLocation", job.checkpoint)
    return writer.foreachBatch(partial(_write, directory=f"{job.directory}/{job.event_type}/in"))


def _write(df: DataFrame, batch: int, *, directory: str) -> None:
    from pyspark.sql import functions as f  # noqa: PLC0415 - loaded with Spark only

    name = f"{query_producer(df).removeprefix('spark/')[:8]}-{batch:08d}"
    kept = df.drop("batch_id")
    kept = kept.toDF(*_beside_directories(kept.columns))
    dated = kept.withColumn("date", f.to_date("published_at")).withColumn("batch", f.lit(name))
    writer = dated.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy("date", "batch").parquet(directory)


def _beside_directories(names: list[str]) -> list[str]:
    """Return names of columns, where one is called as a directory is another: attribute_<name>, as in the queues."""
    there = {name.lower() for name in names}
    return [
        name
        if name.lower() not in _DIRECTORIES
        else f"attribute_{name}"
        if f"attribute_{name}".lower() not in there
        else f"attribute_{name}_"
        for name in names
    ]


def finish(spark: SparkSession, job: Archive) -> None:
    """Archive deliveries and exceptions, and put small files together."""
    root = f"{job.directory}/{job.event_type}"
    together(spark, f"{root}/in", ["event_id"])
    queue = spark.read.format("pgps").option("dsn", resolved(job.dsn))
    out = queue.option("queue", f"{job.event_type}_out").option("columns", "event_id,subscription,matched_at")
    _add_deliveries(spark, out.load(), f"{root}/out")
    columns = "event_id,subscription,failed_at,attempts,sqlstate,error,state"
    failed = queue.option("queue", f"{job.event_type}_exception").option("columns", columns).load()
    # A state, not a history: what was retried and went through is an exception no more.
    _replace(spark, failed, f"{root}/exception")


def _add_deliveries(spark: SparkSession, out: DataFrame, directory: str) -> None:
    """Add the deliveries that are not yet there, whatever became of them since."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loaded with Spark only

    files = Files(spark, directory)
    clean(spark, directory)
    new = out
    if files.children(directory, prefix="date="):
        known = spark.read.parquet(directory).select("event_id", "subscription")
        new = new.join(known, ["event_id", "subscription"], "left_anti")
    made = f"{directory}/_new-{uuid.uuid4().hex[:8]}"
    dated = new.withColumn("date", f.to_date("matched_at")).coalesce(2)
    dated.write.partitionBy("date").parquet(made)
    # A run that is ended in the middle does no harm: what is there is known next time.
    name = f"batch=run-{uuid.uuid4().hex[:12]}"
    for day in files.children(made, prefix="date="):
        files.move(f"{made}/{day}", f"{directory}/{day}/{name}")
    files.remove(made)
    together(spark, directory, ["event_id", "subscription"])


def _replace(spark: SparkSession, df: DataFrame, directory: str) -> None:
    files = Files(spark, directory)
    made = f"{directory}.new"
    df.coalesce(1).write.mode("overwrite").parquet(made)
    files.remove(directory)
    files.move(made, directory)
