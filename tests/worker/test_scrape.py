"""A Prometheus scrapes a worker, as docker/prometheus/prometheus.yml has it, and an alert of ours fires and ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fix_db import wait_until
from tests.fix_worker import Ticks, Workers, free_port

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
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.URLError:
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
    assert "PgpsNobodyDispatches" not in _firing(ask)
    admin.execute("select pgps.discard_exception('tick', subscription => 'fails')")
    wait_until(lambda: "PgpsEventsFail" not in _firing(ask), what="its remedy was typed, and the alert ends")
