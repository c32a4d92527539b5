"""Values that one of the two worlds has no word for: nothing is read or written as another value in silence."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pgps.errors import BadArgument, PgpsError
from pgps_spark import detect, publish
from pgps_spark.errors import told, unwrapped
from pgps_spark.queries import to_end
from tests.fix_broker import rows
from tests.spark.conftest import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TYPES = "n integer, x numeric, p numeric(6,2), d date, ts timestamp, tz timestamptz, a integer[], f float8[]"
# Attribute, value, and the type that has no such value.
UNFIT = [
    ("x", "1e30", "decimal(38,18)"),
    ("x", "1/3.0", "decimal(38,18)"),
    ("x", "'NaN'", "decimal(38,18)"),
    ("x", "'-Infinity'", "decimal(38,18)"),
    ("p", "'NaN'", "decimal(6,2)"),
    ("d", "'infinity'", "date"),
    ("d", "'10000-01-01'", "date"),
    ("d", "'0044-03-15 BC'", "date"),
    ("ts", "'-infinity'", "timestamp_ntz"),
    ("tz", "'10000-01-01'", "timestamp"),
    ("a", "'{{1,2},{3,4}}'", "array<int>"),
]
FIT = (
    "(n, x, p, d, ts, tz, a, f) values (0, 99999999999999999999.000000000000000001, -9999.99, '9999-12-31',"
    " '9999-12-31 12:00', '0001-01-03', '{}', '{NaN,Infinity,1.5,null}')"
)


def _insert(broker: Broker, event_type: str) -> None:
    """Publish what fits as n = 0, then what does not as 1, 2, …, then an event of nulls."""
    rows(broker.connection, f"insert into pgps_event.{event_type} {FIT}")
    for number, (attribute, value, _) in enumerate(UNFIT, 1):
        rows(broker.connection, f"insert into pgps_event.{event_type} (n, {attribute}) values ({number}, {value})")
    rows(broker.connection, f"insert into pgps_event.{event_type} (n) values ({len(UNFIT) + 1})")


def _queue(spark: SparkSession, broker: Broker, event_type: str, **options: str) -> DataFrame:
    reader = spark.read.format("pgps").option("dsn", broker.dsn).option("queue", f"{event_type}_in")
    return reader.options(**options).load()


def _run(df: DataFrame, checkpoint: Path) -> list[Any]:
    found: list[Any] = []
    writer = df.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    to_end(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True))
    return found


def test_what_fits_is_exact_at_its_limits(spark: SparkSession, broker: Broker) -> None:
    t = broker.type(TYPES, auditable=True)
    rows(broker.connection, f"insert into pgps_event.{t} {FIT}")
    (row,) = _queue(spark, broker, t).collect()
    assert (row.x, row.p) == (Decimal("99999999999999999999.000000000000000001"), Decimal("-9999.99"))
    assert (row.d, row.ts) == (dt.date(9999, 12, 31), dt.datetime(9999, 12, 31, 12))  # noqa: DTZ001 - it has none
    assert (row.a, repr(row.f)) == ([], "[nan, inf, 1.5, None]")


def test_a_queue_read_fails_at_a_misfit_and_says_which(spark: SparkSession, broker: Broker) -> None:
    for attribute, value, kind in UNFIT:
        t = broker.type(TYPES, auditable=True)
        rows(broker.connection, f"insert into pgps_event.{t} ({attribute}) values ({value})")
        with pytest.raises(PgpsError, match=rf"event \d+: {attribute} .* is no ") as caught, unwrapped():
            _queue(spark, broker, t).collect()
        assert caught.value.message.endswith(f" is no {kind}")
        assert "mode" in str(caught.value.hint)


def test_the_modes_of_a_queue_read(spark: SparkSession, broker: Broker) -> None:
    t = broker.type(TYPES, auditable=True)
    _insert(broker, t)
    last = len(UNFIT) + 1
    dropped = _queue(spark, broker, t, mode="DROPMALFORMED")
    assert sorted(row.n for row in dropped.collect()) == [0, last]
    permissive = {row.n: row for row in _queue(spark, broker, t, mode="permissive").collect()}
    assert sorted(permissive) == list(range(last + 1))
    assert [permissive[n]._corrupt_record for n in (0, last)] == [None, None]
    for number, (attribute, _, _) in enumerate(UNFIT, 1):
        row = permissive[number]
        assert row[attribute] is None
        assert f'"{attribute}": ' in row._corrupt_record
    with pytest.raises(Exception, match="mode") as caught:
        _queue(spark, broker, t, mode="deadletter")
    error = told(caught.value)
    assert error is not None
    assert error.message == 'invalid mode "deadletter"'


def test_a_type_that_was_asked_for_and_is_too_narrow_is_a_misfit_too(spark: SparkSession, broker: Broker) -> None:
    t = broker.type("n bigint, text text", auditable=True)
    rows(broker.connection, f"insert into pgps_event.{t} select 3000000000 * (g % 2), g from generate_series(1, 500) g")
    reader = spark.read.format("pgps").option("dsn", broker.dsn).option("queue", f"{t}_in").option("mode", "permissive")
    found = reader.schema("n int, text string, _corrupt_record string").load().collect()
    assert len(found) == 500
    assert all((row.n, row._corrupt_record) == (0, None) for row in found if int(row.text) % 2 == 0)
    odd = [row for row in found if int(row.text) % 2]
    assert {(row.n, row._corrupt_record) for row in odd} == {(None, '{"n": "3000000000"}')}


def test_a_stream_puts_misfits_into_the_exception_queue_and_goes_on(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    t = broker.type(TYPES)
    s = broker.subscribe(t)
    _insert(broker, t)
    broker.dispatch()
    found = _run(broker.stream(spark, s), tmp_path / "checkpoint")
    assert [row.n for row in found] == [0, len(UNFIT) + 1]
    query = f"select n, sqlstate, error, state from pgps_queue.{t}_exception where subscription = %s order by n"
    failed = rows(broker.connection, query, [s])
    assert [(n, state, kind) for n, _, kind, state in failed] == [
        (n, "failed", failed[n - 1][2]) for n in range(1, len(UNFIT) + 1)
    ]
    assert all(error.endswith(f" is no {kind}") for (_, _, error, _), (_, _, kind) in zip(failed, UNFIT, strict=True))
    assert {sqlstate for _, sqlstate, _, _ in failed} == {"22000"}
    assert broker.depth(s) == 0
    # Put back, they are looked at again, and fail again; as text they can be read.
    retried = rows(broker.connection, "select pgps.retry_exception(%s, subscription => %s)", [t, s])
    assert retried == [(len(UNFIT),)]
    assert _run(broker.stream(spark, s), tmp_path / "checkpoint") == []
    assert len(rows(broker.connection, query, [s])) == len(UNFIT)
    rows(broker.connection, "select pgps.retry_exception(%s, subscription => %s)", [t, s])
    as_text = "n int, x string, p string, d string, ts string, tz string, a string, event_id bigint"
    again = _run(broker.stream(spark, s, as_text), tmp_path / "checkpoint")
    assert sorted(row.n for row in again) == list(range(1, len(UNFIT) + 1))
    assert {row.n: row.x for row in again}[1] == "1000000000000000000000000000000"
    assert rows(broker.connection, query, [s]) == []


def test_a_stream_fails_by_choice(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    t = broker.type(TYPES)
    s = broker.subscribe(t)
    _insert(broker, t)
    broker.dispatch()
    with pytest.raises(PgpsError, match=r"x 1000000.* is no decimal\(38,18\)"), unwrapped():
        _run(broker.stream(spark, s, mode="failfast"), tmp_path / "checkpoint")
    assert rows(broker.connection, f"select event_id from pgps_queue.{t}_exception") == []


def test_json_is_what_the_value_was(spark: SparkSession, broker: Broker) -> None:
    t = broker.type("n integer, j jsonb, js jsonb[]", auditable=True)
    values = spark.sql(
        """
        select 1 as n, to_json(array()) as j_, array() as a, named_struct('m', map('k', 1.50BD, 'l', null),
            'd', date'2024-02-29', 'e', array(named_struct('b', true))) as s,
            array(named_struct('x', 'q"uoted\\\\'), named_struct('x', null)) as js
        """
    )
    publish(values.selectExpr("n", "cast(a as array<int>) as j"), t, dsn=broker.dsn)
    publish(values.selectExpr("n", "s as j", "js"), t, dsn=broker.dsn)
    publish(values.selectExpr("n", "map(7, array(1, null)) as j"), t, dsn=broker.dsn)
    found = rows(broker.admin, f"select j::text, js::text from pgps_queue.{t}_in order by event_id")
    assert [j for j, _ in found] == [
        "[]",
        '{"d": "2024-02-29", "e": [{"b": true}], "m": {"k": 1.50, "l": null}}',
        '{"7": [1, null]}',
    ]
    assert rows(broker.admin, f"select js[1] ->> 'x', js[2] -> 'x' from pgps_queue.{t}_in where js is not null") == [
        ('q"uoted\\', None)
    ]
    with pytest.raises(PgpsError, match="JSON has no value nan"):
        publish(spark.sql("select 1 as n, array(double('NaN')) as j"), t, dsn=broker.dsn)
    assert len(rows(broker.admin, f"select n from pgps_queue.{t}_in")) == 3


def test_a_permanent_table_is_read_and_keeps_no_password(
    spark: SparkSession, broker: Broker, tmp_path: Path, name: Any
) -> None:
    t = broker.type("n integer, text text", auditable=True)
    rows(broker.connection, f"insert into pgps_event.{t} (n) values (1), (2)")
    info = broker.connection.info
    place = f"127.0.0.1:{info.port}/{info.dbname}"
    table = name("queue")
    with pytest.raises(PgpsError, match="has a password in it"), unwrapped():
        spark.sql(
            f"create table {table} using pgps options (dsn 'postgresql://{broker.role}:test@{place}', queue '{t}_in')"
        )
    passfile = tmp_path / "passfile"
    passfile.write_text("*:*:*:*:test\n")
    passfile.chmod(0o600)
    dsn = f"postgresql://{broker.role}@{place}?passfile={passfile}"
    spark.sql(f"create table {table} using pgps options (dsn '{dsn}', queue '{t}_in', where 'n > 1')")
    try:
        assert [tuple(row) for row in spark.sql(f"select n, text from {table}").collect()] == [(2, None)]
    finally:
        spark.sql(f"drop table {table}")


def test_no_plan_shows_the_password_of_a_connection_string(
    spark: SparkSession, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    t = broker.type("n integer", auditable=True)
    info = broker.connection.info
    uri = f"postgresql://{broker.role}:test@127.0.0.1:{info.port}/{info.dbname}"
    spark.read.format("pgps").option("dsn", uri).option("queue", f"{t}_in").load().explain(extended=True)
    view = f"{t}_view"
    spark.sql(f"create temporary view {view} using pgps options (dsn '{uri}', queue '{t}_in')")
    spark.sql(f"explain extended select * from {view}").show(truncate=False)
    spark.sql(f"explain extended create temporary view other using pgps options (dsn '{uri}')").show(truncate=False)
    assert ":test@" not in capsys.readouterr().out


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, in a zone whose time was of its own place until 1893: 53 minutes and 28 seconds before UTC."""
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", zone)


