"""The job archive: each event once, whatever its attributes are called and wherever the run is killed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pgps.errors import WrongState
from pgps_spark.pipeline import archive, config, report
from pgps_spark.pipeline.files import Files
from pgps_spark.pipeline.run import run_job
from tests.fix_broker import rows
from tests.spark.conftest import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _archive(broker: Broker, event_type: str, path: Path, **options: int) -> config.Archive:
    return config.Archive(
        name="keep", dsn=broker.dsn, checkpoint=f"{path}/checkpoint", event_type=event_type,
        max_events=options.get("max_events", 1500), subscription=broker.subscribe(event_type),
        directory=f"{path}/archive",
    )  # fmt: skip


def test_an_archive_that_dies_anywhere_has_each_event_once(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = broker.type("n integer not null", auditable=True)
    job = _archive(broker, t, tmp_path)
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


def test_attributes_named_as_the_archives_directories_are_kept(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    t = broker.type('date date not null, "Batch" text, attribute_date text, n integer', auditable=True)
    job = _archive(broker, t, tmp_path)
    rows(broker.connection, f"insert into pgps_event.{t} values ('2020-01-01', 'B7', 'x', 1)")
    broker.dispatch()
    run_job(spark, job)
    (found,) = spark.read.parquet(f"{tmp_path}/archive/{t}/in").collect()
    told = {name: str(value) for name, value in found.asDict().items()}
    wanted = {"attribute_date_": "2020-01-01", "attribute_Batch": "B7", "attribute_date": "x", "n": "1"}
    assert {name: told[name] for name in wanted} == wanted
    assert told["date"] == str(found.published_at.date())
    assert told["batch"] != "B7"


def _filled(broker: Broker, tmp_path: Path) -> config.Archive:
    """Return a job that archives 3000 events, in two micro-batches."""
    t = broker.type("n integer not null", auditable=True)
    job = _archive(broker, t, tmp_path)
    rows(broker.connection, f"insert into pgps_event.{t} (n) select g from generate_series(1, 3000) g")
    broker.dispatch()
    return job


def _archived(spark: SparkSession, job: config.Archive) -> list[int]:
    return sorted(row.n for row in spark.read.parquet(f"{job.directory}/{job.event_type}/in").collect())


def _reported(spark: SparkSession, job: config.Archive) -> int:
    (row,) = report.tables(spark, job.directory)[0].rows
    return int(row[1])


ALL = list(range(1, 3001))


@pytest.mark.parametrize("who", ["report", "archive"])
def test_nobody_removes_what_a_run_is_putting_together(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    job = _filled(broker, tmp_path)
    write_json = Files.write_json
    seen = []

    def meanwhile(files: Files, path: str, value: object) -> None:
        if who == "report":
            assert _reported(spark, job) == 3000
        else:
            archive.run(spark, job)
        seen.append(path)
        write_json(files, path, value)

    with monkeypatch.context() as patched:
        patched.setattr(Files, "write_json", meanwhile)
        run_job(spark, job)
    assert seen
    assert _archived(spark, job) == ALL


def test_a_report_counts_once_what_is_there_twice_and_removes_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _filled(broker, tmp_path)

    def dies(files: Files, path: str) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Files, "remove", dies)
        with pytest.raises(RuntimeError, match="killed"):
            run_job(spark, job)
    there = sorted(Path(job.directory).rglob("*.parquet"))
    assert len(_archived(spark, job)) == 6000
    assert _reported(spark, job) == 3000
    assert sorted(Path(job.directory).rglob("*.parquet")) == there


@pytest.mark.parametrize("copied", [2, 3])
def test_a_kill_where_a_rename_copies_file_by_file_loses_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    job = _filled(broker, tmp_path)

    def copies(files: Files, path: str, target: str) -> None:
        """Copy in the order in which s3a does: _SUCCESS, _covers, part-…."""
        Path(target).mkdir()
        for file in sorted(file for file in Path(path).iterdir() if not file.name.startswith("."))[:copied]:
            shutil.copy(file, target)
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr("pgps_spark.pipeline.merge._EVENTS_PER_FILE", 1000)
        patched.setattr(Files, "move", copies)
        with pytest.raises(RuntimeError, match="killed"):
            run_job(spark, job)
    assert _reported(spark, job) == 3000
    run_job(spark, job)
    assert _archived(spark, job) == ALL


def test_files_that_somebody_removes_while_they_are_put_together_cost_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _filled(broker, tmp_path)
    write_json = Files.write_json

    def less(files: Files, path: str, value: object) -> None:
        for part in Path(path).parent.glob("part-*"):
            part.unlink()
        write_json(files, path, value)

    with monkeypatch.context() as patched:
        patched.setattr(Files, "write_json", less)
        with pytest.raises(WrongState, match="0 of 3000 rows") as caught:
            run_job(spark, job)
    assert caught.value.sqlstate == "55000"
    run_job(spark, job)
    assert _archived(spark, job) == ALL


def test_the_work_of_a_killed_run_is_removed_when_it_is_a_day_old(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    job = _filled(broker, tmp_path)
    works = [tmp_path / "archive" / job.event_type / "in" / f"_together-{name}" for name in ("old", "young")]
    for work, days in zip(works, (2, 0), strict=True):
        (work / "batch=together-x").mkdir(parents=True)
        part = work / "batch=together-x" / "part-0.parquet"
        part.touch()
        os.utime(part, (time.time() - days * 86_400,) * 2)
    run_job(spark, job)
    assert [work.exists() for work in works] == [False, True]
    assert _archived(spark, job) == ALL
