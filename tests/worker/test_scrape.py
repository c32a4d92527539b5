"""A Prometheus scrapes a worker, as docker/prometheus/prometheus.yml has it, and an alert of ours fires and ends."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fix_db import wait_until
from tests.fix_worker import Ticks, Workers, free_port, metrics

DOCKER = Path(__file__).resolve().parents[2] / "docker"
# The server, a worker and Prometheus start for it.
pytestmark = pytest.mark.timeout(300)
Ask = Callable[..., Any]


@pytest.fixture
def target() -> int:
    """The port at which a worker is to have its metrics."""
    return free_port()


@pytest.fixture
def ask(target: int, tmp_path: Path) -> Iterator[Ask]:
    """A Prometheus with our configuration and alerts, but for the address, its hurry, and how long an alert waits."""
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{target}"]}]
    alerts = yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text())
    for rule in alerts["groups"][0]["rules"]:
        rule["for"] = "0s"
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(alerts))
    port = free_port()
    program = shutil.which("prometheus")
    assert program is not None, "install prometheus from Debian, as make setup does"
    with (tmp_path / "log").open("wb") as log:
        prometheus = subprocess.Popen(
            [
                program,
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )

    def asked(path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except (OSError, http.client.HTTPException):
            assert prometheus.poll() is None, (tmp_path / "log").read_text()
            return {}

    yield asked
    prometheus.kill()
    prometheus.wait()


def _values(ask: Ask, query: str) -> list[float]:
    return [float(series["value"][1]) for series in ask("query", query=query).get("result", [])]


def _firing(ask: Ask) -> set[str]:
    return {one["labels"]["alertname"] for one in ask("alerts").get("alerts", []) if one["state"] == "firing"}


def test_prometheus_reads_a_worker_and_tells_when_something_is_wrong(
    own_database: str, ticks: Ticks, workers: Workers, target: int, ask: Ask
) -> None:
    wait_until(lambda: "PgpsNobodyDispatches" in _firing(ask), what="no worker is there yet")
    admin = ticks.connection
    ticks.subscribe("all")
    workers(own_database, "--health-port", str(target))
    wait_until(lambda: _values(ask, "pgps_worker_leading") == [1], what="the worker leads, and is scraped")
    ticks.publish(1, 2)
    wait_until(lambda: _values(ask, 'pgps_published_events_total{event_type="tick"}') == [2])
    board = json.loads((DOCKER / "grafana" / "broker.json").read_text())
    queries = [one["expr"] for panel in board["panels"] for one in panel["targets"]]
    assert [query for query in queries if ask("query", query=query) == {}] == []  # each is a query that it understands
    admin.execute("create function public.fails(e pgps_event.tick) returns void language sql as 'select 1 / 0'")
    admin.execute("select pgps.subscribe('fails', 'tick', execute => 'public.fails', max_attempts => 1)")
    ticks.publish(3)
    wait_until(lambda: "PgpsEventsFail" in _firing(ask), what="an event failed, and the alert says so")
    # For as long as a scrape is late, it does.
    wait_until(lambda: "PgpsNobodyDispatches" not in _firing(ask), what="somebody dispatches")
    admin.execute("select pgps.discard_exception('tick', subscription => 'fails')")
    wait_until(lambda: "PgpsEventsFail" not in _firing(ask), what="its remedy was typed, and the alert ends")


def test_each_query_of_the_board_and_the_alerts_has_an_answer_where_everything_happens(
    own_database: str, ticks: Ticks, workers: Workers, target: int, ask: Ask
) -> None:
    asked = _queries()
    doctor = {query for query in asked if "pgps_findings" in query}
    _let_everything_happen(ticks)
    workers(own_database, "--health-port", str(target))
    ticks.publish(1, 2, 3)
    without = asked - doctor

    def are_answered() -> bool:
        ticks.publish(4)  # a rate is of the last minute
        without.difference_update([query for query in without if _values(ask, query)])
        print("no answer:", without)
        return not without

    wait_until(are_answered, timeout=180, what="each query has an answer")
    ticks.connection.execute("select pg_advisory_unlock(77)")
    kinds, meanings = (set(re.findall(rf"^# {word} (\S+)", metrics(target), re.MULTILINE)) for word in ("TYPE", "HELP"))
    assert "pgps_link_up" in kinds
    assert kinds - meanings == set(), "metrics without a line that says what they are"
    # What doctor finds is not scraped from a worker.
    command = [sys.executable, "-m", "pgps.cli", "metrics", "--once", "--doctor", "--dsn", own_database]
    assert doctor

    def told() -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    found = r'^pgps_findings\{check="links",level="warning"\} 1$'
    wait_until(lambda: re.search(found, told(), re.MULTILINE), what="doctor finds the link")
    assert 'pgps_subscription_lag_seconds{subscription="idle"}' in told()


def _queries() -> set[str]:
    """Return what the board asks, and what the alerts compare with a number."""
    board = json.loads((DOCKER / "grafana" / "broker.json").read_text())
    queries = {one["expr"].removesuffix(" or vector(0)") for panel in board["panels"] for one in panel["targets"]}
    for rule in yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]:
        compared = re.sub(r"^absent\((.*)\)$", r"\1", rule["expr"])
        query, _, number = compared.rpartition(" ")
        assert float(number) >= 0
        queries.add(query.rpartition(" ")[0])
    return queries


def _let_everything_happen(ticks: Ticks) -> None:
    """Have an event wait, one fail, a filter hang, a link that does not come up, and a gap in what came over it.

    And a composite event that is suspended.
    """
    admin = ticks.connection
    admin.execute("select pgps.create_composite_event('pair', 'tick x ; tick y')")
    admin.execute("select pgps_internal.suspend_composite(c.composite_id, 'it fails') from pgps_internal.composite c")
    admin.execute("select pgps.subscribe('idle', 'tick')")
    ticks.subscribe("fails", "perform 1 / 0")
    ticks.subscribe("busy")
    admin.execute("select pgps.alter_subscription('idle', dead_after => '1 microsecond')")
    admin.execute("select pgps.configure('lane_timeout', '10 minutes')")
    admin.execute("select pg_advisory_lock(77)")
    admin.execute(
        "create function public.gated(n integer) returns boolean language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock_shared(77); return true; end $$"
    )
    admin.execute("select pgps.subscribe('gated', 'tick', 'public.gated(n)')")
    admin.execute("select pgps.create_link('far', 'host=127.0.0.1 port=1 dbname=none')")
    admin.execute(
        "with o as (insert into pgps_internal.origin (broker_id, epoch, name) values (gen_random_uuid(), 1, 'far')"
        " returning origin_id)"
        " insert into pgps_internal.rejected (neighbour, publisher, origin_id, origin_batch, sqlstate, error)"
        " select 'far', current_user::regrole, o.origin_id, 1, '58030', 'trimmed' from o"
    )
