"""Running jobs: a stream until nothing is left, or until told to stop; then what comes after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgps.errors import ConfigError
from pgps_spark.errors import unwrapped
from pgps_spark.pipeline import analyse, archive, ingest, report
from pgps_spark.pipeline.config import Analyse, Archive, Ingest, Job, Report
from pgps_spark.queries import to_end
from pgps_spark.remote import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Done", "run_job"]

Done = dict[str, Any]


def run_job(spark: SparkSession, job: Job) -> Done:
    """Run a job to its end; return what it did. Raises what went wrong as a PgpsError where it is one."""
    if is_connect(spark):
        raise ConfigError(
            "the jobs of a pipeline need Spark's own session, and this is one of Spark Connect",
            hint="Run them with --master, or under spark-submit. publish and publish_stream work with Connect.",
        )
    with unwrapped():
        match job:
            case Ingest():
                return _stream(ingest.run(spark, job), job)
            case Analyse():
                return _stream(analyse.run(spark, job), job)
            case Archive():
                done = _stream(archive.run(spark, job), job)
                archive.finish(spark, job)
                return done
            case Report():
                return {"job": job.name, "page": str(report.finish(spark, job))}


def _stream(writer: Any, job: Job) -> Done:
    trigger = {"availableNow": True} if job.every is None else {"processingTime": f"{job.every} seconds"}
    query = to_end(writer.trigger(**trigger))
    batches = [progress for progress in query.recentProgress if progress["numInputRows"] > 0]
    return {"job": job.name, "batches": len(batches), "rows": sum(progress["numInputRows"] for progress in batches)}
