"""The job ingest: what rows of files become, or why they are no events."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pgps_spark.pipeline import config, ingest
from pgps_spark.pipeline.run import run_job
from tests.fix_broker import call, rows
from tests.spark.conftest import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _job(broker: Broker, event_type: str, path: Path, text: str) -> config.Ingest:
    (path / "files").mkdir()
    (path / "files" / "a.csv").write_text(text)
    return config.Ingest(
        name="read", dsn=broker.dsn, checkpoint=f"{path}/checkpoint", event_type=event_type, source=f"{path}/files",
        rejects=f"{path}/rejects",
    )  # fmt: skip


def test_numbers_are_as_exact_and_as_large_as_in_postgresql(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    t = broker.type("n integer, exact numeric, large numeric(40,2), small numeric(4,1)")
    digits = "0.12345678901234567890123456789"
    lines = [f"1,{digits},{'9' * 38}.25,-1.25", "2,1e30,+.5,1.", "3,none,,", "4,,,1e9", "5,NaN,,", "6, 7 ,,"]
    run_job(spark, _job(broker, t, tmp_path, "n,exact,large,small\n" + "\n".join(lines) + "\n"))
    broker.dispatch()
    found = rows(broker.admin, f"select n, exact, large, small from pgps_queue.{t}_log order by n")
    assert found == [
        (1, Decimal(digits), Decimal("9" * 38 + ".25"), Decimal("-1.3")),
        (2, Decimal(10) ** 30, Decimal("0.50"), Decimal("1.0")),
        (6, Decimal(7), None, None),
    ]
    rejects = spark.read.parquet(f"{tmp_path}/rejects").collect()
    assert {row.source[6]: row.reason for row in rejects} == {
        "3": "exact: none is no numeric", "4": "numeric field overflow", "5": "exact: NaN is no numeric",
    }  # fmt: skip


def test_a_header_may_have_any_characters(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    t = broker.type("n integer not null")
    run_job(spark, _job(broker, t, tmp_path, "n,a.b,the `n`\n1,2,x\nnone,3,y\n"))
    assert broker.received(t) == [1]
    (reject,) = spark.read.parquet(f"{tmp_path}/rejects").collect()
    assert reject.source == '{"n":"none","a.b":"3","the `n`":"y"}'


def test_a_task_keeps_no_more_rejects_than_there_may_be(broker: Broker) -> None:
    t = broker.type("n integer")
    load = broker.make("load")
    given = {"n": [1, 2], "_source": ["{}", "{}"], "_reason": ["bad", ""]}
    batch = pa.RecordBatch.from_pydict(given)
    read = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(100):
            read.append(number)
            yield batch

    found = list(ingest._task(batches(), dsn=broker.dsn, event_type=t, load=load, max_rejects=3))
    assert [row["events"] for part in found for row in part.to_pylist()] == [4, None, None, None, None]
    # All that Spark writes to a task is read.
    assert len(read) == 100
    assert call(broker.connection, "discard_load", load)
