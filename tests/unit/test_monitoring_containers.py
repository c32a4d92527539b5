"""The profile monitoring of docker-compose.yml, and how its containers come by their password."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from tests.unit.test_containers import ROOT

FILE = ROOT / "docker-compose.yml"
BOARD = ROOT / "docker" / "grafana" / "broker.json"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return loaded


@pytest.fixture
def monitoring(compose: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in compose["services"].items() if each.get("profiles") == ["monitoring"]}


def test_there_are_a_console_prometheus_and_grafana_for_this_machine_only(monitoring: dict[str, Any]) -> None:
    assert set(monitoring) == {"console", "prometheus", "grafana"}
    for service in monitoring.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert {"test", "interval", "timeout", "retries"} <= set(service["healthcheck"])


def test_what_is_mounted_exists(compose: dict[str, Any], monitoring: dict[str, Any]) -> None:
    for service in monitoring.values():
        for source, _, _ in (volume.partition(":") for volume in service.get("volumes", [])):
            assert (ROOT / source).exists() if source.startswith(".") else source in compose["volumes"]


def test_prometheus_scrapes_a_worker_that_can_be_reached(compose: dict[str, Any]) -> None:
    config = yaml.safe_load((ROOT / "docker" / "prometheus" / "prometheus.yml").read_text())
    (target,) = config["scrape_configs"][0]["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    environment = compose["services"][host]["environment"]
    assert (environment["PGPS_WORKER_HEALTH_HOST"], environment["PGPS_WORKER_HEALTH_PORT"]) == ("0.0.0.0", port)
    assert "ports" not in compose["services"][host]


def test_each_panel_of_the_board_has_a_number_and_a_place_of_its_own() -> None:
    """What they ask is checked with a worker that is scraped (tests/worker/test_scrape.py)."""
    panels = json.loads(BOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def test_no_password_is_in_an_environment_or_a_connection_string(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for key, value in service.get("environment", {}).items():
            assert "PASSWORD" not in key or str(value).removeprefix("/run/secrets/") in service["secrets"]
            assert "password=" not in str(value)


def test_each_role_has_a_password_of_its_own_and_each_container_those_that_it_needs(compose: dict[str, Any]) -> None:
    """What runs users' code, or answers browsers, has no superuser's password."""
    roles = {"postgres", "worker", "peer", "grafana"}
    assert compose["secrets"] == {role: {"file": f"${{PGPS_PASSWORDS:-docker/passwords}}/{role}"} for role in roles}
    assert {path.name for path in (ROOT / "docker" / "passwords").iterdir()} == roles
    for name, service in compose["services"].items():
        environment = service.get("environment", {})
        if name.endswith("install"):
            needed = {"postgres", "worker"} | ({"peer"} if "PEERS" in environment else set())
        elif name.endswith("worker"):
            needed = {login.partition("@")[0] for login in environment["PGPS_LOGINS"].split()}
        else:
            needed = {"grafana": {"grafana"}, "console": set(), "prometheus": set()}.get(name, {"postgres"})
        assert set(service.get("secrets", [])) == needed, name


def test_each_password_is_for_the_hosts_where_its_role_logs_in(compose: dict[str, Any]) -> None:
    """What a database says of where to connect leads it nowhere else."""
    services = compose["services"]
    for name, service in services.items():
        environment = service.get("environment", {})
        if not name.endswith(("install", "worker")):
            assert "PGPS_LOGINS" not in environment
            continue
        own = conninfo_to_dict(environment["PGPS_DSN"])
        logins = {f"{own['user']}@{own['host']}"}
        if name.endswith("-worker"):
            peers = services[name.replace("worker", "install")]["environment"]["PEERS"].split()
            logins |= {f"peer@{peer}" for peer in peers}
        assert set(environment["PGPS_LOGINS"].split()) == logins, name


def test_the_tools_and_who_looks_into_their_container_log_in_with_the_passwords_of_the_files(tmp_path: Path) -> None:
    """`docker compose exec` starts a program beside the one that the script has started."""
    secrets, home = tmp_path / "secrets", tmp_path / "home"
    for folder in (secrets, home):
        folder.mkdir()
    (secrets / "worker").write_text('it\'s a "secret": \\o/\n')
    (secrets / "peer").write_text("another")
    environment = {name: value for name, value in os.environ.items() if name not in {"PGPASSWORD", "PGPASSFILE"}}
    environment |= {"HOME": str(home), "PGPS_SECRETS": str(secrets), "PGPS_LOGINS": "worker@own peer@far peer@near"}
    script = ROOT / "docker" / "with-passwords.sh"
    told = ["sh", "-c", "echo it runs"]
    done = subprocess.run([script, *told], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "it runs\n"
    written = home / ".pgpass"
    assert written.stat().st_mode & 0o777 == 0o600
    hidden = b'it\'s a "secret": \\o/'
    for role, host, password in (
        ("worker", "own", hidden),
        ("peer", "far", b"another"),
        ("peer", "near", b"another"),
        ("peer", "own", b""),
        ("worker", "far", b""),
        ("postgres", "own", b""),
    ):
        # Nobody has to answer: libpq looks for the password first.
        given = f"host={host} hostaddr=127.0.0.1 port=1 user={role} passfile={written}"
        assert psycopg.pq.PGconn.connect_start(given.encode()).password == password, (role, host)
    failed = subprocess.run(
        [script, *told], env=environment | {"PGPS_LOGINS": "postgres@own"}, capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1
    assert "postgres@own" in failed.stderr
