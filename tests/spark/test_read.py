"""Reading: queues in batch, subscriptions as streams."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pgps.errors import ConfigError
from pgps_spark import publish, reading, sessions, stream
from pgps_spark.errors import told
from pgps_spark.queries import to_end
from pgps_spark.slices import Slice, cut, gathered, merged
from pgps_spark.source import PgpsDataSource
from pgps_spark.stream import SubscriptionReader
from tests.fix_broker import call, rows
from tests.fix_db import Connect
from tests.spark.conftest import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TYPES = (
    "b boolean, i2 smallint, i4 integer, i8 bigint, f4 real, f8 double precision, n numeric(12,3), big numeric, "
    "t text, u uuid, j jsonb, d date, ts timestamp, tz timestamptz, raw bytea, a integer[], ta text[]"
)


def _run(df: DataFrame, checkpoint: Path, column: str = "n") -> list[list[Any]]:
    """Run a stream over what waits now; return the column's values, batch by batch."""
    found: list[list[Any]] = []
    writer = df.writeStream.foreachBatch(lambda batch, _: found.append([row[column] for row in batch.collect()]))
    to_end(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True))
    return found


def test_every_type_comes_back_as_it_was_published(spark: SparkSession, broker: Broker) -> None:
    t = broker.type(TYPES, auditable=True)
    rows(
        broker.connection,
        f"""insert into pgps_event.{t} (b, i2, i4, i8, f4, f8, n, big, t, u, j, d, ts, tz, raw, a, ta) values
        (true, -2, 4, 8000000000, 1.5, 'NaN', 123456.789, 0.000000000000000001, E'line\n"quoted", ünï\\\\',
            gen_random_uuid(), '{{"k": [1]}}', '2024-02-29', '2024-02-29 01:02:03.000004', '2024-02-29 01:02:03.5+02',
            '\\x00ff', '{{1,null,3}}', '{{a,"b,c"}}'),
        (null, null, null, null, null, '-Infinity', null, null, '', null, null, null, null, null, null, null, null)""",
    )
    read = spark.read.format("pgps").option("dsn", broker.dsn).option("queue", f"{t}_in").load()
    first, second = read.orderBy("event_id").collect()
    assert (first.b, first.i2, first.i4, first.i8, first.f4) == (True, -2, 4, 8_000_000_000, 1.5)
    assert first.f8 != first.f8
    assert (first.n, first.big) == (Decimal("123456.789"), Decimal("0.000000000000000001"))
    assert (first.t, first.j, first.d) == ('line\n"quoted", ünï\\', '{"k": [1]}', dt.date(2024, 2, 29))
    assert first.ts == dt.datetime(2024, 2, 29, 1, 2, 3, 4)  # noqa: DTZ001 - it has none
    assert (bytes(first.raw), first.a, first.ta) == (b"\x00\xff", [1, None, 3], ["a", "b,c"])
    assert (second.t, second.u, second.f8) == ("", None, float("-inf"))
    names = [column.strip().split(" ")[0] for column in TYPES.split(", ")]
    done = publish(read.select(*names), t, dsn=broker.dsn)
    assert done.events == 2
    same = rows(broker.admin, f"select {', '.join(names)} from pgps_queue.{t}_in order by event_id")
    assert repr(sorted(map(repr, same[:2]))) == repr(sorted(map(repr, same[2:])))


