"""The demonstration: real data, a server and a worker of its own, a proof at the end, nothing left behind."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgps.embedded import EmbeddedCluster, list_clusters
from pgps_demo.data import Data, Quote, Reading
from pgps_demo.expect import Expected, Wanted, expect
from pgps_demo.group.directory import expect as expect_directory
from pgps_demo.group.directory import updates
from pgps_demo.network import figure5, healthcare
from pgps_demo.network.withheld import Finding
from pgps_demo.patterns import recount
from pgps_demo.prove import judge
from pgps_demo.run import run
from pgps_demo.scene import THRESHOLDS
from tests.fix_db import wait_until

pytestmark = pytest.mark.timeout(600)

_ALL = [sys.executable, "-m", "pgps.cli", "demo", "--speed", "0", "--no-spark"]
_DEMO = [*_ALL, "--no-networks"]


@pytest.fixture
def embedded_home(embedded_home: Path) -> Iterator[Path]:
    """A home of the test's own: another process of the run may run a demonstration in the shared one."""
    home = Path(tempfile.mkdtemp(prefix="d", dir=embedded_home))
    home.chmod(embedded_home.stat().st_mode)
    yield home
    for status in list_clusters(home=home):
        EmbeddedCluster(status.name, home=home).destroy()


def test_a_part_of_the_data_arrives_once_and_in_order(embedded_home: Path) -> None:
    done = subprocess.run([*_ALL, "--part", "0.02", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"]
    assert result["transactions"]["rolled_back"] > 0
    wanted = {each.subscription: each.count for each in expect(Data.load().part(0.02)).wanted}
    assert {each["subscription"]: each["received"] for each in result["subscriptions"]} == wanted
    assert all(wanted.values())
    assert all(each["in_order"] is not False for each in result["subscriptions"])
    assert set(result["exceptions"]["failed"]) == {"FB", "GOOG"}
    assert set(result["exceptions"]["discarded"]) == {"GOOG"}
    assert len(result["audit"]["in"]) == 8
    _check_healthcare(result["healthcare"])
    _check_figure_5(result["figure_5"])
    _check_group(result["group"])
    _check_patterns(result["patterns"])
    assert result["chess"]["ok"]
    assert result["chess"]["counts"]["crashed"] == 1
    assert _left(embedded_home) == []


def _check_healthcare(result: dict[str, Any]) -> None:
    wanted = {each.subscription: each.count for each in healthcare.expect(Data.load().part(0.02))}
    assert {each["subscription"]: each["received"] for each in result["subscriptions"]} == wanted
    assert all(wanted.values())
    assert all(each["in_order"] for each in result["subscriptions"])
    assert result["mishaps"]["killed"] != result["mishaps"]["started"]
    assert result["mishaps"]["waited_at_cut_link"] > 0
    assert [(each["rows"], each["bytes"], each["attributes"]) for each in result["withheld"]] == [(0, 0, 0)] * 6
    assert all(each["there"] for each in result["withheld"]), "the search finds what is there"


def _check_figure_5(result: dict[str, Any]) -> None:
    wanted = {each.subscription: each.count for each in figure5.expect(Data.load().part(0.02))}
    assert {each["subscription"]: each["received"] for each in result["subscriptions"]} == wanted
    assert all(wanted.values())
    assert [each["name"] for each in result["states"]] == ["a_1", "a_2", "s_6", "s_3", "covered", "after"]
    assert all(each["ok"] for each in result["states"])
    assert result["covered"]["db_3"] == ["volume > 60000000"]
    assert all(each["events"] == each["expected"] for each in result["links"])
    assert result["cut"]["connections"] == 4


def _check_group(result: dict[str, Any]) -> None:
    quotes = Data.load().part(0.02).quotes
    assert result["updates"] == len(list(updates(quotes)))
    assert [(each["member"], each["wrong"]) for each in result["members"]] == [
        (name, 0) for name in ("paris", "oslo", "rome", "follower")
    ]
    assert {each["entries"] for each in result["members"]} == {len(expect_directory(quotes))}
    assert result["checkpoints"] > 0
    assert [each["replayed"] > 0 for each in result["members"]] == [True, True, True, False]


def _check_patterns(result: dict[str, Any]) -> None:
    above = {patient: high for patient, (_, high) in THRESHOLDS.items()}
    wanted = {each.subscription: each.count for each in recount.expect(recount.first_of(Data.load(), 0.02), above)}
    assert {each["subscription"]: each["received"] for each in result["subscriptions"]} == wanted
    assert all(wanted.values())
    assert all(each["ok"] and each["in_order"] for each in result["subscriptions"])


def test_patterns_are_recounted_from_the_raw_data() -> None:
    at = dt.datetime.fromisoformat("2010-03-01 07:00")
    readings = [
        Reading(3, at + dt.timedelta(minutes=minute), glucose, None)
        # Insulin is given at 7:30:30; an hour is the longest.
        for minute, glucose in [(0, 300), (10, 100), (20, 300), (30, 300), (40, 300), (50, 300), (91, 300), (95, 300)]
    ]
    quotes = [
        Quote("IBM", dt.date(2010, 3, day), price, price, price, price, 1, price)
        for day, price in zip((1, 2, 3, 4, 5, 11, 12), map(Decimal, (100, 95, 99, 100, 101, 100, 101)), strict=True)
    ]
    alert, recovery = recount.expect(Data(readings, quotes), {3: 220})
    assert [(first.minute, last.minute) for _, first, last, _ in alert.events["3"]] == [(0, 30), (40, 31), (50, 35)]
    assert [(began.day, back.day) for _, began, back, _ in recovery.events["IBM"]] == [(1, 4), (1, 5), (1, 11)]


def test_it_fails_when_a_subscriber_has_an_event_too_many(
    embedded_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_too_few(data: Data) -> Expected:
        expected = expect(data)
        expected.wanted[0].events["home_5"].pop()
        return expected

    monkeypatch.setattr("pgps_demo.run.expect", one_too_few)
    assert run(keep=False, speed=0, part=0.01, seed=1, networks=False, spark=False, json=True) == 1
    result = json.loads(capsys.readouterr().out)
    assert [each["subscription"] for each in result["subscriptions"] if not each["ok"]] == ["alarm"]
    assert _left(embedded_home) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_removes_its_server_and_worker(embedded_home: Path, number: signal.Signals) -> None:
    # Started in the background of a shell, the tests ignore SIGINT, and so would what they start.
    demo = subprocess.Popen(
        [*_DEMO, "--speed", "100"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    name = f"demo-{demo.pid}"
    log = embedded_home / "clusters" / name / "worker.log"
    try:
        wait_until(lambda: log.exists() and "dispatching" in log.read_text(), timeout=300, what="the worker works")
        worker = _worker_of(demo.pid)
        demo.send_signal(number)
        assert demo.wait(300) == 130
    finally:
        demo.kill()
        demo.wait()
    assert _left(embedded_home) == []
    assert not Path(f"/proc/{worker}").exists()


def test_kept_it_says_how_to_connect(embedded_home: Path) -> None:
    command = [*_DEMO, "--part", "0.01", "--keep"]
    try:
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with psycopg.connect(json.loads(done.stdout)["connect"]) as connection:
            assert connection.execute("select count(*) from pgps.subscriptions").fetchone() == (9,)
        again = subprocess.run(command, capture_output=True, text=True, check=False)
        assert again.returncode == 1
        assert "python -m pgps.embedded destroy demo" in again.stderr
    finally:
        EmbeddedCluster("demo", home=embedded_home).destroy()


def test_the_raw_data_is_what_the_documents_say() -> None:
    data = Data.load()
    assert (len(data.readings), len(data.quotes)) == (52_281, 12_154)
    assert sum(reading.isig is None for reading in data.readings) == 1_061
    assert len({reading.taken_at for reading in data.readings}) == 52_278
    for stream in data.streams().values():
        moments = [_moment(event) for event in stream]
        assert moments == sorted(moments)


_WANTED = Wanted("s", "r", "", {"a": [("IBM", 1), ("IBM", 2), ("FB", 3)], "b": [("IBM", 1)]})


@pytest.mark.parametrize(
    ("received", "missing", "extra", "in_order"),
    [
        ({"a": [("IBM", 1), ("IBM", 2), ("FB", 3)], "b": [("IBM", 1)]}, 0, 0, True),
        ({"a": [("IBM", 2), ("IBM", 1), ("FB", 3)], "b": [("IBM", 1)]}, 0, 0, False),
        ({"a": [("IBM", 1), ("IBM", 1), ("IBM", 2), ("FB", 3)], "b": [("IBM", 1)]}, 0, 1, False),
        ({"a": [("IBM", 1), ("IBM", 2), ("FB", 3)]}, 1, 0, False),
        ({"a": [("IBM", 1), ("IBM", 2), ("FB", 3)], "b": [("IBM", 1)], "c": [("IBM", 1)]}, 0, 1, False),
        ({"a": [("IBM", 1), ("IBM", 2), ("FB", 4)], "b": [("IBM", 1)]}, 1, 1, False),
    ],
)
def test_the_proof_notices(received: dict[str, list[Any]], missing: int, extra: int, in_order: bool) -> None:
    verdict = judge(_WANTED, received)
    assert (verdict.missing, verdict.extra, verdict.in_order) == (missing, extra, in_order)
    assert verdict.ok is (in_order and not missing and not extra)


def test_the_proof_lets_a_retried_event_come_late_but_not_fail_to_come() -> None:
    wanted = Wanted("s", "r", "", {"a": [("FB", 1), ("IBM", 2)]}, late_symbols=frozenset({"FB"}))
    assert judge(wanted, {"a": [("IBM", 2), ("FB", 1)]}).ok
    assert not judge(wanted, {"a": [("IBM", 2)]}).ok


@pytest.mark.parametrize(
    ("rows", "in_files", "attributes", "there", "fine"),
    [(0, 0, 0, 5, True), (1, 0, 0, 5, False), (0, 1, 0, 5, False), (0, 0, 1, 5, False), (0, 0, 0, 0, False)],
)
def test_the_search_is_content_only_if_nothing_is_here_and_something_elsewhere(
    rows: int, in_files: int, attributes: int, there: int, fine: bool
) -> None:
    finding = Finding("auditor", "names", "attributes", rows, in_files, attributes, "home", there)
    assert finding.ok is finding.dict()["ok"] is fine


def _moment(event: Any) -> dt.datetime | dt.date:
    return event.taken_at if hasattr(event, "taken_at") else event.day  # type: ignore[no-any-return]


def _left(home: Path) -> list[str]:
    return [status.name for status in list_clusters(home=home) if status.name.startswith("demo")]


def _worker_of(pid: int) -> int:
    for process in Path("/proc").glob("[0-9]*"):
        # Any of them may end at any time.
        with contextlib.suppress(OSError):
            with_parent = (process / "stat").read_text(errors="replace")
            if with_parent.rpartition(")")[2].split()[1:2] == [str(pid)]:
                return int(process.name)
    pytest.fail(f"process {pid} has no worker ({os.getpid()})")
