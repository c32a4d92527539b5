"""What happens to a broker while Spark works with it: it is restarted, killed, full; the subscription is dropped."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from pgps.embedded import EmbeddedCluster
from pgps.errors import BrokerError, PgpsError, UnknownName, WrongState
from pgps_spark import Published, publish, start
from pgps_spark.errors import told
from pgps_spark.queries import to_end
from tests.fix_broker import rows
from tests.fix_db import wait_until
from tests.spark.conftest import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _ask(cluster: EmbeddedCluster, query: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(psycopg.connect(cluster.dsn(), autocommit=True)) as connection:
        return rows(connection, query)


def _create(cluster: EmbeddedCluster, name: str = "quote") -> None:
    _ask(cluster, f"select pgps.create_event_type('{name}', 'n integer not null, text text')")
    _ask(cluster, f"select pgps.advertise('{name}')")


def _published(cluster: EmbeddedCluster) -> list[int]:
    return [n for (n,) in _ask(cluster, "select n from pgps_queue.quote_log order by n")]


def _gated(reached: Path, opened: Path) -> Any:
    """Return what stops the second partition in its middle until the gate is opened."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        for number, batch in enumerate(batches):
            yield batch
            # A batch is on its way only when there is a next one, and copied when there are more than a few rows.
            if context is not None and context.partitionId() == 1 and number == 2 and not opened.exists():
                reached.touch()
                while not opened.exists():
                    time.sleep(0.01)

    return work


def _meanwhile(
    df: DataFrame, cluster: EmbeddedCluster, directory: Path, happens: Callable[[], object]
) -> Callable[[], Published]:
    """Publish, and let something happen when one partition is at the broker and the other half way."""
    reached, opened = directory / "reached", directory / "opened"
    directory.mkdir()
    gated = df.mapInArrow(_gated(reached, opened), df.schema)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(publish, gated, "quote", dsn=cluster.dsn(), job="import", batch=1)
        try:
            wait_until(lambda: reached.exists() or future.done(), timeout=300)
            wait_until(lambda: future.done() or _waits(cluster), timeout=300)
            assert not future.done()
            happens()
        finally:
            opened.touch()
    return future.result


def _waits(cluster: EmbeddedCluster) -> bool:
    tables = _ask(cluster, "select format('pgps_load.%I', tablename) from pg_tables where schemaname = 'pgps_load'")
    copying = _ask(cluster, "select 1 from pg_stat_activity where query ilike 'copy %' and state = 'active'")
    return len(copying) == 1 and any(_ask(cluster, f"select 1 from {table} limit 1") for (table,) in tables)


def test_a_broker_that_is_restarted_while_events_come_in_publishes_them_once(
    spark: SparkSession, own_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    _create(own_cluster)
    df = spark.range(0, 60_000, 1, 2).selectExpr("cast(id as int) n", "repeat('x', 50) text")

    def crashed() -> None:
        own_cluster.kill9()
        own_cluster.start()

    def restarted() -> None:
        # One that is not done with it in time is ended as in a crash.
        own_cluster.stop(timeout=300)
        own_cluster.start()

    # What a task had brought in is lost in a crash: told, and nothing is out.
    with pytest.raises(WrongState, match="has 30000 events where 60000 were brought in") as caught:
        _meanwhile(df, own_cluster, tmp_path / "crashed", crashed)()
    assert "again" in str(caught.value.hint)
    assert _published(own_cluster) == []
    # An orderly restart keeps it: the one task is tried again.
    assert _meanwhile(df, own_cluster, tmp_path / "restarted", restarted)().events == 60_000
    assert publish(df, "quote", dsn=own_cluster.dsn(), job="import", batch=1).repeated
    assert _published(own_cluster) == list(range(60_000))


@contextlib.contextmanager
def _full(cluster: EmbeddedCluster, most: int) -> Iterator[None]:
    """Run the server where the operating system refuses it what makes a file larger than that; then as before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    cluster.stop()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        cluster.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    yield
    cluster.stop()
    cluster.start()


def test_a_broker_that_is_full_refuses_the_whole_batch_and_takes_it_when_there_is_room(
    spark: SparkSession, own_cluster: EmbeddedCluster
) -> None:
    _create(own_cluster)
    dsn = own_cluster.dsn(tcp=True)
    df = spark.range(0, 18_000, 1, 1).selectExpr("cast(id as int) n", "repeat('x', 1200) text")
    # Larger than a segment of the WAL, which has to have room.
    with _full(own_cluster, 17 << 20):
        with pytest.raises(BrokerError, match="could not extend file"):
            publish(df, "quote", dsn=dsn, job="import", batch=1)
        with pytest.raises(PgpsError, match="could not extend file"):
            publish(df, "quote", dsn=dsn, via="jdbc")
    assert _published(own_cluster) == []
    assert publish(df, "quote", dsn=dsn, job="import", batch=1).events == 18_000
    assert _published(own_cluster) == list(range(18_000))


def test_a_stream_outlives_its_broker_but_not_its_subscription(
    spark: SparkSession, own_cluster: EmbeddedCluster, broker: Broker, tmp_path: Path
) -> None:
    _create(own_cluster)
    _ask(own_cluster, "select pgps.subscribe('reader', 'quote')")
    found: dict[int, list[int]] = {}

    def look(df: DataFrame, batch: int) -> None:
        found[batch] = [row.n for row in df.collect()]

    def come(number: int) -> None:
        insert = "insert into pgps_event.quote (n) select g from generate_series(%s, %s) g"
        _ask(own_cluster, insert % (number - 99, number))
        _ask(own_cluster, "select pgps.dispatch()")
        wait_until(lambda: not query.isActive or sum(map(len, found.values())) >= number, timeout=300)
        assert sorted(n for batch in found.values() for n in batch) == list(range(1, number + 1)), query.exception()

    # However long it takes until the broker is there again.
    reader = spark.readStream.format("pgps").options(dsn=own_cluster.dsn(), subscription="reader", patience="300")
    writer = reader.load().writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = start(writer.trigger(processingTime="50 milliseconds"))
    try:
        come(100)
        own_cluster.kill9()
        own_cluster.start()
        come(200)
        _ask(own_cluster, "select pgps.unsubscribe('reader')")
        wait_until(lambda: not query.isActive, timeout=300)
    finally:
        query.stop()
    error = told(query.exception() or AssertionError())
    assert isinstance(error, UnknownName)
    assert 'subscription "reader" does not exist' in error.message

    # Its checkpoint says nothing of another broker's subscription.
    t = broker.type()
    other = broker.stream(spark, broker.subscribe(t))
    writer = other.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    rows(broker.connection, f"insert into pgps_event.{t} (n) values (1)")
    broker.dispatch()
    with pytest.raises(Exception, match="the checkpoint is of subscription") as caught:
        to_end(writer.trigger(availableNow=True))
    wrong = told(caught.value)
    assert isinstance(wrong, WrongState)
    (incarnation,) = rows(broker.admin, "select pgps_internal.incarnation()")[0]
    assert f"of {incarnation}" in wrong.message
