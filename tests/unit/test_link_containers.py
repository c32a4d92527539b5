"""The profile network of docker-compose.yml: four brokers that are linked, each with server, installer and worker."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from pgps_demo.network.healthcare import LINKS
from tests.fix_broker import rows
from tests.fix_db import Connect
from tests.unit.test_containers import ROOT, stages

FILE = ROOT / "docker-compose.yml"
BROKERS = ("home", "hospital", "pharmacy", "auditor")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return {name: service for name, service in loaded.items() if service.get("profiles") == ["network"]}


@pytest.fixture
def installer(own_database: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of an installer; what it makes beside the database is dropped."""
    given = conninfo_to_dict(own_database)
    names = {"host": "PGHOST", "port": "PGPORT", "password": "PGPASSWORD"}
    for role, password in (("worker", "it's"), ("peer", 'a "$HOME" \\ `w`')):
        (tmp_path / role).write_text(f"{password}\n")
    yield {
        **os.environ,
        **{names[key]: str(value) for key, value in given.items() if key in names},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PGPS_SECRETS": str(tmp_path),
        "PGPS_DSN": own_database,
    }
    with psycopg.connect(own_database, autocommit=True) as connection:
        connection.execute("drop owned by peer; drop role peer")
        connection.execute("drop role if exists worker")


def test_each_broker_has_a_server_an_installer_and_a_worker(services: dict[str, Any]) -> None:
    assert set(services) == {f"{broker}{kind}" for broker in BROKERS for kind in ("", "-install", "-worker")}


def test_every_build_names_a_stage_that_exists(services: dict[str, Any]) -> None:
    for service in services.values():
        build = service["build"]
        assert (FILE.parent / build["context"] / build["dockerfile"]).is_file()
        assert build["target"] in stages()


@pytest.mark.parametrize("broker", BROKERS)
def test_each_waits_for_what_it_needs(services: dict[str, Any], broker: str) -> None:
    assert services[f"{broker}-install"]["depends_on"] == {broker: {"condition": "service_healthy"}}
    assert services[f"{broker}-worker"]["depends_on"] == {
        f"{broker}-install": {"condition": "service_completed_successfully"}
    }


@pytest.mark.parametrize("broker", BROKERS)
def test_what_keeps_running_has_a_health_check(services: dict[str, Any], broker: str) -> None:
    for name in (broker, f"{broker}-worker"):
        check = services[name]["healthcheck"]
        assert check["test"][0] == "CMD"
        assert {"interval", "timeout", "retries"} <= set(check)
    assert services[f"{broker}-worker"]["environment"]["PGPS_WORKER_HEALTH_PORT"] == "8080"


def test_each_tool_goes_to_the_server_of_its_broker(services: dict[str, Any]) -> None:
    for broker in BROKERS:
        assert services[broker]["environment"]["POSTGRES_DB"] == broker
        for kind in ("install", "worker"):
            given = conninfo_to_dict(services[f"{broker}-{kind}"]["environment"]["PGPS_DSN"])
            assert (given["host"], given["dbname"]) == (broker, broker)


def test_servers_are_reachable_from_this_machine_only_and_at_ports_of_their_own(services: dict[str, Any]) -> None:
    ports = [port for broker in BROKERS for port in services[broker]["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len(set(ports)) == len(BROKERS)


def test_volumes_are_declared(services: dict[str, Any]) -> None:
    sources = {volume.partition(":")[0] for broker in BROKERS for volume in services[broker]["volumes"]}
    declared = set(yaml.safe_load(FILE.read_text())["volumes"])
    assert sources == declared - {"data", "prometheus", "grafana"}


def test_the_links_are_those_of_the_demonstration(services: dict[str, Any]) -> None:
    pairs = {
        (broker, peer) for broker in BROKERS for peer in services[f"{broker}-install"]["environment"]["PEERS"].split()
    }
    assert pairs == set(LINKS)


def test_no_connection_string_of_a_link_has_a_password(services: dict[str, Any]) -> None:
    for broker in BROKERS:
        assert not re.search(r"link add .*password", " ".join(services[f"{broker}-install"]["command"]))


# Many programs are started one after the other, on a machine that may do much else.
@pytest.mark.timeout(600)
def test_the_installer_makes_the_roles_and_defines_the_links_and_may_run_again(
    services: dict[str, Any], installer: dict[str, str], own_database: str, connect: Connect
) -> None:
    service = services["hospital-install"]
    command = [word.replace("$$", "$") for word in service["command"]]
    for _ in range(2):
        done = subprocess.run(
            command,
            env={**installer, "PEERS": service["environment"]["PEERS"]},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    admin = connect(dsn=own_database)
    assert rows(admin, "select name, role from pgps.links order by name") == [
        ("auditor", "peer"),
        ("pharmacy", "peer"),
    ]
    member_of = "array(select m.roleid::regrole::text from pg_auth_members m where m.member = r.oid)"
    query = f"select rolname, rolcanlogin, rolsuper, {member_of} from pg_roles r where rolname in ('peer', 'worker')"
    assert rows(admin, f"{query} order by rolname") == [
        ("peer", True, False, ["pgps_link"]),
        ("worker", True, False, ["pgps_worker"]),
    ]
    for role, password in (("worker", "it's"), ("peer", 'a "$HOME" \\ `w`')):
        assert _is_its_password(admin, role, password)


def _is_its_password(admin: psycopg.Connection, role: str, password: str) -> bool:
    """Reckon what the server has stored: SCRAM's salted and hashed key."""
    stored = rows(admin, f"select rolpassword from pg_authid where rolname = '{role}'")[0][0]
    found = re.fullmatch(r"SCRAM-SHA-256\$(\d+):(.+)\$(.+):.+", stored)
    assert found
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(found[2]), int(found[1]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    return base64.b64decode(found[3]) == hashlib.sha256(key).digest()