def test_times_and_intervals_are_published_as_they_are(berlin: SparkSession, broker: Broker) -> None:
    t = broker.type("n integer, at timestamptz, many timestamptz[], doc jsonb, d interval, ms timestamptz(3)")
    df = berlin.sql(
        "select *, array(at) many, named_struct('at', at) doc, at ms from values"
        " (1, timestamp'1890-01-01 00:00:00Z', interval '-1 02:00:00.000001' day to second),"
        " (2, timestamp'2024-02-29 12:00:00.123456Z', null) _ (n, at, d)"
    )
    publish(df, t, dsn=broker.dsn)
    broker.dispatch()
    query = (
        "select extract(epoch from at)::numeric, extract(epoch from many[1])::numeric,"
        " (doc ->> 'at')::timestamptz = at, extract(epoch from d)::numeric, extract(epoch from ms)::numeric"
        f" from pgps_queue.{t}_log order by n"
    )
    old = Decimal("-2524521600.000000")
    new = Decimal("1709208000.123456")
    assert rows(broker.admin, query) == [
        (old, old, True, Decimal("-93600.000001"), old), (new, new, True, None, Decimal("1709208000.123000")),
    ]  # fmt: skip
    for wrong, said in (
        ("timestamp_ntz'2024-01-01 00:00:00' ms", '"ms" is timestamp_ntz'),
        ("interval '1' year d", '"d" is interval year'),
        ("interval '1' day n", '"n" is interval day'),
    ):
        with pytest.raises(BadArgument, match="does not fit") as caught:
            publish(berlin.sql(f"select {wrong}"), t, dsn=broker.dsn)
        assert said in caught.value.message


