"""Job report: what an archive tells of a broker, as tables and plots that a person looks at."""

from __future__ import annotations

import csv
import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgps.errors import ConfigError
from pgps_spark.pipeline import merge
from pgps_spark.pipeline.config import Report
from pgps_spark.pipeline.files import Files
from pgps_spark.pipeline.plots import SPANS, Table, plots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["finish", "tables"]

_PARTS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; border-bottom: 1px solid #d5dde5; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .25rem .8rem; border-bottom: 1px solid #e6ebf0; }
th { text-align: left; font-weight: 600; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; } p.note { color: #5b6b7b; }
"""


def finish(spark: SparkSession, job: Report) -> Path:
    """Write the page, the pictures and the tables; return the page's path."""
    output = Path(job.output)
    output.mkdir(parents=True, exist_ok=True)
    found = tables(spark, job.directory)
    parts = [f"<h1>{html.escape(job.title)}</h1>"]
    for table, plot in zip(found, plots(found), strict=True):
        _write_csv(output / f"{table.name}.csv", table)
        parts.append(f"<h2>{html.escape(table.title)}</h2>")
        if plot is not None:
            (output / f"{table.name}.png").write_bytes(plot)
            parts.append(f'<img src="{table.name}.png" alt="{html.escape(table.title)}">')
        parts.append(_html(table))
    page = output / "report.html"
    page.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(job.title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n",
        encoding="utf-8",
    )
    return page


def tables(spark: SparkSession, directory: str) -> list[Table]:
    """Compute the tables over all event types of an archive; only the small results leave Spark."""
    files = Files(spark, directory)
    types = [name for name in files.children(directory) if files.children(f"{directory}/{name}/in", prefix="date=")]
    if not types:
        raise ConfigError(f"no archive in {directory}", hint="Run a job of kind archive first.")
    events = _all(spark, files, directory, types, "in", "event_id", "published_at", "publisher")
    out = _all(spark, files, directory, types, "out", "event_id", "subscription", "matched_at")
    failed = _all(spark, files, directory, types, "exception", "event_id", "subscription", "sqlstate", "error", "state")
    assert events is not None
    found = [_overview(events, out, failed), _throughput(events)]
    if out is not None:
        matched = out.join(events, ["event_type", "event_id"])
        found += [_latency(matched), _matches(matched)]
    if failed is not None:
        found.append(_exceptions(failed))
    return found


def _all(
    spark: SparkSession, files: Files, directory: str, types: list[str], queue: str, *columns: str
) -> DataFrame | None:
    from pyspark.sql import functions as f  # noqa: PLC0415 - loaded with Spark only

    found: DataFrame | None = None
    for name in types:
        place = f"{directory}/{name}/{queue}"
        by_day = bool(files.children(place, prefix="date="))
        if not by_day and not files.children(place, prefix="part-"):
            continue
        rows = merge.read(spark, place) if by_day else spark.read.parquet(place)
        part = rows.select(f.lit(name).alias("event_type"), *columns)
        found = part if found is None else found.unionByName(part)
    return found


def _overview(events: DataFrame, out: DataFrame | None, failed: DataFrame | None) -> Table:
    from pyspark.sql import functions as f  # noqa: PLC0415 - loaded with Spark only

    rows = {
        row.event_type: [row.event_type, row.events, row.publishers, row.first, row.last, 0, 0]
        for row in events.groupBy("event_type")
        .agg(
            f.count("*").alias("events"),
            f.countDistinct("publisher").alias("publishers"),
            f.date_format(f.min("published_at"), "yyyy-MM-dd HH:mm:ss").alias("first"),
            f.date_format(f.max("published_at"), "yyyy-MM-dd HH:mm:ss").alias("last"),
        )
        .collect()
    }
    for place, frame in ((5, out), (6, failed)):
        for row in frame.groupBy("event_type").count().collect() if frame is not None else []:
            rows[row.event_type][place] = row["count"]
    columns = ["event type", "events", "publishers", "first", "last", "deliveries", "exceptions"]
    return Table("overview", "What the archive has", columns, sorted(rows.values()))


def _throughput(events: DataFrame) -> Table:
    """Count events by spans of time, of the length that gives some dozens of points."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loaded with Spark only

    first, last = events.agg(f.min("published_at"), f.max("published_at")).collect()[0]
    whole = (last - first).total_seconds()
    name, length = next((each for each in SPANS.items() if whole / each[1] <= 60), list(SPANS.items())[-1])
    at = f.timestamp_seconds(f.floor(f.col("published_at").cast("double") / length) * length).alias("at")
    rows = events.groupBy(at, "event_type").count().orderBy("at", "event_type").collect()
    shown = [[row["at"].isoformat(sep=" "), row.event_type, row["count"]] for row in rows]
    return Table("throughput", f"Events published, by {name}", ["at", "event type", "events"], shown)


def _latency(matched: DataFrame) -> Table:
    from pyspark.sql import functions as f  # noqa: PLC0415 - loaded with Spark only

    seconds = (f.col("matched_at").cast("double") - f.col("published_at").cast("double")) * 1000
    rows = (
        matched.groupBy("event_type", "subscription")
        .agg(f.percentile(seconds, f.array(*map(f.lit, _PARTS.values()))).alias("parts"), f.count("*").alias("events"))
        .orderBy("event_type", "subscription")
        .collect()
    )
    shown = [[row.event_type, row.subscription, row.events, *(round(part, 1) for part in row.parts)] for row in rows]
    columns = ["event type", "subscription", "deliveries", *_PARTS]
    return Table("latency", "From publication until it can be received, in milliseconds", columns, shown)


def _matches(matched: DataFrame) -> Table:
    rows = matched.groupBy("event_type", "subscription").count().orderBy("count", ascending=False).collect()
    shown = [[row.event_type, row.subscription, row["count"]] for row in rows]
    return Table("matches", "Matches by subscription", ["event type", "subscription", "events"], shown)


def _exceptions(failed: DataFrame) -> Table:
    from pyspark.sql import functions as f  # noqa: PLC0415 - loaded with Spark only

    cause = f.coalesce(f.substring_index("error", "\n", 1), f.lit("(not shown to this role)"))
    rows = (
        failed.groupBy(
            "event_type",
            "subscription",
            f.coalesce("sqlstate", f.lit("")).alias("sqlstate"),
            cause.alias("cause"),
            "state",
        )
        .count()
        .orderBy("count", ascending=False)
        .limit(50)
        .collect()
    )
    shown = [[row.event_type, row.subscription, row.sqlstate, row.cause, row.state, row["count"]] for row in rows]
    columns = ["event type", "subscription", "SQLSTATE", "cause", "state", "events"]
    return Table("exceptions", "Exceptions by cause", columns, shown)


def _write_csv(path: Path, table: Table) -> None:
    with path.open("w", encoding="utf-8", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(table.columns)
        writer.writerows(table.rows)


def _html(table: Table) -> str:
    if not table.rows:
        return '<p class="note">None.</p>'
    shown = table.rows[:40]
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown)
    more = f'<p class="note">{len(table.rows) - 40} more in {table.name}.csv.</p>' if len(table.rows) > 40 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    if isinstance(value, int | float):
        return f'<td class="n">{value:,}</td>'
    return f"<td>{html.escape(str(value))}</td>"
