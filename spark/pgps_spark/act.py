"""The demonstration's act about Spark: `python -m pgps_spark.act PIPELINE EVENT_TYPE FILE`.

Publishes a file of quotes through Spark's JDBC writer, waits until they are dispatched, then runs the
pipeline's jobs; says what was done as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pgps.errors import PgpsError
from pgps_spark.connection import connect, resolved
from pgps_spark.pipeline import config

__all__ = ["main"]

_COLUMNS = ("symbol string", "day date", "open decimal(12,4)", "close decimal(12,4)", "volume bigint", "number bigint")
_PATIENCE = 60.0


def act(pipeline: config.Pipeline, event_type: str, file: Path) -> dict[str, Any]:
    """Publish, and run the jobs."""
    from pgps_spark import publish, session  # noqa: PLC0415 - needs PySpark
    from pgps_spark.pipeline.run import run_job  # noqa: PLC0415 - see above

    spark = session("pgps demo", master="local[2]", driver_memory="1g", **pipeline.spark)
    spark.sparkContext.setLogLevel("ERROR")
    dsn = next(iter(pipeline.jobs.values())).dsn
    quotes = spark.read.csv(str(file), header=True, schema=", ".join(_COLUMNS)).repartition(2, "symbol")
    done = publish(quotes, event_type, dsn=dsn, via="jdbc", job="demo", number="number", progress=False)
    # The file is published a second time, as by a job that is retried; the broker drops the repeats.
    publish(quotes, event_type, dsn=dsn, via="jdbc", job="demo", number="number", progress=False)
    _wait(resolved(dsn), event_type, done.events)
    jobs = [run_job(spark, job) for job in pipeline.jobs.values()]
    archive = next(job for job in pipeline.jobs.values() if isinstance(job, config.Archive))
    events = spark.read.parquet(f"{archive.directory}/{event_type}/in")
    matches = spark.read.parquet(f"{archive.directory}/{event_type}/out").groupBy("subscription").count().collect()
    return {
        "published": done.events,
        "archived": events.count(),
        "distinct": events.select("symbol", "day").distinct().count(),
        "matches": {row["subscription"]: row["count"] for row in matches},
        "page": jobs[-1]["page"],
    }


def _wait(dsn: str, event_type: str, events: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    query = "select published + repeats from pgps.activity where event_type = %s"
    with connect(dsn) as connection:
        while (connection.execute(query, [event_type]).fetchone() or (0,))[0] < 2 * events:
            if time.monotonic() > deadline:
                raise PgpsError(f"not dispatched within {_PATIENCE:g} s", hint="Does the worker run?")
            time.sleep(0.1)


def main() -> int:
    """Run the act."""
    path, event_type, file = sys.argv[1:]
    try:
        sys.stdout.write(json.dumps(act(config.load(Path(path)), event_type, Path(file))) + "\n")
    except PgpsError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
