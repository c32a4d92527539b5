"""Composite events in Spark: what the broker detects, in batches and in streams that are stopped and go on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pgps.errors import BadArgument, BrokerError, PgpsError, WrongState
from pgps_spark import detect, start
from pgps_spark.errors import unwrapped
from tests.acceptance.documents import ROOT, blocks_of
from tests.fix_broker import rows
from tests.spark.conftest import Broker
from tests.unit.composite.histories import CONTEXTS, detected, history
from tests.unit.composite.test_vectors import VECTORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BASE = datetime(2026, 3, 1, tzinfo=UTC)
QUOTES = "event_id long, symbol string, price double, at timestamp"


def at(seconds: float) -> datetime:
    return BASE + timedelta(seconds=seconds)


def test_vectors_are_detected_in_each_context(spark: SparkSession) -> None:
    """H1 to H6, seconds for their microseconds; each expression in one of the contexts."""
    parts, wanted = [], []
    for number, (expression, text, _) in enumerate(VECTORS):
        context = CONTEXTS[number % len(CONTEXTS)]
        events = [(event.type, event.position, at(event.time or 0)) for event in history(text)]
        frame = spark.createDataFrame(events, "event_type string, event_id long, at timestamp")
        found = detect(
            frame, expression.replace(" us'", " s'"), time="at", context=context, max_open=1000, until=at(99)
        )
        parts.append(found.selectExpr(f"{number} as vector", "unix_seconds(detected_at) as second"))
        shown = detected(expression, context, text, now=100, max_open=1000).split()
        wanted += [(number, int(one.split(":")[0])) for one in shown]
    rows_found = reduce(lambda one, other: one.union(other), parts).collect()
    assert sorted((row.vector, row.second - int(BASE.timestamp())) for row in rows_found) == sorted(wanted)


class Stream:
    """Events that come as files, and what is detected in them; each run goes on from the checkpoint."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.place = place
        for name in ("in", "news"):
            (place / name).mkdir()
        self.quotes = spark.readStream.schema(QUOTES).json(str(place / "in"))
        self.news = spark.readStream.schema(QUOTES).json(str(place / "news"))
        self.files = 0

    def put(self, *quotes: tuple[int, str, float, float], into: str = "in") -> None:
        self.files += 1
        lines = [
            json.dumps({"event_id": number, "symbol": symbol, "price": price, "at": at(second).isoformat()})
            for number, symbol, price, second in quotes
        ]
        (self.place / into / f"{self.files}.json").write_text("\n".join(lines))

    def run(self, found: DataFrame) -> Any:
        """Take what has come; return the query, which has ended."""
        writer = found.writeStream.format("json").option("path", str(self.place / "out"))
        query = start(writer.option("checkpointLocation", str(self.place / "state")).trigger(availableNow=True))
        query.awaitTermination()
        return query

    def found(self) -> list[Any]:
        files = (self.place / "out").glob("*.json")
        return sorted(
            (one["symbol"], [part["event_id"] for part in json.loads(one["constituents"]) if "event_id" in part])
            for file in files
            for one in map(json.loads, file.read_text().splitlines())
        )


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Also with what comes out of order within the lateness; a later event is dropped, and time alone is enough."""
    stream = Stream(spark, tmp_path)
    given: dict[str, Any] = {
        "time": "at", "partition_by": "symbol", "context": "chronicle", "max_open": 100, "lateness": "10 s",
        "filter": "b.price > 1.05 * a.price", "attributes": "symbol text = a.symbol, rise float8 = b.price - a.price",
    }  # fmt: skip
    rises = detect(stream.quotes, "quote(price > 1) a ; quote b", **given)
    stream.put((1, "A", 100, 0), (2, "B", 10, 1))
    stream.run(rises)
    # 4 comes after 3, and belongs before it; what is below the predicate begins nothing.
    stream.put((3, "A", 200, 8), (5, "B", 0.5, 3))
    stream.run(rises)
    stream.put((4, "A", 106, 4), (6, "B", 11, 20))
    stream.run(rises)
    assert stream.found() == [("A", [1, 4]), ("A", [4, 3])]
    # 20 less the lateness is the watermark. An event is a row for each leaf that it matches.
    stream.put((7, "A", 1000, 2))
    late = stream.run(rises)
    assert sum(part["numRowsDroppedByWatermark"] for one in late.recentProgress for part in one["stateOperators"]) == 2
    stream.put((8, "C", 1, 60))
    stream.run(rises)
    assert stream.found() == [("A", [1, 4]), ("A", [4, 3]), ("B", [2, 6])]
    batch = spark.read.schema(QUOTES).json(str(tmp_path / "in")).where("event_id <> 7")
    found = detect(batch, "quote(price > 1) a ; quote b", **given).collect()
    assert sorted((row.symbol, row.rise) for row in found) == [("A", 6.0), ("A", 94.0), ("B", 1.0)]
    stream.put((9, "A", 1, 61))
    other = detect(stream.quotes, "quote(price > 2) a ; quote b", **given)
    with pytest.raises(WrongState, match="another definition"), unwrapped():
        stream.run(other)


def test_absence_is_told_by_the_events_of_others(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    silent = detect(
        stream.quotes, "not(quote b)[quote a, + '5 s']", time="at", partition_by="symbol", lateness="1 s",
        attributes="symbol text = a.symbol",
    )  # fmt: skip
    stream.put((1, "A", 1, 0), (2, "B", 1, 2))
    stream.run(silent)
    stream.put((3, "B", 1, 6), (4, "C", 1, 8))
    stream.run(silent)
    assert stream.found() == [("A", [1])]


def test_the_slowest_of_several_streams_says_how_late_it_is(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    found = detect(
        {"quote": stream.quotes, "news": stream.news}, "quote a ; news b", time="at", partition_by="symbol",
        attributes="symbol text = a.symbol",
    )  # fmt: skip
    stream.put((1, "A", 1, 0), (2, "B", 1, 90))
    stream.put((3, "B", 1, 10), (4, "A", 1, 11), (9, "Z", 1, 12), into="news")
    stream.run(found)
    assert stream.found() == [("A", [1, 4])]
    # Though quotes have got to 90, news of 40 is in time, and so is a quote before it.
    stream.put((5, "C", 1, 30), (6, "C", 1, 100))
    stream.put((7, "C", 1, 40), (8, "B", 1, 95), (10, "Z", 1, 97), into="news")
    stream.run(found)
    assert stream.found() == [("A", [1, 4]), ("B", [2, 8]), ("C", [5, 7])]


def pairs(found: Iterable[Any]) -> list[tuple[Any, ...]]:
    return sorted(tuple(one) for one in found)


def test_the_broker_detects_the_same(spark: SparkSession, broker: Broker) -> None:
    quote, news = (broker.type("symbol text, price float8, n integer, at timestamptz") for _ in range(2))
    draw = random.Random(14)
    # The last ones, for each leaf one, let the watermark of the broker pass all others.
    last = [(news, "Z", 1, 0, 10_000), (quote, "Z", 1, 4, 10_000), (quote, "Z", 1, 0, 10_000)]
    given = [
        (draw.choice([quote, quote, news]), draw.choice("AB"), draw.randint(1, 9) / 2, draw.randint(0, 4), second)
        for second in draw.choices(range(200), k=60)
    ]
    for kind, *values, second in [*given, *last]:
        insert = f"insert into pgps_event.{kind} (symbol, price, n, at) values (%s, %s, %s, %s)"
        rows(broker.connection, insert, [*values, at(second)])
    broker.dispatch()
    for name in (quote, news):
        rows(broker.admin, f"select pgps.alter_event_type('{name}', time_attribute => 'at')")
    reader = spark.read.format("pgps").option("dsn", broker.dsn)
    frames = {name: reader.option("queue", f"{name}_in").load() for name in (quote, news)}
    for expression, *texts in (
        (f"{quote}(n > 1) a ; {news} b", "b.price / 2 > a.price - 1", "s text = a.symbol, q int = 10 / a.n"),
        (f"not({news}(n = 0))[{quote} a, {quote}(price > 2) b]", "a.n <> b.n", "s text = b.symbol, q int = b.n % 3"),
        (f"A*({quote}(n = 0) a, {news} c, {quote}(n = 4) b)", "count(c) > 1", "s text = b.symbol, q int = sum(c.n)"),
    ):
        for context in ("chronicle", "recent", "cumulative"):
            sets = ("count(a) > 1", "s text = 'all', q int = count(b) + sum(a.n)")
            condition, attributes = sets if context == "cumulative" else texts
            said = {"context": context, "partition_by": "symbol", "filter": condition, "attributes": attributes}
            query = (
                "select o ->> 's', (o ->> 'q')::int, o -> 'constituents' from pgps.try_composite_event(%s, %s, %s, "
                "filter => %s, attributes => %s, time_basis => 'event', lateness => '1 hour', max_open => 1000) o"
            )
            wanted = [
                (s, q, [part["event_id"] for part in parts])
                for s, q, parts in rows(broker.connection, query, [expression, *said.values()])
            ]
            arguments: dict[str, Any] = {"time": "at", "max_open": 1000, **said}
            found = [
                (row.s, row.q, [part["event_id"] for part in json.loads(row.constituents)])
                for row in detect(frames, expression, **arguments).collect()
            ]
            assert pairs(found) == pairs(wanted), f"{expression} in {context}"


def test_a_leaf_with_a_source_takes_events_of_its_type_only(spark: SparkSession) -> None:
    """Also when one stream has the events of all types."""
    events = spark.createDataFrame(
        [("news", 1, "north", at(0)), ("quote", 2, "south", at(1)), ("quote", 3, "north", at(2)),
         ("quote", 4, None, at(3)), ("news", 5, "south", at(4))],
        "event_type string, event_id long, origin string, at timestamp",
    )  # fmt: skip
    found = detect(events, "quote@north a ; news b", time="at", max_open=9, context="chronicle").collect()
    assert [[part["event_id"] for part in json.loads(row.constituents)] for row in found] == [[3, 5]]


def test_events_of_several_types_with_the_same_number_and_time_are_all_seen(spark: SparkSession) -> None:
    """As of files that number their events each for itself."""
    quotes = spark.createDataFrame([(1, "q1", at(0)), (2, "q2", at(9))], "event_id long, text string, at timestamp")
    news = spark.createDataFrame([(1, "n1", at(0)), (2, "n2", at(1))], "event_id long, text string, at timestamp")
    given: dict[str, Any] = {"time": "at", "max_open": 9, "context": "chronicle"}
    for expression, wanted in (
        ("news a", [["n1"], ["n2"]]),
        ("news a ; quote b", [["n1", "q1"], ["n2", "q2"]]),
        ("quote a ; news b", [["q1", "n2"]]),
        # A sequence in which the same event may be in two places.
        ("(quote a and news b) ; quote c", [["n1", "q1", "q2"]]),
        ("(quote a and news b) ; news c", [["n1", "q1", "n2"]]),
    ):
        found = detect({"quote": quotes, "news": news}, expression, **given).collect()
        shown = [[part["payload"]["text"] for part in json.loads(row.constituents)] for row in found]
        assert sorted(shown) == wanted, expression


def test_numbers_that_have_no_place_in_the_order_are_refused(spark: SparkSession) -> None:
    schema = "event_id long, batch long, n long, at timestamp"
    for order, (batch, n), sqlstate in (
        (("n",), (0, -1), "22003"),
        (("n",), (0, None), "22004"),
        (("batch", "n"), (0, 2**48), "22003"),
        (("batch", "n"), (2**48, 0), "22003"),
        (("batch", "n"), (-1, 0), "22003"),
    ):
        events = spark.createDataFrame([(7, batch, n, at(0))], schema)
        with pytest.raises(BadArgument, match="event of type quote") as caught, unwrapped():
            detect(events, "quote", time="at", order_by=order).collect()
        assert caught.value.sqlstate == sqlstate, order
    # Microseconds as a number, and one alone: it has room.
    events = spark.createDataFrame([(7, 0, 2**63 - 1, at(0)), (8, 0, 2**51, at(0))], schema)
    (found,) = detect(events, "quote a ; quote b", time="at", order_by=("n",)).collect()
    assert [part["event_id"] for part in json.loads(found.constituents)] == [8, 7]


def test_an_attribute_that_is_not_used_may_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    given: dict[str, Any] = {
        "time": "at",
        "context": "chronicle",
        "max_open": 9,
        "attributes": "symbol text = a.symbol",
    }

    def run(schema: str, filter_: str = "b.price > a.price") -> None:
        quotes = spark.readStream.schema(schema).json(str(tmp_path / "in"))
        with unwrapped():
            stream.run(detect(quotes, "quote a ; quote b", filter=filter_, **given))

    stream.put((1, "A", 1, 0), (2, "A", 0, 5))
    run(QUOTES)
    stream.put((3, "A", 2, 9), (4, "A", 0, 99))
    run(f"{QUOTES}, venue string")
    assert stream.found() == [("A", [1, 3])]
    stream.put((5, "A", 9, 999))
    with pytest.raises(WrongState, match="another definition"):
        run(QUOTES.replace("price double", "price decimal(20,2)"))


def test_the_manual_shows_what_is_found(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    program, shown = (b for b in blocks_of(ROOT / "docs" / "how-to" / "spark.md") if b.said == "spark")
    exec(compile(program.text, "spark.md", "exec"), {"spark": spark})
    assert shown.text.strip() in capsys.readouterr().out


def test_what_only_the_broker_can_do_is_refused(spark: SparkSession) -> None:
    quotes = spark.createDataFrame([], QUOTES)
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("quote a ; quote b", {"filter": "b.price > (select max(x) from t)"}, "0A000"),
        ("quote a ; quote b", {"attributes": "p float8 = f(a.price)"}, "0A000"),
        ("quote(symbol in (select s from t))", {}, "0A000"),
        ("quote@app a", {}, "0A000"),
        ("every('5 min')", {}, "0A000"),
        ("quote a ; quote b", {"attributes": "p xml = a.price"}, "0A000"),
        ("quote a ; news b", {}, "42704"),
        ("quote a ; quote a", {}, "42710"),
        ("quote a ;", {}, "42601"),
        ("quote a ; quote b", {"filter": "b.colour = 1"}, "42703"),
        ("quote a ; quote b", {"filter": "b.price"}, "42804"),
        ("quote(price)", {}, "42804"),
        ("quote a", {"attributes": "p int = a.symbol"}, "42804"),
        ("quote a ; quote b", {"partition_by": "colour"}, "42703"),
        ("quote a ; quote b", {"context": "chronicle"}, "22023"),
        ("quote a ; quote b", {"within": "1 month"}, "22023"),
        ("quote a ; quote b", {"lateness": "soon"}, "22023"),
        ("quote a ; commit", {}, "22023"),
        ("quote", {"time": "price"}, "22023"),
        ("quote", {"order_by": ["symbol"]}, "22023"),
    ]
    for expression, given, sqlstate in refused:
        with pytest.raises(BrokerError) as caught:
            detect(quotes, expression, **{"time": "at", **given})
        assert (caught.value.sqlstate, bool(caught.value.hint)) == (sqlstate, True), expression
    nameless = spark.createDataFrame([(1, "A", 1.0, None)], QUOTES)
    with pytest.raises(PgpsError, match="the time of an event of type quote is null"), unwrapped():
        detect(nameless, "quote", time="at").collect()
