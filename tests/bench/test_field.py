"""The harness that measures pgps beside others: what it starts, what it compares, what it writes."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from rich.console import Console
from rich.progress import Progress

from bench.field import document, report
from bench.field.__main__ import Overdue
from bench.field.__main__ import main as command
from bench.field.crew import Published, Records
from bench.field.experiments import EXPERIMENTS
from bench.field.field import Field, Result, ordered
from bench.field.plan import PORTFOLIOS, Plan
from bench.field.report import Run, merged
from bench.field.rounds import Contender, Outcome, Standing, compete, verify
from bench.field.systems.pgps import Pgps
from bench.field.systems.pgq import Pgq
from bench.house import House
from pgps.embedded import EmbeddedCluster
from tests.fix_broker import value
from tests.fix_db import wait_until


@pytest.fixture(scope="module")
def house(embedded_home: Path) -> Iterator[House]:
    progress = Progress(console=Console(file=io.StringIO()))
    with EmbeddedCluster(f"field-{os.getpid()}", fast=True, home=embedded_home, keep=False) as cluster:
        made = House(cluster, 1, True, progress, progress.add_task(""))
        made.prepare()
        yield made


def records(*numbers: int) -> Records:
    return Records(array("q", numbers), array("d", [1.0 + number / 1000 for number in numbers]))


def published(count: int) -> Published:
    return Published(0, count, 0.5, 1.0, records(*range(count)))


JAVASCRIPT_TRACE = """
    at /somewhere/node_modules/pool/index.js:45:11
    at async serve (/somewhere/base.js:94:20) {
  code: '40P01',
}
"""


class Broken(Pgps):
    def open(self, house: House, plan: Plan) -> Any:
        raise RuntimeError("no broker" + JAVASCRIPT_TRACE)


def _wait_for_leader(dsn: str, _process: object) -> None:
    """Wait until a worker dispatches; the harness looks for what the worker did last, which passes by within a second.

    There, on a machine that measures and does nothing else, it is seen.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        wait_until(lambda: value(connection, "select exists (select from pgps.workers where leader)"))


def test_ways_of_consuming_from_pgps_arrive_and_are_checked_and_one_that_fails_stops_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.house._wait_for_dispatcher", _wait_for_leader)
    plans = {
        "client": Plan(
            subscribers=4,
            filters="symbol",
            symbols=2,
            publishers=2,
            together=5,
            fail_first=True,
            consume="transaction",
            batch=7,
        ),
        "function": Plan(
            subscribers=2, filters="portfolio", symbols=4, publishers=2, consume="callback", synchronous=False
        ),
    }
    contenders = [Contender(name, Pgps(), plan) for name, plan in plans.items()]
    standings = compete(house, [Contender("broken", Broken(), Plan()), *contenders], seconds=0, events=20)
    assert standings.pop("broken").error == "RuntimeError: no broker"
    assert {name: standing.error for name, standing in standings.items()} == dict.fromkeys(plans)
    assert [standing.outcomes[0].deliveries for standing in standings.values()] == [40, 40]
    assert min(standings["client"].outcomes[0].latencies) > 0


def test_pgq_takes_part_where_it_is_installed(house: House) -> None:
    reason = Pgq().missing()
    if reason is not None:
        pytest.skip(reason)
    plan = Plan(subscribers=2, filters="symbol", symbols=2, publishers=2, together=5)
    standings = compete(house, [Contender("pgq", Pgq(), plan)], seconds=0, events=20)
    assert standings["pgq"].error is None
    assert standings["pgq"].outcomes[0].deliveries == 20


def test_a_lost_event_a_foreign_one_and_a_repeat_are_errors() -> None:
    plan = Plan(subscribers=2, filters="symbol", symbols=2, publishers=1)
    good = {0: records(0, 2), 1: records(1, 3)}
    outcome = verify(plan, published(4), good, once=True, label="x")
    assert (outcome.deliveries, outcome.repeats, outcome.disordered) == (4, 0, 0)
    with pytest.raises(RuntimeError, match="subscriber 1 lacks 1 of 2"):
        verify(plan, published(4), {0: records(0, 2), 1: records(1)}, once=True, label="x")
    with pytest.raises(RuntimeError, match="1 that it should not have"):
        verify(plan, published(4), {0: records(0, 2, 1), 1: records(1, 3)}, once=True, label="x")
    twice = {0: records(0, 2, 0), 1: records(1, 3)}
    with pytest.raises(RuntimeError, match="1 events came again"):
        verify(plan, published(4), twice, once=True, label="x")
    assert verify(plan, published(4), twice, once=False, label="x").repeats == 1


