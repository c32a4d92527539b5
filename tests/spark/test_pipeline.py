"""The pipeline on real data, against the same computed in plain Python; and its configuration."""

from __future__ import annotations

import csv
import datetime as dt
import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
            [jobs.keep]
            kind = "archive"
            event_type = "{self.quote}"
            subscription = "{self.kept}"
            directory = "{self.directory}/archive"
            max_events = 2500
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


def test_an_archive_that_dies_anywhere_has_each_event_once(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgps_spark.pipeline import archive
    from pgps_spark.pipeline.files import Files

    t = broker.type("n integer not null", auditable=True)
    job = config.Archive(
        name="keep", dsn=broker.dsn, checkpoint=f"{tmp_path}/checkpoint", event_type=t, max_events=1500,
        subscription=broker.subscribe(t), directory=f"{tmp_path}/archive",
    )  # fmt: skip
    publish_all = f"insert into pgps_event.{t} (n) select g from generate_series(%s::int, %s) g"
    rows(broker.connection, publish_all, [1, 3000])
    broker.dispatch()
    write, remove = archive._write, Files.remove

    def dies_after_writing(df: DataFrame, batch: int, *, directory: str) -> None:
        write(df, batch, directory=directory)
        if batch == 1:
            raise RuntimeError("killed")

    def dies_while_removing(files: Files, path: str) -> None:
        remove(files, path)
        if "/date=" in path:
            raise RuntimeError("killed")

    for place, name, dying in ((archive, "_write", dies_after_writing), (Files, "remove", dies_while_removing)):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, dying)
            with pytest.raises(Exception, match="killed"):
                run_job(spark, job)
    rows(broker.connection, publish_all, [3001, 3010])
    broker.dispatch()
    run_job(spark, job)
    for queue, columns in (("in", ["n"]), ("out", ["event_id", "subscription"])):
        found = spark.read.parquet(f"{tmp_path}/archive/{t}/{queue}").select(*columns).collect()
        assert len(found) == len(set(found)) == 3010 * (1 if queue == "in" else 2), queue


def _archive(broker: Broker, event_type: str, path: Path, **options: int) -> config.Archive:
    return config.Archive(
        name="keep", dsn=broker.dsn, checkpoint=f"{path}/checkpoint", event_type=event_type,
        max_events=options.get("max_events", 1500), subscription=broker.subscribe(event_type),
        directory=f"{path}/archive",
    )  # fmt: skip


def test_an_archive_keeps_attributes_that_come_and_go(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    t = broker.type("n integer not null, old text", auditable=True)
    job = _archive(broker, t, tmp_path)
    rows(broker.connection, f"insert into pgps_event.{t} (n, old) values (1, 'a')")
    broker.dispatch()
    run_job(spark, job)
    rows(broker.admin, "select pgps.alter_event_type(%s, drop_attribute => 'old')", [t])
    rows(broker.admin, "select pgps.alter_event_type(%s, add_attribute => 'later text')", [t])
    rows(broker.connection, f"insert into pgps_event.{t} (n, later) values (2, 'b')")
    broker.dispatch()
    run_job(spark, job)
    rows(broker.connection, f"insert into pgps_event.{t} (n, later) values (3, 'c')")
    broker.dispatch()
    run_job(spark, job)
    found = spark.read.parquet(f"{tmp_path}/archive/{t}/in").select("n", "old", "later").collect()
    assert sorted(map(tuple, found)) == [(1, "a", None), (2, None, "b"), (3, None, "c")]
    # Another type under the same name cannot be put together with the first; nothing of either is lost.
    rows(broker.admin, "select pgps.alter_event_type(%s, drop_attribute => 'later')", [t])
    rows(broker.admin, "select pgps.alter_event_type(%s, add_attribute => 'later integer')", [t])
    for n in (4, 5):
        rows(broker.connection, f"insert into pgps_event.{t} (n, later) values ({n}, {n})")
        broker.dispatch()
        run_job(spark, job)
    kinds: dict[int, object] = {}
    for day in Path(f"{tmp_path}/archive/{t}/in").glob("date=*"):
        for batch in day.glob("batch=*"):
            kinds |= {row.n: row.later for row in spark.read.parquet(str(batch)).collect()}
    assert kinds == {1: None, 2: "b", 3: "c", 4: 4, 5: 5}


def test_an_archive_that_is_interrupted_before_the_commit_has_each_event_once(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgps_spark.pipeline import archive

    t = broker.type("n integer not null", auditable=True)
    job = _archive(broker, t, tmp_path)
    rows(broker.connection, f"insert into pgps_event.{t} (n) select g from generate_series(1, 2010) g")
    broker.dispatch()
    write = archive._write

    def dies_after_writing(df: DataFrame, batch: int, *, directory: str) -> None:
        write(df, batch, directory=directory)
        if batch == 1:
            raise RuntimeError("interrupted")

    with monkeypatch.context() as patched:
        patched.setattr(archive, "_write", dies_after_writing)
        with pytest.raises(Exception, match="interrupted"):
            run_job(spark, job)
    # As after Ctrl-C: what is written is put together, though the checkpoint knows nothing of its last batch.
    archive.finish(spark, job)
    run_job(spark, job)
    found = [row.n for row in spark.read.parquet(f"{tmp_path}/archive/{t}/in").collect()]
    assert sorted(found) == list(range(1, 2011))
