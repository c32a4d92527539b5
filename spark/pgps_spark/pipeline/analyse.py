"""Job analyse: sliding windows over a subscription; what lies far from its window is published as an event."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pgps_spark.check import find_event_type
from pgps_spark.claims import query_producer
from pgps_spark.connection import connect, resolved
from pgps_spark.pipeline.config import Analyse
from pgps_spark.pipeline.window import SlidingWindow
from pgps_spark.publishing import publish

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["COLUMNS", "run"]

COLUMNS = (
    "kind string, subject string, at timestamp, value double, score double, events int, mean double, deviation double, "
    "lowest double, highest double, event_id bigint"
)
_OUTPUT = [each.split(" ")[0] for each in COLUMNS.split(", ")]


def run(spark: SparkSession, job: Analyse) -> DataStreamWriter:
    """Return the writer that publishes what is found."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loaded with Spark only
    from pyspark.sql.streaming.state import GroupStateTimeout  # noqa: PLC0415 - see above

    dsn = resolved(job.dsn)
    # Both types are looked up before anything starts.
    targets = {"finding": _target(dsn, job.findings)}
    if job.statistics is not None:
        targets["statistics"] = _target(dsn, job.statistics)
    reader = spark.readStream.format("pgps").option("dsn", dsn).option("subscription", job.subscription)
    events = reader.option("patience", str(job.patience)).load()
    figures = (
        events.select(
            f.col(job.key).cast("string").alias("subject"),
            f.col(job.time).cast("timestamp").alias("at"),
            f.col(job.value).cast("double").alias("value"),
            "batch_id",
            "event_id",
        )
        .where("subject is not null and at is not null and value is not null")
        .groupBy("subject")
        .applyInPandasWithState(
            partial(_step, job=job), COLUMNS, "window string", "append", GroupStateTimeout.NoTimeout
        )
    )
    writer = figures.writeStream.queryName(job.name).option("checkpointLocation", job.checkpoint)
    return writer.foreachBatch(partial(_publish, dsn=dsn, targets=targets))


def _target(dsn: str, event_type: str) -> tuple[str, list[str]]:
    """Return an event type's own name, and what of the output it takes."""
    with connect(dsn) as connection:
        found = find_event_type(connection, event_type)
    return found.name, [attribute.name for attribute in found.attributes if attribute.name in _OUTPUT]


def _step(key: tuple[str], parts: Iterator[pd.DataFrame], state: Any, *, job: Analyse) -> Iterator[pd.DataFrame]:
    """Take one key's events of a micro-batch, in their order, through its window."""
    import pandas as pd  # noqa: PLC0415 - in the task

    window = SlidingWindow.loads(job.window, state.get[0]) if state.exists else SlidingWindow(job.window)
    rows = pd.concat(list(parts)).sort_values(["batch_id", "event_id"])
    found: list[tuple[Any, ...]] = []
    for at, value, event_id in zip(rows["at"], rows["value"], rows["event_id"], strict=True):
        moment = at.timestamp()
        if job.statistics is not None:
            for end in window.slides(moment, job.slide):
                figures = window.figures(end)
                if figures is not None:
                    when = pd.Timestamp(end, unit="s")
                    found.append(("statistics", key[0], when, None, None, *_parts(figures), None))
        figures = window.figures(moment)
        if figures is not None and figures.events >= job.minimum and figures.deviation > 0:
            score = (value - figures.mean) / figures.deviation
            if abs(score) > job.deviations:
                found.append(("finding", key[0], at, value, score, *_parts(figures), event_id))
        window.add(moment, value)
    state.update((window.dumps(),))
    yield pd.DataFrame(found, columns=_OUTPUT)


def _parts(figures: Any) -> tuple[Any, ...]:
    return figures.events, figures.mean, figures.deviation, figures.lowest, figures.highest


def _publish(df: DataFrame, batch: int, *, dsn: str, targets: dict[str, tuple[str, list[str]]]) -> None:
    producer = query_producer(df)
    df.persist()
    try:
        for kind, (event_type, columns) in targets.items():
            chosen = df.where(df["kind"] == kind).orderBy("at", "subject").select(*columns)
            # Two publications of a batch into one event type need two names.
            is_second = kind != "finding" and event_type == targets["finding"][0]
            name = f"{producer}/{kind}" if is_second else producer
            publish(chosen, event_type, dsn=dsn, job=name, batch=batch, progress=False)
    finally:
        df.unpersist()
