"""The pipeline on real data, against the same computed in plain Python; and its configuration."""

from __future__ import annotations

import csv
import datetime as dt
import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pgps.errors import ConfigError, PgpsError
from pgps_demo.data import Data, Quote
from pgps_spark.pipeline import config
from pgps_spark.pipeline.run import run_job
from pgps_spark.pipeline.window import SlidingWindow
from tests.fix_broker import call, rows
from tests.spark.conftest import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTRIBUTES = "symbol text not null, day date not null, close numeric not null check (close > 0), volume bigint not null"
FINDING = "subject text, at timestamptz, value float8, score float8, events integer"
STATISTICS = (
    "subject text, at timestamptz, events integer, mean float8, deviation float8, lowest float8, highest float8"
)
DAYS = 30
SLIDE = 7
# A day that is none, a price that the type's constraint refuses, a name that is missing and a number that is none.
BAD = (["IBM", "2013-02-31", "1", "1"], ["IBM", "2013-03-01", "-5", "1"], ["", "2013-03-01", "5", "many"])


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


@dataclass(frozen=True, slots=True)
class Market:
    """A pipeline over an event type, with its findings, weekly figures and subscriptions."""

    quote: str
    finding: str
    weekly: str
    watched: str
    kept: str
    some: str
    directory: Path

    @property
    def files(self) -> Path:
        return self.directory / "files"

    def jobs(self, dsn: str) -> dict[str, config.Job]:
        path = self.directory / "pipeline.toml"
        path.write_text(
            f"""
            [pipeline]
            dsn = "{dsn}"
            directory = "{self.directory}/state"
            [jobs.quotes]
            kind = "ingest"
            event_type = "{self.quote}"
            source = "{self.files}"
            max_rejects = 5
            [jobs.quotes.columns]
            symbol = "Ticker"
            day = "Date"
            close = "Close"
            volume = "Volume"
            [jobs.watch]
            kind = "analyse"
            subscription = "{self.watched}"
            key = "symbol"
            value = "close"
            time = "day"
            window = "{DAYS} days"
            findings = "{self.finding}"
            statistics = "{self.weekly}"
            slide = "{SLIDE} days"
            patience = 300
            [jobs.keep]
            kind = "archive"
            event_type = "{self.quote}"
            subscription = "{self.kept}"
            directory = "{self.directory}/archive"
            max_events = 2500
            patience = "5 minutes"
            [jobs.report]
            kind = "report"
            directory = "{self.directory}/archive"
            output = "{self.directory}/report"
            """
        )
        return config.load(path).jobs

    def matched(self, quotes: list[Quote]) -> dict[str, int]:
        """Return how many of the quotes each subscription gets."""
        dear = sum(q.symbol == "IBM" and q.close > 100 for q in quotes)
        everything = dict.fromkeys((self.watched, self.kept, f"all_{self.quote}"), len(quotes))
        return {**everything, self.some: dear}


@pytest.fixture
def market(broker: Broker, tmp_path: Path) -> Market:
    quote, finding, weekly = broker.type(ATTRIBUTES, auditable=True), broker.type(FINDING), broker.type(STATISTICS)
    some = broker.subscribe(quote, filter="symbol = 'IBM' and close > 100", max_attempts=1)
    made = Market(quote, finding, weekly, broker.subscribe(quote), broker.subscribe(quote), some, tmp_path)
    made.files.mkdir()
    return made


def test_the_pipeline_does_what_plain_python_does(
    spark: SparkSession, broker: Broker, market: Market, quotes: list[Quote]
) -> None:
    jobs = market.jobs(broker.dsn)
    cut = len(quotes) // 2
    for part, more in ((quotes[:cut], BAD), (quotes[cut:], [])):
        _write(market.files / f"{part[0].day}.csv", part, *more)
        run_job(spark, jobs["quotes"])
        broker.dispatch()
        run_job(spark, jobs["watch"])
        run_job(spark, jobs["keep"])
    _each_file_is_ingested_once(spark, broker, market, quotes)
    _findings_and_figures_are_published(broker, market, quotes)
    # Deliver some and fail one, so that there is something to tell of.
    failed = rows(broker.connection, "select event_id from pgps.receive(%s, 100)", [market.some])[0][0]
    call(broker.connection, "nack", market.some, failed, "no such account")
    call(broker.connection, "ack", market.some)
    run_job(spark, jobs["keep"])
    _each_event_is_archived_once(spark, market, quotes)
    run_job(spark, jobs["report"])
    _the_report_counts_what_there_is(market, quotes)


def _each_file_is_ingested_once(spark: SparkSession, broker: Broker, market: Market, quotes: list[Quote]) -> None:
    found = rows(broker.admin, f"select symbol, day, close, volume from pgps_queue.{market.quote}_in")
    assert Counter(found) == Counter((q.symbol, q.day, q.close, q.volume) for q in quotes)
    # What is no event is told with its reason.
    rejects = spark.read.parquet(f"{market.directory}/state/rejects/quotes").collect()
    reasons = sorted(row.reason for row in rejects)
    assert [reason.partition(":")[0].partition(" violates")[0] for reason in reasons] == [
        "day", f'new row for relation "{reasons[1].split(chr(34))[1]}"', "symbol is missing; volume",
    ]  # fmt: skip


