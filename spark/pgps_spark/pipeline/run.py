"""Running jobs: a stream until nothing is left, or until told to stop; then what comes after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgps_spark.errors import unwrapped
from pgps_spark.pipeline import analyse, archive, ingest, report
from pgps_spark.pipeline.config import Analyse, Archive, Ingest, Job, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Done", "run_job", "to_end"]

_TOO_SLOW = "Python worker failed to connect back"

Done = dict[str, Any]


def run_job(spark: SparkSession, job: Job) -> Done:
    """Run a job to its end; return what it did. Raises what went wrong as a PgpsError where it is one."""
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


def to_end(writer: Any, tries: int = 10) -> Any:
    """Start a query and wait for its end, or for Ctrl-C; return it.

    Spark gives the Python process of a source ten seconds to start, whatever the machine has
    to do: a query that has not begun for that reason is started again.
    """
    for left in reversed(range(tries)):
        query = writer.start()
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
        except Exception as error:
            if left == 0 or _TOO_SLOW not in str(error) or query.recentProgress:
                raise
            continue
        return query
    raise AssertionError
