"""The pipeline on real data, against the same computed in plain Python; and its configuration."""

from __future__ import annotations

import csv
import datetime as dt
import math
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pgps.demo.data import Data, Quote
from pgps.errors import ConfigError, PgpsError
from pgps_spark.pipeline import config
from pgps_spark.pipeline.window import SlidingWindow
from tests.fix_broker import call, rows
from tests.spark.conftest import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTRIBUTES = "symbol text not null, day date not null, close numeric not null check (close > 0), volume bigint not null"
FINDING = "subject text, at timestamptz, value float8, score float8, events integer"
STATISTICS = (
    "subject text, at timestamptz, events integer, mean float8, deviation float8, lowest float8, highest float8"
)
DAYS = 30
SLIDE = 7


@pytest.fixture(scope="module")
def quotes() -> list[Quote]:
    """Two companies' daily quotes, in order of time."""
    return sorted((q for q in Data.load().quotes if q.symbol in {"IBM", "AAPL"}), key=lambda q: (q.day, q.symbol))


def _write(path: Path, quotes: list[Quote], *more: list[str]) -> None:
    with path.open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(["Ticker", "Date", "Close", "Volume"])
        writer.writerows([q.symbol, q.day.isoformat(), str(q.close), str(q.volume)] for q in quotes)
        writer.writerows(more)


def _moment(day: dt.date) -> float:
    return dt.datetime.combine(day, dt.time(), dt.UTC).timestamp()


def _expected_findings(quotes: list[Quote]) -> list[tuple[str, dt.date, float]]:
    """Return symbol, day and score of what is more than 4 deviations from the mean of the 30 days before."""
    found = []
    by_symbol: dict[str, list[Quote]] = defaultdict(list)
    for quote in quotes:
        earlier = by_symbol[quote.symbol]
        window = [float(q.close) for q in earlier if 0 < (quote.day - q.day).days <= DAYS]
        earlier.append(quote)
        if len(window) >= 10 and (deviation := statistics.stdev(window)) > 0:
            score = (float(quote.close) - statistics.fmean(window)) / deviation
            if abs(score) > 4:
                found.append((quote.symbol, quote.day, score))
    return found


def _expected_weeks(quotes: list[Quote]) -> dict[tuple[str, float], tuple[int, float]]:
    """Return events and mean of the 30 days before each week's end that a quote follows."""
    found = {}
    by_symbol: dict[str, list[Quote]] = defaultdict(list)
    for quote in quotes:
        earlier = by_symbol[quote.symbol]
        end = math.floor(_moment(quote.day) / (SLIDE * 86_400)) * SLIDE * 86_400
        if earlier and end > math.floor(_moment(earlier[-1].day) / (SLIDE * 86_400)) * SLIDE * 86_400:
            window = [float(q.close) for q in earlier if end - DAYS * 86_400 <= _moment(q.day) < end]
            if len(window) >= 2:
                found[quote.symbol, float(end)] = (len(window), statistics.fmean(window))
        earlier.append(quote)
    return found