def test_a_queue_is_read_in_partitions_with_filters_and_columns_pushed_down(
    spark: SparkSession, broker: Broker
) -> None:
    t = broker.type("n integer not null, text text, price numeric(8,2)", auditable=True)
    rows(
        broker.connection,
        f"insert into pgps_event.{t} (n, text, price) select g, 'T' || g % 10, g / 4.0 from generate_series(1, 3000) g",
    )
    broker.dispatch()
    reader = spark.read.format("pgps").option("dsn", broker.dsn).option("queue", f"{t}_in").option("partitions", "3")
    read = reader.option("columns", "n,text,price").load()
    assert read.columns == ["n", "text", "price"]
    assert read.rdd.getNumPartitions() == 3
    assert read.count() == 3000
    assert reader.option("where", "n < 5 or text = 'T7'").load().count() == 304
    with pytest.raises(Exception, match="nothing"):
        reader.option("where", "nothing = 1").load().count()
    for condition in (
        "n = 17", "n in (1, 2, 5000)", "n > 2990 and text <> 'T3'", "text like 'T1%'", "text like '%9'", "text >= 'T7'",
        "price = 2.5", "n is null", "not n = 4", "text = 'T4' or n = 1", "length(text) = 2 and n < 9", "text <=> 'T1'",
    ):  # fmt: skip
        wanted = rows(broker.admin, f"select count(*) from pgps_queue.{t}_in where {condition.replace('<=>', '=')}")
        # A DataFrame for each: it keeps what was pushed down.
        pushed = reader.option("where", "true").option("pushFilters", "true").load()
        assert [(pushed.where(condition).count(),)] == wanted, condition
    assert [read.where(condition).count() for condition in ("n = 17", "text = 'T4' or n = 1")] == [1, 301]
    plan = pushed.where("n = 17")._jdf.queryExecution().toString()
    assert "Filter (" not in plan.partition("Physical Plan")[2]
    with pytest.raises(Exception, match="is no queue") as caught:
        spark.read.format("pgps").option("dsn", broker.dsn).option("queue", t).load()
    assert told(caught.value) is not None
    with pytest.raises(Exception, match="no column nothing"):
        reader.option("columns", "n,nothing").load()
    with pytest.raises(Exception, match="unknown option quue"):
        spark.read.format("pgps").option("quue", t).load()


def test_filters_that_are_pushed_down_find_what_spark_finds(spark: SparkSession, broker: Broker) -> None:
    """Also where a schema reads a column as another type, and where values that Spark does not have are null."""
    t = broker.type("n integer, price numeric, small float8, exact numeric(8,2)", auditable=True)
    values = "(1, 0.1, 0.1, 0.1), (2, 'NaN', 5, 5), (3, 7, 7, 'NaN'), (4, null, null, null)"
    rows(broker.connection, f"insert into pgps_event.{t} (n, price, small, exact) values {values}")
    broker.dispatch()
    reader = spark.read.format("pgps").option("dsn", broker.dsn).option("queue", f"{t}_in").option("mode", "permissive")
    own = "n int, price double, small float, exact decimal(10,4), _corrupt_record string"
    natural = "n int, price decimal(38,18), small double, exact decimal(8,2), _corrupt_record string"
    for schema in (own, natural):
        for condition in ("price = 0.1", "small = 0.1f", "small = 0.1", "price > 5", "exact > 4", "price is null",
                          "exact is null", "small > 4", "n > 1 and n < 4", "price is not null"):  # fmt: skip
            counts = [
                reader.schema(schema).option("pushFilters", str(pushes).lower()).load().where(condition).count()
                for pushes in (True, False)
            ]
            assert counts[0] == counts[1], f"{condition} of {schema}"
    pushed = reader.schema(natural).option("pushFilters", "true").load().where("n = 3")
    assert "Filter (" not in pushed._jdf.queryExecution().toString().partition("Physical Plan")[2]


def test_a_stream_goes_on_where_it_stood_and_acknowledges(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    t = broker.type()
    s = broker.subscribe(t, filter="n % 2 = 0")
    insert = f"insert into pgps_event.{t} (n, text) select g, 'x' from generate_series(%s::int, %s) g"
    rows(broker.connection, insert, [0, 9999])
    broker.dispatch()
    found = _run(broker.stream(spark, s, maxEventsPerTrigger="3000"), tmp_path)
    assert [len(batch) for batch in found] == [3000, 2000]
    assert sorted(chain.from_iterable(found)) == list(range(0, 10_000, 2))
    assert broker.depth(s) == 0
    rows(broker.connection, insert, [10_000, 10_009])
    broker.dispatch()
    assert [sorted(batch) for batch in _run(broker.stream(spark, s), tmp_path)] == [
        [10_000, 10_002, 10_004, 10_006, 10_008]
    ]
    rows(broker.connection, insert, [20_000, 20_001])
    broker.dispatch()
    call(broker.connection, "pause", s)
    assert _run(broker.stream(spark, s), tmp_path) == []
    call(broker.connection, "resume", s)
    columns = broker.stream(spark, s, columns="n,event_id,batch_id,event_type,published_at,publisher,payload")
    batch: list[Any] = []
    query = columns.writeStream.foreachBatch(lambda df, _: batch.extend(df.collect()))
    to_end(query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True))
    (row,) = batch
    assert (row.n, row.event_type, row.publisher, row.payload) == (20_000, t, broker.role, '{"n": 20000, "text": "x"}')


