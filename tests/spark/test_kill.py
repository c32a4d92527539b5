"""Drivers, their JVM and all their Python processes are killed in the middle, again and again; and executors alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fix_broker import rows
from tests.fix_db import wait_until
from tests.fix_worker import Workers
from tests.spark.conftest import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

# A stream from one event type to another; more tries, since its processes start slowly beside a test run.
_PROGRAM = """
import sys
from pgps_spark import publish_stream, session
from pgps_spark.queries import to_end
dsn, subscription, target, checkpoint = sys.argv[1:]
spark = session("kill", master="local[2]", driver_memory="512m", spark__ui__enabled="false")
events = spark.readStream.format("pgps").option("dsn", dsn).option("subscription", subscription)
events = events.option("maxEventsPerTrigger", "700").load().select("n", "text").repartition(2)
writer = publish_stream(events, target, dsn=dsn).option("checkpointLocation", checkpoint)
to_end(writer.trigger(processingTime="100 milliseconds"))
"""


def test_a_driver_that_is_killed_publishes_each_event_once(
    broker: Broker, dsn: str, workers: Workers, tmp_path: Path
) -> None:
    source, target = broker.type(), broker.type()
    subscription = broker.subscribe(source)
    workers(dsn)
    insert = f"insert into pgps_event.{source} (n, text) select g, 'x' from generate_series(%s::int, %s) g"
    count = f"select count(*) from pgps_queue.{target}_log"
    for turn in range(3):
        rows(broker.connection, insert, [turn * 10_000, turn * 10_000 + 9_999])
        before = rows(broker.admin, count)[0][0]
        # In the middle of what waits; the last one comes to its end.
        wanted = 30_000 if turn == 2 else before + 2_000 * (turn + 1)
        command = [sys.executable, "-c", _PROGRAM, broker.dsn, subscription, target, str(tmp_path / "checkpoint")]
        assert _killed_at(partial(_has, broker, count, wanted), command, tmp_path / f"{turn}.log")
    found = rows(broker.admin, f"select n from pgps_queue.{target}_log order by n")
    assert [n for (n,) in found] == list(range(30_000))


# The first task to have given some rows kills its executor, whose tasks are tried again; a slow one is copied
# while it runs.
_EXECUTORS = """
import os, signal, sys, time
from pathlib import Path
from pyspark import TaskContext
from pgps_spark import publish, session
dsn, event_type, directory = sys.argv[1:]
spark = session(
    "executors", master="local-cluster[2,1,1024]", driver_memory="512m", spark__ui__enabled="false",
    spark__speculation="true", spark__speculation__interval="200ms", spark__speculation__quantile="0.5",
    spark__speculation__minTaskRuntime="500ms",
)
def taken(name):
    try:
        os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False
def executor(pid):
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
def work(batches):
    for batch in batches:
        yield batch
        context = TaskContext.get()
        if taken("killed"):
            os.kill(executor(os.getpid()), signal.SIGKILL)
        # Slow, so that it is copied; what is left of it when the copy was faster is not published.
        if context.partitionId() == 3 and context.attemptNumber() == 0 and taken("slow"):
            time.sleep(20)
# In another order, and other partitions, whenever it is computed.
df = spark.range(0, 40000, 1, 4).selectExpr("cast(id as int) n", "uuid() text").repartition(4, "text")
print(publish(df.mapInArrow(work, df.schema), event_type, dsn=dsn, job="executors").events)
"""

PIPELINE = """
[pipeline]
dsn = "{dsn}"
directory = "{directory}/state"
[jobs.keep]
kind = "archive"
event_type = "{event_type}"
subscription = "{subscription}"
directory = "{directory}/archive"
max_events = 1000
"""


def test_executors_that_are_killed_and_copied_publish_each_event_once(broker: Broker, tmp_path: Path) -> None:
    event_type = broker.type()
    command = [sys.executable, "-c", _EXECUTORS, broker.dsn, event_type, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout.strip() == "40000", done.stderr[-3000:]
    assert {path.name for path in tmp_path.iterdir()} >= {"killed", "slow"}
    found = rows(broker.admin, f"select n from pgps_queue.{event_type}_log order by n")
    assert [n for (n,) in found] == list(range(40_000))


def test_an_archive_that_is_killed_has_each_event_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    event_type = broker.type(auditable=True)
    subscription = broker.subscribe(event_type)
    path = tmp_path / "pipeline.toml"
    path.write_text(
        PIPELINE.format(dsn=broker.dsn, directory=tmp_path, event_type=event_type, subscription=subscription)
    )
    command = [sys.executable, "-m", "pgps_spark", "run", str(path), "--master", "local[2]", "--driver-memory", "512m"]
    archive = tmp_path / "archive" / event_type
    insert = f"insert into pgps_event.{event_type} (n) select g from generate_series(%s::int, %s) g"
    events = 0
    # In the middle of what waits, twice; then when small files are put together.
    for turn, reached in enumerate((_batches(archive, 3), _batches(archive, 10), _is_put_together(archive))):
        # A run that was done before anybody looked has killed nothing: it gets more to do.
        while not events or not _killed_at(reached, command, tmp_path / f"{turn}.log"):
            rows(broker.connection, insert, [events + 1, events + 20_000])
            broker.dispatch()
            events += 20_000
    subprocess.run(command, capture_output=True, check=True, timeout=600)
    found = [row.n for row in spark.read.parquet(f"{archive}/in").collect()]
    assert sorted(found) == list(range(1, events + 1))
    assert spark.read.parquet(f"{archive}/out").where(f"subscription = '{subscription}'").count() == events


def _batches(archive: Path, number: int) -> Callable[[], bool]:
    return lambda: len(list(archive.glob("in/date=*/batch=*"))) >= number


def _is_put_together(archive: Path) -> Callable[[], bool]:
    return lambda: next(archive.glob("in/_together-*"), None) is not None


def _has(broker: Broker, count: str, wanted: int) -> bool:
    return int(rows(broker.admin, count)[0][0]) >= wanted


def _killed_at(reached: Callable[[], bool], command: list[str], log: Path) -> bool:
    """Run a program until it has come that far, then kill it with all its processes; False when it was done before."""
    with log.open("wb") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            wait_until(lambda: reached() or driver.poll() is not None, timeout=300)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    lines = log.read_text().splitlines()
    assert driver.returncode in (0, -signal.SIGKILL), "\n".join(
        line for line in lines if not line.lstrip().startswith("at ")
    )[-6000:]
    return driver.returncode != 0
