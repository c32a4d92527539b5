"""docker-compose.yml and the Dockerfile fit together and fit the checkout."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """What comes up when no profile is named; the rest is in test_link_containers.py."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    loaded["services"] = {name: each for name, each in loaded["services"].items() if "profiles" not in each}
    return loaded


def stages() -> dict[str, str]:
    """The build stages of the Dockerfile, by name."""
    parts = re.split(r"^FROM \S+ AS (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_services_are_a_server_an_installer_and_a_worker(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"postgres", "install", "worker"}


def test_every_build_names_a_stage_that_exists(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        build = service["build"]
        assert (ROOT / build["context"] / build["dockerfile"]).is_file()
        assert build["target"] in stages()


def test_each_waits_for_what_it_needs(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["install"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["worker"]["depends_on"]["install"]["condition"] == "service_completed_successfully"
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)


def test_what_keeps_running_has_a_health_check(compose: dict[str, Any]) -> None:
    for name in ("postgres", "worker"):
        check = compose["services"][name]["healthcheck"]
        assert check["test"][0] == "CMD"
        assert {"interval", "timeout", "retries"} <= set(check)


def test_the_server_is_reachable_from_this_machine_only(compose: dict[str, Any]) -> None:
    assert all(port.startswith("127.0.0.1:") for port in compose["services"]["postgres"]["ports"])


def test_named_volumes_are_declared(compose: dict[str, Any]) -> None:
    used = {volume.partition(":")[0] for volume in compose["services"]["postgres"]["volumes"]}
    assert used == {"data"} <= set(compose["volumes"])


def test_the_commands_are_scripts_of_this_package(compose: dict[str, Any]) -> None:
    scripts = re.findall(r"^(pgps\S*) = ", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert compose["services"]["worker"]["command"][0] in scripts
    assert "pgps install" in compose["services"]["install"]["command"][-1]


def test_no_worker_logs_in_as_a_superuser() -> None:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    workers = [service for name, service in services.items() if name.endswith("worker")]
    assert len(workers) == 5
    for service in workers:
        assert conninfo_to_dict(service["environment"]["PGPS_DSN"])["user"] == "worker"


def test_everything_that_is_copied_exists_and_is_not_ignored() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for instruction in re.findall(r"^COPY (.+)$", DOCKERFILE, flags=re.MULTILINE):
        for source in instruction.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(fnmatch.fnmatch(source, pattern) for pattern in allowed), source


def test_the_server_image_takes_its_language_for_its_own_version() -> None:
    assert 'postgresql-plpython3-${PG_MAJOR}"' in stages()["server"]
    assert "FROM postgres:${PG_MAJOR}-bookworm AS server" in DOCKERFILE


def test_the_worker_does_not_run_as_root() -> None:
    assert re.search(r"^USER (?!root)", stages()["tools"], flags=re.MULTILINE)