def test_streams_that_cannot_be_read_say_why(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    t = broker.type()
    first, second, dropped = broker.subscribe(t), broker.subscribe(t), broker.subscribe(t)
    rows(broker.connection, f"insert into pgps_event.{t} (n) values (1)")
    broker.dispatch()
    reading = broker.stream(spark, first).writeStream.format("noop")
    reading = reading.option("checkpointLocation", str(tmp_path / "1"))
    query = reading.start()
    while not query.recentProgress:
        if query.exception() is not None:
            query = reading.start()  # its process was not there in time
    with pytest.raises(Exception, match="read as a stream already"):
        _run(broker.stream(spark, first, patience="0"), tmp_path / "2")
    query.stop()
    with pytest.raises(Exception, match="the checkpoint is of subscription"):
        _run(broker.stream(spark, second), tmp_path / "1")
    gone = broker.stream(spark, dropped)
    call(broker.connection, "unsubscribe", dropped)
    with pytest.raises(Exception, match="does not exist"):
        _run(gone, tmp_path / "3")
    with pytest.raises(Exception, match="does not exist"):
        broker.stream(spark, "nobody")
    assert _run(broker.stream(spark, second), tmp_path / "4") == [[1]]
    rows(broker.connection, f"insert into pgps_event.{t} (n) values (2), (3)")
    broker.dispatch()
    rows(broker.connection, "select * from pgps.receive(%s)", [second])
    call(broker.connection, "ack", second)
    with pytest.raises(Exception, match="Another consumer reads it too"):
        _run(broker.stream(spark, second), tmp_path / "4")


def test_a_pattern_is_read_as_json(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    t = broker.type()
    other = f"{t}_more"
    call(broker.admin, "create_event_type", other, "word text")
    rows(broker.admin, f"grant insert, select on pgps_event.{other} to {broker.role}")
    call(broker.connection, "advertise", other)
    s = broker.subscribe(f"{t}*")
    rows(broker.connection, f"insert into pgps_event.{t} (n) values (1)")
    rows(broker.connection, f"insert into pgps_event.{other} values ('hello')")
    broker.dispatch()
    try:
        found = _run(broker.stream(spark, s), tmp_path, "payload")
    finally:
        call(broker.connection, "unsubscribe", s)
        call(broker.admin, "drop_event_type", other, cascade=True)
    assert sorted(chain.from_iterable(found)) == ['{"n": 1, "text": null}', '{"word": "hello"}']


def test_the_events_of_a_pattern_are_in_the_order_of_delivery(broker: Broker) -> None:
    """Though they come by type, and a batch has many of each."""
    one = broker.type()
    two = f"{one}_more"
    call(broker.admin, "create_event_type", two, "n integer")
    rows(broker.admin, f"grant insert, select on pgps_event.{two} to {broker.role}")
    call(broker.connection, "advertise", two)
    s = broker.subscribe(f"{one}*")
    for _ in range(2):
        with broker.connection.transaction():
            for n in range(6):
                rows(broker.connection, f"insert into pgps_event.{(one, two)[n % 2]} (n) values ({n})")
        broker.dispatch()
    source = PgpsDataSource({"dsn": broker.dsn, "subscription": s, "columns": "batch_id,event_id,event_type"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, SubscriptionReader)
    try:
        begin = reader.initialOffset()
        (part,) = reader.partitions(begin, reader.latestOffset(begin, ReadAllAvailable()))
        found = [tuple(row.values()) for batch in reader.read(part) for row in batch.to_pylist()]
    finally:
        reader.stop()
        call(broker.connection, "unsubscribe", s)
        call(broker.admin, "drop_event_type", two, cascade=True)
    assert found == sorted(found)
    assert [event_type for _, _, event_type in found] == [one, two] * 6


@pytest.mark.parametrize("policy", [False, True])
def test_an_event_comes_with_the_time_and_publisher_of_its_statement(
    broker: Broker, connect: Connect, *, policy: bool
) -> None:
    t = broker.type()
    s = broker.subscribe(t)
    if policy:
        call(broker.admin, "create_policy", t, broker.make("policy"), broker.role, "n > 2")
    insert = f"insert into pgps_event.{t} (n) select g from generate_series(%s::int, %s) g"
    one, two = connect(broker.role, autocommit=False), connect(autocommit=False)
    call(two, "advertise", t)
    # Two transactions that take turns.
    for turn in range(0, 40, 4):
        rows(one, insert, [turn, turn + 1])
        rows(two, insert, [turn + 2, turn + 3])
    one.commit()
    two.commit()
    broker.dispatch()
    source = PgpsDataSource({"dsn": broker.dsn, "subscription": s, "columns": "n,publisher,published_at,origin"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, SubscriptionReader)
    try:
        begin = reader.initialOffset()
        (part,) = reader.partitions(begin, reader.latestOffset(begin, ReadAllAvailable()))
        found = [tuple(row.values()) for batch in reader.read(part) for row in batch.to_pylist()]
    finally:
        reader.stop()
    known = f"select n, publisher::text, published_at, origin from pgps_queue.{t}_log where n > %s order by event_id"
    assert len(found) == (37 if policy else 40)
    assert found == rows(broker.admin, known, [2 if policy else -1])
    assert {row[1] for row in found} == {broker.role, two.info.user}


def test_small_batches_are_read_at_once_in_the_order_of_delivery(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = broker.type()
    s = broker.subscribe(t)
    insert = f"insert into pgps_event.{t} (n) values (%s)"
    late = connect(broker.role, autocommit=False)
    rows(late, insert, [9])
    for n in range(4):
        rows(broker.connection, insert, [n])
        broker.dispatch()
    late.commit()
    broker.dispatch()
    # Each session waits for the end of the one before.
    given = {"dsn": broker.dsn, "subscription": s, "columns": "n,batch_id,published_at", "patience": "60"}
    source = PgpsDataSource(given)
    found: list[list[tuple[Any, ...]]] = []
    for few, few_bytes, bytes_at_once in ((10, 9999, 9999), (4, 9999, 9999), (10, 1, 9999), (10, 1, 1)):
        monkeypatch.setattr(stream, "_FEW", few)
        monkeypatch.setattr(stream, "_FEW_BYTES", few_bytes)
        monkeypatch.setattr(reading, "_MOST_BYTES", bytes_at_once)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, SubscriptionReader)
        try:
            begin = reader.initialOffset()
            (part,) = reader.partitions(begin, reader.latestOffset(begin, ReadAllAvailable()))
            assert isinstance(part, stream.Events) == (few == 10 and few_bytes > 1)
            read = list(reader.read(part))
            assert len(read) == (5 if bytes_at_once == 1 else 1)
            found.append([tuple(row.values()) for batch in read for row in batch.to_pylist()])
        finally:
            reader.stop()
    known = f"select n, published_at from pgps_queue.{t}_log order by n"
    assert [(n, at) for n, _, at in found[0]] == rows(broker.admin, known)
    batches = [batch for _, batch, _ in found[0]]
    assert batches == sorted({*batches})
    assert found[1:] == found[:1] * 3


def test_slices_are_cut_into_equal_parts_in_order() -> None:
    slices = [
        Slice(1, "t", [(0, 3000), (5000, 6000)]),
        Slice(2, "t", [(7000, 11_000)]),
        Slice(2, "u", [(11_000, 11_001)]),
    ]
    parts = cut(slices, 2)
    assert [sum(each.events for each in part) for part in parts] == [4001, 4000]
    assert [number for part in parts for each in part for a, b in each.ranges for number in range(a, b)] == [
        *range(3000), *range(5000, 6000), *range(7000, 11_001)
    ]  # fmt: skip
    assert cut([], 3) == []


def test_small_slices_of_a_type_are_put_together() -> None:
    slices = [
        Slice(0, "t", [(1, 2)]),
        Slice(1, "t", [(4, 6)]),
        Slice(1, "u", [(6, 7)]),
        Slice(2, "t", [(2, 3), (7, 8)]),
    ]
    slices += [Slice(3, "t", [(3, 4)]), Slice(4, "t", [(100, 2200)])]
    assert list(gathered(slices)) == [slices[:5], slices[5:]]
    again, plain, other = merged(slices[:5])
    assert (again.whole, again.numbers) == (slices[0], [0])
    assert (plain.whole.ranges, plain.starts, plain.numbers) == ([(2, 6), (7, 8)], [2, 3, 4, 7], [3, 4, 1, 3])
    assert (other.whole, other.numbers) == (slices[2], [2])


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="no Java found"):
        sessions.require_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(ConfigError, match="Java 11 is too old"):
        sessions.require_java()
    monkeypatch.setenv("PGPS_JDBC_JAR", str(tmp_path / "none.jar"))
    with pytest.raises(ConfigError, match="no JDBC driver"):
        sessions.driver_jar()
