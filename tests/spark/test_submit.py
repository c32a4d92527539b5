"""Other ways to run: under spark-submit, and with Spark Connect; each in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fix_broker import rows
from tests.fix_db import wait_until
from tests.fix_worker import free_port
from tests.spark.conftest import Broker
from tests.spark.test_kill import PIPELINE

pytestmark = pytest.mark.slow

_CONNECT = """
import json, sys
from pgps.errors import BadArgument, ConstraintViolated
from pgps_spark import publish, publish_stream, session, start
dsn, source, subscription, target, checkpoint, admin, remote = sys.argv[1:]
spark = session("connect", master=remote)
df = spark.range(0, 1000, 1, 2).selectExpr("cast(id as int) n", "'x' text")
done = [publish(df, source, dsn=dsn, job="connect", batch=1) for _ in range(2)]
refused = []
for wrong in (df.select("text"), df.selectExpr("cast(if(n = 500, null, n) as int) n")):
    try:
        publish(wrong, source, dsn=dsn)
    except (BadArgument, ConstraintViolated) as error:
        refused.append(type(error).__name__)
df.where("n < 10").write.format("pgps").options(dsn=dsn, eventType=source).mode("append").save()
read = spark.read.format("pgps").options(dsn=dsn, queue=source + "_in").load().count()
import psycopg
with psycopg.connect(admin, autocommit=True) as connection:
    connection.execute("select pgps.dispatch()")
events = spark.readStream.format("pgps").options(dsn=dsn, subscription=subscription).load().select("n", "text")
writer = publish_stream(events, target, dsn=dsn).option("checkpointLocation", checkpoint)
start(writer.trigger(availableNow=True)).awaitTermination()
print(json.dumps([[each.events for each in done], done[1].repeated, refused, read]))
"""


def _submit(*arguments: str) -> list[str]:
    import pyspark

    return [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]", *arguments]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable}


def test_a_pipeline_runs_under_spark_submit(broker: Broker, tmp_path: Path) -> None:
    from pgps_spark import __main__ as program

    event_type = broker.type(auditable=True)
    subscription = broker.subscribe(event_type)
    rows(broker.connection, f"insert into pgps_event.{event_type} (n) select g from generate_series(1, 100) g")
    broker.dispatch()
    path = tmp_path / "pipeline.toml"
    path.write_text(
        PIPELINE.format(dsn=broker.dsn, directory=tmp_path, event_type=event_type, subscription=subscription)
    )
    settings = ["--driver-memory", "512m", "--conf", "spark.ui.enabled=false"]
    done = subprocess.run(
        _submit(*settings, str(program.__file__), "run", str(path), "--json"),
        env=_environment(), capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"job": "keep", "batches": 1, "rows": 100}


@contextlib.contextmanager
def _server(log: Path) -> Iterator[str]:
    """Run a server of Spark Connect; yield its address."""
    port = free_port()
    command = _submit(
        "--driver-memory", "1g", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false", "spark-internal",
    )  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=_environment(), stdout=output, stderr=output)
        try:
            wait_until(lambda: process.poll() is not None or _listens(port), timeout=300)
            assert process.poll() is None, log.read_text()[-3000:]
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_spark_connect_publishes_and_reads(broker: Broker, dsn: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
    source, target = broker.type(auditable=True), broker.type()
    names = [source, broker.subscribe(source), target, str(tmp_path / "checkpoint"), dsn]
    with _server(tmp_path / "server.log") as remote:
        done = subprocess.run(
            [sys.executable, "-c", _CONNECT, broker.dsn, *names, remote],
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [
        [1000, 0], True, ["BadArgument", "ConstraintViolated"], 1010,
    ]  # fmt: skip
    assert sorted(broker.received(target)) == sorted([*range(10), *range(1000)])
