"""Publishing: plain JDBC, loads, schemas; exactly once although tasks are killed and batches are repeated."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from decimal import Decimal
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from pgps.errors import (
    BadArgument,
    ConfigError,
    ConnectionLost,
    ConstraintViolated,
    NotPermitted,
    PgpsError,
    UnknownName,
    WrongState,
)
from pgps_spark import publish, publish_stream, publishing
from pgps_spark.errors import unwrapped
from pgps_spark.queries import to_end
from tests.fix_broker import call, quoted, rows
from tests.spark.conftest import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_plain_jdbc_write_publishes(spark: SparkSession, broker: Broker) -> None:
    from pgps_spark import jdbc_options

    t = broker.type("n integer not null, id uuid, doc jsonb, tags text[], at timestamptz, price numeric")
    df = spark.range(100).selectExpr(
        "cast(id as int) n", "uuid() id", "to_json(named_struct('a', id)) doc", "array('x', concat('y', id)) tags",
        "timestamp'2024-02-29 12:00:00.123456' at", "cast(id / 4 as decimal(10,2)) price",
    )  # fmt: skip
    df.write.format("jdbc").options(**jdbc_options(broker.dsn), dbtable=f"pgps_event.{t}").mode("append").save()
    assert sorted(broker.received(t)) == list(range(100))
    found = rows(broker.admin, f"select doc, tags, price from pgps_queue.{t}_log where n = 7")
    assert found == [({"a": 7}, ["x", "y7"], Decimal("1.75"))]


def test_a_role_that_may_only_publish_writes_with_columns_it_may_see(spark: SparkSession, broker: Broker) -> None:
    from pgps_spark import jdbc_options

    t = broker.type()
    rows(broker.admin, f"revoke select on pgps_event.{t} from {broker.role}")
    rows(broker.admin, f"grant select (n, text, _producer, _producer_seq) on pgps_event.{t} to {broker.role}")
    df = spark.createDataFrame([(1, "a")], "n int, text string")
    df.write.format("jdbc").options(**jdbc_options(broker.dsn), dbtable=f"pgps_event.{t}").mode("append").save()
    assert broker.received(t) == [1]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        call(broker.connection, "subscribe", broker.make("reader"), t)
    rows(broker.admin, f"revoke insert on pgps_event.{t} from {broker.role}")
    with pytest.raises((NotPermitted, UnknownName)):
        publish(df, t, dsn=broker.dsn)


def test_numbers_let_a_jdbc_write_be_repeated(spark: SparkSession, broker: Broker) -> None:
    t = broker.type()
    df = spark.range(50).selectExpr("cast(id as int) n", "'x' text", "id as row")
    for partitions in (2, 1):
        done = publish(df.repartition(partitions), t, dsn=broker.dsn, via="jdbc", job="import", number="row")
        assert done.events == 50
    assert sorted(broker.received(t)) == list(range(50))


def _dies_once(flag: Path) -> Any:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            # After rows of it have gone to the broker.
            if not flag.exists():
                flag.touch()
                os._exit(1)

    return work


def test_a_task_that_is_killed_in_the_middle_publishes_nothing_twice(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    t = broker.type()
    # In another order each time it is computed: numbers of rows would not do.
    df = spark.range(0, 40_000, 1, 2).selectExpr("cast(id as int) n", "uuid() text").orderBy("text")
    failing = df.mapInArrow(_dies_once(tmp_path / "died"), df.schema)
    done = publish(failing, t, dsn=broker.dsn, job="job", batch=3)
    assert (tmp_path / "died").exists()
    assert done.events == 40_000
    again = publish(df, t, dsn=broker.dsn, job="job", batch=3)
    assert (again.events, again.repeated) == (0, True)
    assert sorted(broker.received(t)) == list(range(40_000))
    # Of this type: a task of another test may begin the load of a job that has failed once more.
    left = "select count(*) from pgps_internal.load l join pgps_internal.event_type t using (type_id) where t.name = %s"
    assert rows(broker.admin, left, [t]) == [(0,)]


def test_rows_keep_their_order_within_and_across_partitions(spark: SparkSession, broker: Broker) -> None:
    t = broker.type()
    bounds = [(0, 40_000, 2), (40_000, 40_010, 1), (40_010, 40_010, 1), (40_010, 70_000, 1)]
    ranges = [spark.range(lo, hi, 1, partitions) for lo, hi, partitions in bounds]
    df = reduce(lambda one, other: one.union(other), ranges).selectExpr("cast(id as int) n", "'x' text")
    assert publish(df, t, dsn=broker.dsn).events == 70_000
    assert broker.received(t) == list(range(70_000))


def test_a_try_with_many_rows_has_a_table_of_its_own_and_few_rows_share_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    t, load = broker.type(), broker.make("load")
    target = publishing.Target(broker.dsn, t, ("n",))
    batch = pa.record_batch([pa.array(range(100), pa.int32())], names=["n"])

    def bring_in(batches: int) -> publishing.Part:
        return publishing.bring_in(iter([batch] * batches), target, load=load, job="job")

    def tables() -> list[int]:
        table = call(broker.connection, "begin_load", t, load)
        every = rows(broker.admin, "select t::text from pgps_internal.tables_of_load(%s) t", [table])
        return sorted(rows(broker.admin, f"select count(*) from {name}")[0][0] for (name,) in every)

    parts = [bring_in(0), bring_in(100)]
    assert tables() == [10_000]
    parts.append(bring_in(101))
    assert tables() == [10_000, 10_100]
    bad = pa.record_batch([pa.array([1, None], pa.int32())], names=["n"])
    with pytest.raises(ConstraintViolated):
        publishing.bring_in(iter([batch] * 101 + [bad]), target, load=load, job="job")
    assert tables() == [0, 10_000, 10_100]
    # A load has only so many.
    monkeypatch.setattr(publishing, "_FEW", 10)
    for _ in range(198):
        bring_in(1)
    parts.append(bring_in(1))
    assert tables() == [0, *[100] * 198, 10_100, 10_100]
    done = publishing.publish_parts(
        parts, dsn=broker.dsn, event_type=t, load=load, attributes=["n"], job="job", batch=1
    )
    assert done == 20_200
    assert sorted(broker.received(t)) == sorted([*range(100)] * 202)


def test_a_micro_batch_that_is_repeated_is_published_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    source, target = broker.type(), broker.type()
    s = broker.subscribe(source)
    publish(spark.range(100).selectExpr("cast(id as int) n", "'x' text"), source, dsn=broker.dsn)
    broker.dispatch()

    def run(write: Any) -> None:
        events = broker.stream(spark, s).select("n", "text")
        query = write(events, target, dsn=broker.dsn).option("checkpointLocation", str(tmp_path / "a"))
        to_end(query.trigger(availableNow=True))

    def crashing(events: DataFrame, target: str, *, dsn: str) -> Any:
        # The driver dies when it has published, and before Spark has noted that the batch is done.
        def work(df: DataFrame, batch: int) -> None:
            from pgps_spark.claims import query_producer

            publish(df, target, dsn=dsn, job=query_producer(df), batch=batch)
            raise RuntimeError("killed")

        return events.writeStream.foreachBatch(work)

    with pytest.raises(Exception, match="killed"):
        run(crashing)
    assert broker.depth(s) == 100
    run(publish_stream)
    assert broker.depth(s) == 0
    assert sorted(broker.received(target)) == list(range(100))


@pytest.mark.parametrize("by", ["publish_stream", "data source"])
def test_a_checkpoint_that_was_set_back_publishes_nothing_under_numbers_that_are_taken(
    spark: SparkSession, broker: Broker, tmp_path: Path, by: str
) -> None:
    """Its next micro-batch has what came since, too: taken for a repetition, that would be left out."""
    t = broker.type("n integer not null")
    (tmp_path / "files").mkdir()
    checkpoint = tmp_path / "checkpoint"

    def run(n: int) -> None:
        (tmp_path / "files" / f"{n}.csv").write_text(f"n\n{n}\n")
        events = spark.readStream.schema("n int").option("header", "true").csv(f"{tmp_path}/files")
        if by == "publish_stream":
            writer = publish_stream(events, t, dsn=broker.dsn)
        else:
            writer = events.writeStream.format("pgps").options(dsn=broker.dsn, eventType=t)
        with unwrapped():
            to_end(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True))

    run(0)
    shutil.copytree(checkpoint, tmp_path / "backup")
    run(1)
    run(2)
    shutil.copytree(checkpoint, tmp_path / "newest")
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    with pytest.raises(WrongState, match="older than what was published"):
        run(3)
    assert broker.received(t) == [0, 1, 2]
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "newest", checkpoint)
    run(4)
    assert broker.received(t) == [0, 1, 2, 3, 4]
    left = "select count(*) from pgps_internal.load l join pgps_internal.event_type t using (type_id) where t.name = %s"
    assert rows(broker.admin, left, [t]) == [(0,)]


def test_both_writers_of_the_data_source_publish(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    source, target = broker.type(), broker.type()
    s = broker.subscribe(source)
    df = spark.range(10).selectExpr("cast(id as int) n", "'x' text")
    for _ in range(2):
        df.write.format("pgps").options(dsn=broker.dsn, eventType=source, job="j", batch="1").mode("append").save()
    assert sorted(broker.received(source)) == list(range(10))
    events = broker.stream(spark, s).select("n", "text")
    writer = events.writeStream.format("pgps").options(dsn=broker.dsn, eventType=target)
    to_end(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True))
    assert sorted(broker.received(target)) == list(range(10))


def test_a_dataframe_that_does_not_fit_is_refused_before_anything_runs(spark: SparkSession, broker: Broker) -> None:
    t = broker.type("n integer not null, text text, price numeric")
    for columns, said in (
        ("'a' text", '"n" (integer, not null) has no column'),
        ("1 n, 2 m", '"m" is no attribute'),
        ("'1' n", '"n" is string, the attribute integer'),
        ("1L n", '"n" is bigint, the attribute integer'),
        ("1 n, 'cheap' price", '"price" is string, the attribute numeric'),
    ):
        df = spark.range(1).selectExpr(*columns.split(", "))
        with pytest.raises(BadArgument, match="does not fit") as caught:
            publish(df, t, dsn=broker.dsn)
        assert said in caught.value.message
        assert caught.value.hint is not None
        assert "n integer not null" in caught.value.hint
    with pytest.raises(UnknownName, match="nothing"):
        publish(spark.range(1), "nothing", dsn=broker.dsn)
    rows(broker.connection, "select pgps.unadvertise(%s)", [t])
    with pytest.raises(WrongState, match="advertised"):
        publish(spark.range(1), t, dsn=broker.dsn)
    assert broker.received(t) == []


def test_a_row_that_is_refused_in_the_middle_leaves_nothing_published(spark: SparkSession, broker: Broker) -> None:
    t = broker.type("n integer not null check (n <> 7000), text text not null")
    df = spark.range(0, 10_000, 1, 2).selectExpr("cast(id as int) n", "if(id = 8000, null, 'x') text")
    with pytest.raises(ConstraintViolated, match=r"violates check constraint|null value"):
        publish(df, t, dsn=broker.dsn)
    with pytest.raises(PgpsError, match="violates"):
        publish(df.where("n > 6000").coalesce(1), t, dsn=broker.dsn, via="jdbc")
    refused = df.where("n = 7000").coalesce(1)
    for write in (partial(publish, refused, t), partial(publish, refused, t, via="jdbc")):
        with pytest.raises(ConstraintViolated) as caught:
            write(dsn=broker.dsn)
        assert (caught.value.sqlstate, bool(caught.value.constraint)) == ("23514", True)
    assert broker.received(t) == []


REJECTS = "event_type text, source jsonb, error text, sqlstate text, job text"


def test_rows_that_are_no_events_are_published_as_rejects_and_the_others_once(
    spark: SparkSession, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = broker.type("n integer not null check (n % 100 <> 7), doc jsonb")
    dead = broker.type(REJECTS)
    df = spark.range(1000, numPartitions=2).selectExpr(
        "if(id = 500, null, cast(id as int)) n", "array(if(id = 600, double('NaN'), 1.5)) doc"
    )
    with pytest.raises(PgpsError):
        publish(df, t, dsn=broker.dsn, job="nightly")
    publish_parts = publishing.publish_parts

    def dies_before_the_events(*args: Any, **kwargs: Any) -> int | None:
        if kwargs["event_type"] == t:
            raise RuntimeError("killed")
        return publish_parts(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "publish_parts", dies_before_the_events)
        with pytest.raises(RuntimeError, match="killed"):
            publish(df, t, dsn=broker.dsn, job="nightly", rejects=dead)
    done = publish(df, t, dsn=broker.dsn, job="nightly", rejects=dead)
    assert (done.events, done.rejected) == (988, 12)
    assert publish(df, t, dsn=broker.dsn, job="nightly", rejects=dead).repeated
    good = set(range(1000)) - {500, 600} - set(range(7, 1000, 100))
    assert sorted(broker.received(t)) == sorted(good)
    found = rows(broker.admin, f"select source -> 'n', sqlstate, event_type, job from pgps_queue.{dead}_log")
    assert {(sqlstate, n) for n, sqlstate, *_ in found} == {
        ("23502", None), ("22P02", 600), *(("23514", n) for n in range(7, 1000, 100))
    }  # fmt: skip
    assert len(found) == 12
    assert {(event_type, job) for *_, event_type, job in found} == {(t, "nightly")}


def test_a_row_that_cannot_even_be_shown_stops_nothing(spark: SparkSession, broker: Broker) -> None:
    """U+0000, no UTF-8, a year that Python lacks, JSON nested too deep, a domain's function that raises."""
    small = broker.make("small")
    rows(
        broker.admin,
        f"create function public.{small}_checked(value text) returns boolean language plpgsql immutable as"
        " $$ begin if value = 'bad' then raise exception 'no'; end if; return true; end $$",
    )
    rows(broker.admin, f"create domain public.{small} as text check (public.{small}_checked(value))")
    t = broker.type(f"n integer, text public.{small}, at timestamptz, doc jsonb, many text[]")
    dead = broker.type(REJECTS)
    df = spark.sql(
        "select n, if(n = 1, 'a\\\\u0000\\u0000b', if(n = 2, cast(x'41ff' as string), if(n > 6, 'bad', 'good'))) text,"
        " if(n = 8, timestamp_seconds(300000000000), null) at, if(n = 4, repeat('[', 200000), null) doc,"
        " if(n = 5, array(cast(x'ff' as string)), array('x')) many from (select explode(array(1, 2, 3, 4, 5, 7, 8)) n)"
    )
    done = publish(df, t, dsn=broker.dsn, rejects=dead)
    assert (done.events, done.rejected) == (1, 6)
    assert broker.received(t) == [3]
    query = f"select (source ->> 'n')::int, sqlstate, source from pgps_queue.{dead}_log order by 1"
    found = {n: (sqlstate, source) for n, sqlstate, source in rows(broker.admin, query)}
    assert {n: sqlstate for n, (sqlstate, _) in found.items()} == {
        1: "22021", 2: "22021", 4: "54001", 5: "22021", 7: "P0001", 8: "P0001",
    }  # fmt: skip
    assert found[1][1]["text"] == "a\\u0000\\u0000b"
    assert found[2][1]["text"] == "A\ufffd"
    assert found[8][1]["at"].startswith("11476-")