def test_events_that_overtake_others_of_their_publisher_are_counted() -> None:
    plan = Plan(publishers=2)
    assert verify(plan, published(4), {0: records(1, 0, 3, 2)}, once=True, label="x").disordered == 0
    assert verify(plan, published(4), {0: records(2, 0, 1, 3)}, once=True, label="x").disordered == 1


def test_a_share_of_the_subscribers_has_the_same_portfolio() -> None:
    plan = Plan(subscribers=100, filters="portfolio", shared=30)
    portfolios = [plan.portfolio(k) for k in range(100)]
    assert portfolios[:30] == [0] * 30
    assert portfolios[30:] == plan.record()["portfolios"][30:]
    assert all(0 <= one < PORTFOLIOS for one in portfolios)


def test_the_page_shows_medians_ratios_and_failures(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def standing(*rates: int) -> Standing:
        return Standing([Outcome(rate, rate, 1.0, 1.0) for rate in rates])

    result = Result()
    result.add("deliveries a second", 10, {"pgps": standing(300, 200, 400), "other": Standing([], "it fell")})
    result.add("deliveries a second", 100, {"pgps": standing(900), "other": standing(300)})
    result.against("100 subscribers", standing(900), standing(300), None)
    run = Run("guaranteed", Field(house, {"pgps": Pgps()}), {"PgQ": "not here"}, result)
    results = run.document()
    monkeypatch.setattr(document, "_DOCS", tmp_path)
    monkeypatch.setattr(document, "_PAGE", tmp_path / "performance.md")
    with pytest.raises(RuntimeError, match="not for the page"):
        document.write(results)
    results["quick"] = False
    document.write(results)
    page = (tmp_path / "performance.md").read_text()
    assert "| pgps | 300 | 900 |" in page
    assert "| other | failed | 300 |" in page
    assert "| 100 subscribers |  | 3 x | 3 … 3 |" in page
    assert "**Skipped.** PgQ: not here." in page
    assert (tmp_path / "images" / "field-guaranteed.svg").stat().st_size > 1000
    assert document.write(results).read_text() == page


def test_of_each_experiment_the_newest_results_count_that_did_not_fail(tmp_path: Path) -> None:
    def kept(number: int, failed: bool, *names: str) -> str:
        path = tmp_path / f"{number}.json"
        experiments = {name: {"title": f"{name} {number}", "failed": failed} for name in names}
        systems = {"pgps": f"pgps {number}"}
        path.write_text(
            json.dumps({"quick": False, "systems": systems, "skipped": {"PgQ": "no"}, "experiments": experiments})
        )
        return str(path)

    paths = [kept(1, False, "retry", "stored"), kept(2, False, "stored"), kept(3, True, "stored", "held")]
    whole = merged(paths)
    assert [one["title"] for one in whole["experiments"].values()] == ["stored 2", "retry 1", "held 3"]
    assert whole["systems"] == {"pgps": "pgps 3"}
    with pytest.raises(RuntimeError, match="no raw results"):
        merged([])


def test_points_that_there_is_no_time_for_are_named_and_a_contender_that_fails_twice_is_left_out(house: House) -> None:
    field, result = Field(house, {}, deadline=time.monotonic()), Result()
    assert list(field.paced((100, 10, 1), result)) == [100]
    assert result.notes == ["Not measured, since its time was up: 10, 1."]
    assert ordered(["100", "1,000", "1"]) == ["1", "100", "1,000"]
    assert ordered(["1 consumer"]) == ["1 consumer"]
    entries = [("broken", Broken(), Plan())]
    errors = [field.compete(entries, seconds=0, events=20)["broken"].error for _ in range(3)]
    assert errors == ["RuntimeError: no broker", "RuntimeError: no broker", "left out: it had failed 2 times"]


def test_an_experiment_that_fails_or_hangs_is_reported_with_what_it_found(
    embedded_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(field: Field, result: Result) -> None:
        result.add("events a second", 1, {"pgps": Standing([Outcome(300, 300, 1.0, 1.0)])})
        raise Overdue("too long")

    monkeypatch.setenv("PGPS_HOME", str(embedded_home))
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(EXPERIMENTS["retry"], "run", half)
    monkeypatch.setattr(sys, "argv", ["field", "--quick", "--only", "retry", "--systems", "pgps"])
    assert command() == 1
    raw = json.loads(next(tmp_path.glob("*-field-retry-quick.json")).read_text())["experiments"]["retry"]
    assert (raw["failed"], raw["notes"], raw["cells"][0]["samples"]) == (True, ["failed: Overdue: too long"], [300.0])