def _findings_and_figures_are_published(broker: Broker, market: Market, quotes: list[Quote]) -> None:
    broker.dispatch()
    found = rows(broker.admin, f"select subject, at, score from pgps_queue.{market.finding}_log order by event_id")
    expected = _expected_findings(quotes)
    assert expected
    assert sorted((s, at.date()) for s, at, _ in found) == sorted((s, day) for s, day, _ in expected)
    scores = {(s, at.date()): score for s, at, score in found}
    assert all(math.isclose(scores[s, day], score, rel_tol=1e-9) for s, day, score in expected)
    weeks = rows(
        broker.admin,
        f"select subject, extract(epoch from at)::float8, events, mean from pgps_queue.{market.weekly}_log",
    )
    wanted = _expected_weeks(quotes)
    assert {(s, at): events for s, at, events, _ in weeks} == {key: events for key, (events, _) in wanted.items()}
    assert all(math.isclose(mean, wanted[s, at][1], rel_tol=1e-9) for s, at, _, mean in weeks)


def _each_event_is_archived_once(spark: SparkSession, market: Market, quotes: list[Quote]) -> None:
    place = market.directory / "archive" / market.quote
    archived = spark.read.parquet(f"{place}/in")
    assert archived.count() == archived.select("event_id").distinct().count() == len(quotes)
    assert Counter(tuple(row) for row in archived.select("symbol", "day", "close", "volume").collect()) == Counter(
        (q.symbol, q.day, q.close, q.volume) for q in quotes
    )
    # And put together: one directory for the day.
    days = {path.parent for path in place.glob("in/date=*/batch=*")}
    assert len(list(place.glob("in/date=*/batch=*"))) == len(days)
    out = spark.read.parquet(f"{place}/out")
    assert out.count() == out.select("event_id", "subscription").distinct().count()
    counted = out.groupBy("subscription").count().collect()
    assert {row["subscription"]: row["count"] for row in counted} == market.matched(quotes)


def _the_report_counts_what_there_is(market: Market, quotes: list[Quote]) -> None:
    report = market.directory / "report"
    assert "no such account" in (report / "report.html").read_text()
    with (report / "matches.csv").open() as source:
        found = {row["subscription"]: int(row["events"]) for row in csv.DictReader(source)}
    assert found == market.matched(quotes)
    with (report / "throughput.csv").open() as source:
        assert sum(int(row["events"]) for row in csv.DictReader(source)) == len(quotes)
    for picture in ("throughput", "latency", "matches", "exceptions"):
        assert (report / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_too_many_rejects_publish_nothing(
    spark: SparkSession, broker: Broker, quotes: list[Quote], tmp_path: Path
) -> None:
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


def test_findings_and_figures_may_be_events_of_one_type(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    t = broker.type("symbol text, price float8, at timestamptz")
    found = broker.type(f"kind text, {FINDING}, deviation float8")
    job = config.Analyse(
        name="watch", dsn=broker.dsn, checkpoint=f"{tmp_path}/checkpoint", subscription=broker.subscribe(t),
        key="symbol", value="price", time="at", window=100.0, findings=found, statistics=found.upper(), minimum=5,
        slide=10.0,
    )  # fmt: skip
    rows(
        broker.connection,
        f"insert into pgps_event.{t} select 'IBM', 100 + g % 2 + 900 * (g / 19), to_timestamp(1000 + g)"
        " from generate_series(0, 19) g",
    )
    broker.dispatch()
    run_job(spark, job)
    assert sorted(broker.received(found, "kind")) == ["finding", "statistics"]


def test_a_batch_whose_rejects_are_written_keeps_them(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a repetition after the constraint was relaxed nor a new checkpoint loses what was refused."""
    from pgps_spark.pipeline import ingest

    t = broker.type("n integer not null check (n < 5)")
    (tmp_path / "files").mkdir()
    job = config.Ingest(
        name="few", dsn=broker.dsn, checkpoint=f"{tmp_path}/checkpoint", event_type=t, source=f"{tmp_path}/files",
        rejects=f"{tmp_path}/rejects",
    )  # fmt: skip

    def rejected() -> list[str]:
        return sorted(row.source for row in spark.read.parquet(f"{tmp_path}/rejects").collect())

    (tmp_path / "files" / "a.csv").write_text("n\n1\n7\nnone\n")
    publish_batch = ingest._publish

    def dies_afterwards(df: DataFrame, batch: int, **given: Any) -> None:
        publish_batch(df, batch, **given)
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(ingest, "_publish", dies_afterwards)
        with pytest.raises(Exception, match="killed"):
            run_job(spark, job)
    constraint = "select conname from pg_constraint where conrelid = %s::regclass and contype = 'c'"
    for (name,) in rows(broker.admin, constraint, [f"pgps_event.{t}"]):
        rows(broker.admin, f'alter table pgps_event.{t} drop constraint "{name}"')
    run_job(spark, job)
    assert (broker.received(t), rejected()) == ([1], ['{"n":"7"}', '{"n":"none"}'])
    (tmp_path / "files" / "a.csv").write_text("n\nmany\n")
    run_job(spark, replace(job, checkpoint=f"{tmp_path}/another"))
    assert rejected() == ['{"n":"7"}', '{"n":"many"}', '{"n":"none"}']