def test_a_host_that_cannot_be_a_name_is_wrong_in_the_connection_string() -> None:
    from pgps_spark import jdbc_options

    with pytest.raises(ConfigError, match="no host has such a name") as caught:
        jdbc_options("host=a..b dbname=x")
    assert caught.value.hint


def test_a_jdbc_write_is_as_secure_as_the_connection_string_says(broker: Broker) -> None:
    from pgps_spark import jdbc_options

    assert "sslmode" not in jdbc_options(broker.dsn)["url"]
    url = jdbc_options(f"{broker.dsn} sslmode=allow sslrootcert=/etc/ssl/a&b.pem")["url"]
    assert "&sslmode=allow&sslrootcert=/etc/ssl/a%26b.pem" in url
    with pytest.raises(ConfigError, match="require_auth=scram-sha-256"):
        jdbc_options(f"{broker.dsn} require_auth=scram-sha-256")


def test_a_stream_goes_on_behind_rows_that_are_no_events(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    t = broker.type("n integer not null check (n < 5)")
    dead = broker.type(REJECTS)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one.csv").write_text("n\n" + "\n".join(map(str, range(8))) + "\n")
    events = spark.readStream.schema("n int").option("header", "true").csv(f"{tmp_path}/files")
    writer = publish_stream(events, t, dsn=broker.dsn, rejects=dead)
    to_end(writer.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True))
    assert sorted(broker.received(t)) == [0, 1, 2, 3, 4]
    assert sorted(source["n"] for source in broker.received(dead, "source")) == [5, 6, 7]
    plain = broker.type("n integer not null")
    with pytest.raises(BadArgument, match="cannot take rejected rows"):
        publish_stream(events, t, dsn=broker.dsn, rejects=plain)


def test_a_broker_that_does_not_answer_or_let_one_in_is_told_before_work_starts(
    spark: SparkSession, broker: Broker
) -> None:
    t = broker.type()
    df = spark.range(1).selectExpr("cast(id as int) n")
    with pytest.raises(PgpsError, match="password authentication failed"):
        publish(df, t, dsn=broker.dsn.replace("password=test", "password=wrong"))
    with pytest.raises(ConnectionLost):
        publish(df, t, dsn="host=127.0.0.1 port=1 dbname=none")
    with pytest.raises(BadArgument, match="invalid via"):
        publish(df, t, dsn=broker.dsn, via="pigeon")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="belong together"):
        publish(df, t, dsn=broker.dsn, via="jdbc", job="x")
    assert quoted(t)
