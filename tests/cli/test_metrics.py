"""`pgps metrics`, and the alerts that are about what it and a worker tell."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import yaml

from pgps import _catalogue
from pgps._metrics import Figure, exposition
from tests.fix_broker import make_type, publish, refused, rows
from tests.fix_db import Connect

_ROOT = Path(__file__).resolve().parents[2]
_PROMETHEUS = _ROOT / "docker" / "prometheus"
_PGPS = [sys.executable, "-m", "pgps.cli"]


def _promtool(*arguments: str, text: str | None = None) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=_PROMETHEUS, input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_figures_of_a_broker_are_what_prometheus_reads(
    own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    admin = connect(dsn=own_database)
    odd = 'odd "one"\\'
    make_type(admin, odd)
    publish(admin, odd, 1, 2)
    found = [Figure(*row) for row in rows(admin, _catalogue.METRICS)]
    text = exposition(found)
    _promtool("check", "metrics", text=text)
    assert 'pgps_waiting_events{event_type="odd \\"one\\"\\\\"} 2\n' in text
    rows(admin, "select pgps.dispatch()")
    after = exposition(Figure(*row) for row in rows(admin, _catalogue.METRICS))
    assert 'pgps_waiting_events{event_type="odd \\"one\\"\\\\"} 0\n' in after
    assert 'pgps_published_events_total{event_type="odd \\"one\\"\\\\"} 2\n' in after
    done = subprocess.run(
        [*_PGPS, "metrics", "--once", "--dsn", own_database], capture_output=True, text=True, check=True
    )
    assert "pgps_oldest_transaction_seconds" in done.stdout
    listed = subprocess.run(
        [*_PGPS, "metrics", "--once", "--json", "--dsn", own_database], capture_output=True, text=True, check=True
    )
    assert {"pgps_batches_total", "pgps_log_bytes"} <= {row["metric"] for row in json.loads(listed.stdout)}
    examined = subprocess.run(
        [*_PGPS, "metrics", "--once", "--doctor", "--dsn", own_database], capture_output=True, text=True, check=True
    )
    assert 'pgps_findings{check="workers",level="warning"} 1\n' in examined.stdout
    assert 'pgps_findings{check="connections",level="warning"} 0\n' in examined.stdout
    _promtool("check", "metrics", text=examined.stdout)
    with refused("42501"):
        rows(connect(role("alice"), dsn=own_database), _catalogue.METRICS)


def test_alerts_are_valid_fire_when_they_should_and_say_what_to_do() -> None:
    """That they are about metrics that exist is checked with a worker that is scraped (tests/worker/test_scrape.py)."""
    _promtool("check", "rules", "alerts.yml")
    _promtool("test", "rules", "alerts_test.yml")
    for rule in yaml.safe_load((_PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]:
        assert {"summary", "remedy"} <= set(rule["annotations"])