def test_the_pipeline_does_what_plain_python_does(
    spark: SparkSession, broker: Broker, quotes: list[Quote], tmp_path: Path
) -> None:
    from pgps_spark.pipeline.run import run_job

    t, finding, weekly = broker.type(ATTRIBUTES, auditable=True), broker.type(FINDING), broker.type(STATISTICS)
    watched, kept, everything = broker.subscribe(t), broker.subscribe(t), f"all_{t}"
    some = broker.subscribe(t, filter="symbol = 'IBM' and close > 100", max_attempts=1)
    files = tmp_path / "files"
    files.mkdir()
    cut = len(quotes) // 2
    bad = [["IBM", "2013-02-31", "1", "1"], ["IBM", "2013-03-01", "-5", "1"], ["", "2013-03-01", "5", "many"]]
    (tmp_path / "pipeline.toml").write_text(
        f"""
        [pipeline]
        dsn = "{broker.dsn}"
        directory = "{tmp_path}/state"
        [jobs.quotes]
        kind = "ingest"
        event_type = "{t}"
        source = "{files}"
        max_rejects = 5
        [jobs.quotes.columns]
        symbol = "Ticker"
        day = "Date"
        close = "Close"
        volume = "Volume"
        [jobs.watch]
        kind = "analyse"
        subscription = "{watched}"
        key = "symbol"
        value = "close"
        time = "day"
        window = "{DAYS} days"
        findings = "{finding}"
        statistics = "{weekly}"
        slide = "{SLIDE} days"
        [jobs.keep]
        kind = "archive"
        event_type = "{t}"
        subscription = "{kept}"
        directory = "{tmp_path}/archive"
        max_events = 2500
        [jobs.report]
        kind = "report"
        directory = "{tmp_path}/archive"
        output = "{tmp_path}/report"
        """
    )
    jobs = config.load(tmp_path / "pipeline.toml").jobs
    for part, more in ((quotes[:cut], bad), (quotes[cut:], [])):
        _write(files / f"{part[0].day}.csv", part, *more)
        run_job(spark, jobs["quotes"])
        broker.dispatch()
        run_job(spark, jobs["watch"])
        run_job(spark, jobs["keep"])

    # Ingested: each file once, and what is no event is told with its reason.
    assert Counter(rows(broker.admin, f"select symbol, day, close, volume from pgps_queue.{t}_in")) == Counter(
        (q.symbol, q.day, q.close, q.volume) for q in quotes
    )
    reasons = sorted(row.reason for row in spark.read.parquet(f"{tmp_path}/state/rejects/quotes").collect())
    assert [reason.partition(":")[0].partition(" violates")[0] for reason in reasons] == [
        "day", f'new row for relation "{reasons[1].split(chr(34))[1]}"', "symbol is missing; volume",
    ]  # fmt: skip

    # Analysed, and the findings published.
    broker.dispatch()
    found = rows(broker.admin, f"select subject, at, score from pgps_queue.{finding}_log order by event_id")
    expected = _expected_findings(quotes)
    assert expected
    assert sorted((s, at.date()) for s, at, _ in found) == sorted((s, day) for s, day, _ in expected)
    scores = {(s, at.date()): score for s, at, score in found}
    assert all(math.isclose(scores[s, day], score, rel_tol=1e-9) for s, day, score in expected)
    weeks = rows(
        broker.admin, f"select subject, extract(epoch from at)::float8, events, mean from pgps_queue.{weekly}_log"
    )
    wanted = _expected_weeks(quotes)
    assert {(s, at): events for s, at, events, _ in weeks} == {key: events for key, (events, _) in wanted.items()}
    assert all(math.isclose(mean, wanted[s, at][1], rel_tol=1e-9) for s, at, _, mean in weeks)

    # Deliver some and fail one, so that there is something to tell of.
    failed = rows(broker.connection, "select event_id from pgps.receive(%s, 100)", [some])[0][0]
    call(broker.connection, "nack", some, failed, "no such account")
    call(broker.connection, "ack", some)
    run_job(spark, jobs["keep"])
    archived = spark.read.parquet(f"{tmp_path}/archive/{t}/in")
    assert archived.count() == archived.select("event_id").distinct().count() == len(quotes)
    assert Counter(tuple(row) for row in archived.select("symbol", "day", "close", "volume").collect()) == Counter(
        (q.symbol, q.day, q.close, q.volume) for q in quotes
    )
    assert len(list((tmp_path / "archive" / t / "in").glob("date=*/batch=*"))) == 1
    out = spark.read.parquet(f"{tmp_path}/archive/{t}/out")
    dear = sum(q.symbol == "IBM" and q.close > 100 for q in quotes)
    assert out.count() == out.select("event_id", "subscription").distinct().count()
    assert {row["subscription"]: row["count"] for row in out.groupBy("subscription").count().collect()} == {
        watched: len(quotes), kept: len(quotes), everything: len(quotes), some: dear,
    }  # fmt: skip

    # Reported.
    run_job(spark, jobs["report"])
    page = (tmp_path / "report" / "report.html").read_text()
    assert "no such account" in page
    with (tmp_path / "report" / "matches.csv").open() as source:
        assert {row["subscription"]: int(row["events"]) for row in csv.DictReader(source)} == {
            watched: len(quotes), kept: len(quotes), everything: len(quotes), some: dear,
        }  # fmt: skip
    with (tmp_path / "report" / "throughput.csv").open() as source:
        assert sum(int(row["events"]) for row in csv.DictReader(source)) == len(quotes)
    for picture in ("throughput", "latency", "matches", "exceptions"):
        assert (tmp_path / "report" / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_too_many_rejects_publish_nothing(
    spark: SparkSession, broker: Broker, quotes: list[Quote], tmp_path: Path
) -> None:
    from pgps_spark.pipeline.run import run_job

    t = broker.type(ATTRIBUTES)
    (tmp_path / "files").mkdir()
    _write(tmp_path / "files" / "a.csv", quotes[:50], *[["X", "nonsense", "1", "1"]] * 3)
    columns = {"symbol": "Ticker", "day": "Date"}
    job = config.Ingest(
        name="few", dsn=broker.dsn, checkpoint=f"{tmp_path}/checkpoint", event_type=t, source=f"{tmp_path}/files",
        rejects=f"{tmp_path}/rejects", columns=columns, max_rejects=2,
    )  # fmt: skip
    with pytest.raises(PgpsError, match="3 rows of a batch are no events"):
        run_job(spark, job)
    assert broker.received(t, "symbol") == []


def test_a_window_survives_its_way_through_spark() -> None:
    window = SlidingWindow(10.0)
    for at in range(5):
        window.add(float(at), float(at * at))
    again = SlidingWindow.loads(10.0, window.dumps())
    assert again.figures(5.0) == window.figures(5.0)
    again.add(1.0, 1000.0)
    assert again.figures(5.0) == window.figures(5.0)
    assert again.figures(100.0) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no [jobs.…]"),
        ("[jobs.a]\nkind = 'x'", "[jobs.a] has no kind"),
        ("[jobs.a]\nkind = 'report'\ndirectory = 'x'", "output is missing"),
        ("[jobs.a]\nkind = 'report'\ndirectory = 'x'\noutput = 'y'\ncolour = 'z'", "unknown key colour"),
        ("[jobs.a]\nkind = 'analyse'\nwindow = 'long'", "invalid window 'long'"),
        ("[job.a]", "unknown table [job]"),
        ("[pipeline]\nx = 1\n[jobs.a]\nkind = 'report'", "unknown key x in [pipeline]"),
        ("nonsense", "pipeline.toml"),
    ],
)
def test_a_configuration_that_is_wrong_says_where(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert said in caught.value.message
    with pytest.raises(ConfigError):
        config.load(tmp_path / "none.toml")