def test_a_time_with_seconds_in_its_offset_is_detected_as_it_is(berlin: SparkSession) -> None:
    quotes = berlin.sql("select 1L event_id, timestamp'2024-01-01 00:00:00Z' at, timestamp'1890-01-01 00:00:00Z' since")
    (found,) = detect(quotes, "quote a", time="at", attributes="since timestamptz = a.since").collect()
    assert found.since.timestamp() == -2524521600


def test_attributes_named_as_what_a_stream_adds_are_read_beside_it(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    t = broker.type("event_type text, batch_id integer, attribute_batch_id text")
    s = broker.subscribe(t)
    rows(broker.connection, f"insert into pgps_event.{t} values ('theirs', 7, 'x')")
    broker.dispatch()
    (row,) = _run(broker.stream(spark, s), tmp_path / "a")
    assert (row.attribute_event_type, row.attribute_batch_id_, row.attribute_batch_id) == ("theirs", 7, "x")
    assert row.batch_id > 0
    rows(broker.connection, f"insert into pgps_event.{t} values ('theirs', 8, 'x')")
    broker.dispatch()
    named = "event_type,attribute_event_type,batch_id,attribute_batch_id_"
    (row,) = _run(broker.stream(spark, s, columns=named), tmp_path / "b")
    assert (row.event_type, row.attribute_event_type, row.attribute_batch_id_) == (t, "theirs", 8)


def test_an_event_whose_id_is_read_too_narrow_is_put_aside(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    t = broker.type("n integer")
    s = broker.subscribe(t)
    rows(broker.admin, "select setval('pgps_internal.event_id_seq', last_value + 200) from pgps_internal.event_id_seq")
    rows(broker.connection, f"insert into pgps_event.{t} values (1), (2)")
    broker.dispatch()
    reader = spark.readStream.format("pgps").option("dsn", broker.dsn).option("subscription", s)
    assert _run(reader.schema("event_id tinyint, n int, publisher string").load(), tmp_path / "checkpoint") == []
    query = f"select n, error from pgps_queue.{t}_exception where subscription = %s order by n"
    failed = rows(broker.connection, query, [s])
    assert [n for n, _ in failed] == [1, 2]
    assert all(error.endswith(" is no tinyint") for _, error in failed)
