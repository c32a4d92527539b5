"""Faults that are staged one after the other in one broker: each is named, and the remedy that is named mends it.

`pgps doctor` and the overview of the console say cause and remedy, and an alert of docker/prometheus fires until it is
mended. What a person has to mend first, such as a table that was dropped, is done before the remedy is typed as it
stands.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgps.embedded import EmbeddedCluster
from tests.cli.composite_faults import COMPOSITE_FAULTS
from tests.cli.conftest import Pgps
from tests.cli.faults import FAULTS, Broker, Fault, Found
from tests.cli.link_faults import link_faults, make_pair
from tests.fix_db import wait_until
from tests.fix_worker import Workers, metrics, workers

__all__ = ["workers"]
# A server of its own, which is restarted, a worker, and a command for each step.
pytestmark = pytest.mark.timeout(1200)
_RULES = Path(__file__).resolve().parents[2] / "docker" / "prometheus" / "alerts.yml"
# Minutes after which the longest of the alerts has to fire, if what it is about lasts.
_LASTS = 90


@pytest.fixture
def broker(own_cluster: EmbeddedCluster, pgps_without_database: Pgps, workers: Workers) -> Iterator[Broker]:
    made = Broker(own_cluster.dsn(), pgps_without_database, workers)
    made.run(
        "create table public.ward as select generate_series(1, 3) as n",
        "select pgps.create_event_type('tick', 'n integer')",
        "select pgps.advertise('tick')",
        "select pgps.subscribe('reader', 'tick')",
    )
    with made.held:
        yield made


def test_the_cause_of_each_fault_is_named_and_its_remedy_mends_it(broker: Broker, tmp_path: Path) -> None:
    _fire([_staged(broker, fault) for fault in FAULTS], tmp_path)


def test_the_cause_of_each_fault_of_a_composite_event_is_named_and_its_remedy_mends_it(
    broker: Broker, tmp_path: Path
) -> None:
    _fire([_staged(broker, fault) for fault in COMPOSITE_FAULTS], tmp_path)


def test_the_cause_of_each_fault_of_a_link_is_named_and_its_remedy_mends_it(
    broker: Broker, own_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    pair = make_pair(own_cluster, broker)
    _fire([_staged(broker, fault) for fault in link_faults(pair)], tmp_path)


def _staged(broker: Broker, fault: Fault) -> dict[str, Any]:
    """Stage a fault, look who names it, and mend it as is said; return the test of its alert."""
    fault.stage(broker)
    remedy = _named(broker, fault)

    def is_said() -> bool:
        said = broker.overview()
        return fault.says in said and " ".join(remedy.split()) in said

    # A link that tries again may be doing so just now.
    _until(is_said, what=f"the console says {fault.says}, and {remedy}")
    if fault.metric:
        _until(lambda: fault.metric in metrics(broker.port), what=fault.metric)
    if fault.logged:
        _until(lambda: broker.logged(fault.logged), what=f"logged: {fault.logged}")
    alert = _lasting(broker.scraped(), fault.fires())
    fault.repair(broker)
    broker.type(remedy)
    _until(lambda: not _of(broker, fault), what=f"mended is {fault.what}: {remedy}")
    if fault.metric:
        _until(lambda: fault.metric not in metrics(broker.port), what=f"no more: {fault.metric}")
    _until(lambda: fault.says not in broker.overview(), what=f"the console shows no more: {fault.says}")
    return alert


def _named(broker: Broker, fault: Fault) -> str:
    """Wait until doctor finds the fault, and return the remedy; it is found once."""
    found: list[Found] = []

    def is_found() -> bool:
        found[:] = _of(broker, fault)
        return bool(found)

    _until(is_found, what=f"{fault.check} finds {fault.what}: {fault.says}")
    ((_, _, remedy),) = found
    return remedy


def _until(condition: Callable[[], object], *, what: str) -> None:
    # Each look is a whole command.
    wait_until(condition, timeout=180, what=what)


def _fire(tests: list[dict[str, Any]], directory: Path) -> None:
    """Let promtool run its tests: the alert of each fault fires if the fault lasts."""
    path = directory / "faults.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(_RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _lasting(scraped: str, labels: dict[str, str]) -> dict[str, Any]:
    """Return a test of promtool: an alert with such labels fires when what was scraped stays as it is."""
    chosen = ",".join(f'{name}="{text}"' for name, text in labels.items())
    series = [line.rpartition(" ") for line in scraped.splitlines() if not line.startswith("#")]
    return {
        "name": chosen,
        "interval": "1m",
        "input_series": [{"series": name, "values": f"{value}x{_LASTS}"} for name, _, value in series],
        "promql_expr_test": [
            {
                "expr": f'group by ({", ".join(labels)}) (ALERTS{{alertstate="firing",{chosen}}})',
                "eval_time": f"{_LASTS}m",
                "exp_samples": [{"labels": f"{{{chosen}}}", "value": 1}],
            }
        ],
    }


def _of(broker: Broker, fault: Fault) -> list[Found]:
    return [found for found in broker.doctor(fault.check) if fault.says in found[1]]
