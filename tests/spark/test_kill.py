"""The driver, its JVM and all its Python processes are killed in the middle, again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.fix_broker import rows
from tests.fix_db import wait_until
from tests.fix_worker import Workers
from tests.spark.conftest import Broker

pytestmark = pytest.mark.slow

# A stream from one event type to another; more tries, since its processes start slowly beside a test run.
_PROGRAM = """
import sys
from pgps_spark import publish_stream, session
from pgps_spark.pipeline.run import to_end
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
        _killed_at(partial(_has, broker, count, wanted), command, tmp_path / f"{turn}.log")
    found = rows(broker.admin, f"select n from pgps_queue.{target}_log order by n")
    assert [n for (n,) in found] == list(range(30_000))


def _has(broker: Broker, count: str, wanted: int) -> bool:
    return int(rows(broker.admin, count)[0][0]) >= wanted


def _killed_at(reached: Callable[[], bool], command: list[str], log: Path) -> None:
    """Run a program until it has come that far, then kill it with all its processes."""
    with log.open("wb") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            wait_until(lambda: reached() or driver.poll() is not None, timeout=300)
            assert driver.poll() is None, log.read_text()[-3000:]
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
