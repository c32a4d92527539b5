"""What a connection string of a database may do with the secrets of the worker's host."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgps.errors import ConfigError
from pgps_worker.config import WorkerConfig
from pgps_worker.methods import methods
from pgps_worker.outward import outward

_THERE = "host=127.0.0.1 port=1 user=peer"


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on which a worker has passwords for its own broker."""
    (tmp_path / "services").write_text("[own]\npassword=of_the_service\n")
    (tmp_path / "passfile").write_text("127.0.0.1:*:*:peer:of_the_file\n")
    (tmp_path / "passfile").chmod(0o600)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "passfile"))
    monkeypatch.delenv("PGREQUIREAUTH", raising=False)


def password(dsn: str) -> bytes:
    """Return what libpq would give away; nobody has to answer."""
    return psycopg.pq.PGconn.connect_start(dsn.encode()).password


@pytest.mark.parametrize(("variable", "given"), [("PGPASSWORD", "of_the_environment"), ("PGSERVICE", "own")])
def test_the_password_for_the_own_broker_is_for_no_other(
    monkeypatch: pytest.MonkeyPatch, variable: str, given: str
) -> None:
    monkeypatch.setenv(variable, given)
    assert password(_THERE.replace("peer", "other")) != b"", "libpq would take it"
    assert password(outward(WorkerConfig(), _THERE.replace("peer", "other")).dsn) == b""
    assert password(outward(WorkerConfig(), _THERE).dsn) == b"of_the_file"
    assert password(outward(WorkerConfig(), f"{_THERE} password=given").dsn) == b"given"
    assert password(outward(WorkerConfig(), "host=127.0.0.1 port=1", user="peer").dsn) == b"of_the_file"


@pytest.mark.parametrize(("variable", "given"), [("PGHOST", "127.0.0.1"), ("PGSERVICE", "named")])
def test_an_address_alone_is_given_no_name_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, given: str
) -> None:
    """The password file goes by the name, and the password to the address."""
    (tmp_path / "services").write_text("[named]\nhost=127.0.0.1\n")
    monkeypatch.setenv(variable, given)
    alone = "hostaddr=127.0.0.2 port=1 user=peer"
    assert password(alone) == b"of_the_file", "libpq would take it"
    assert password(outward(WorkerConfig(), alone).dsn) == b""


@pytest.mark.parametrize(
    ("allowed", "wanted", "environment", "expected"),
    [
        ("", "", "", "scram-sha-256,gss,sspi,none"),
        ("", "scram-sha-256", "", "scram-sha-256"),
        ("", "!none,!gss", "", "scram-sha-256,sspi"),
        ("", "!scram-sha-256", "", "gss,sspi,none"),
        ("", "scram-sha-256,password", "", "scram-sha-256"),
        ("md5,password", "", "", "md5,password"),
        ("!password", "!oauth", "", "scram-sha-256,gss,sspi,none,md5"),
        ("", "", "scram-sha-256,password", "scram-sha-256"),
        ("md5", "", "password", "md5"),
        ("any", "", "scram-sha-256", None),
        ("any", "md5", "", "md5"),
    ],
)
def test_the_host_allows_methods_and_a_string_leaves_some_out(
    monkeypatch: pytest.MonkeyPatch, allowed: str, wanted: str, environment: str, expected: str | None
) -> None:
    if environment:
        monkeypatch.setenv("PGREQUIREAUTH", environment)
    conninfo = f"{_THERE} require_auth={wanted}" if wanted else _THERE
    found = outward(WorkerConfig(link_auth=allowed), conninfo)
    assert conninfo_to_dict(found.dsn).get("require_auth") == expected
    assert found.link_auth == allowed


def test_nothing_left_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for conninfo in (f"{_THERE} require_auth=md5", f"{_THERE} require_auth=nonsense"):
        with pytest.raises(ConfigError):
            outward(WorkerConfig(), conninfo)
    monkeypatch.setenv("PGREQUIREAUTH", "password")
    with pytest.raises(ConfigError, match="--link-auth"):
        outward(WorkerConfig(), _THERE)


def test_a_service_is_the_word_of_the_host_s_administrator() -> None:
    found = conninfo_to_dict(outward(WorkerConfig(), "service=far user=me dbname=d").dsn)
    assert found == {"service": "far", "user": "me", "dbname": "d"}
    for beside in ("host=h", "hostaddr=192.0.2.1", "port=1", "sslmode=disable", "require_auth=password", "sslkey=/k"):
        with pytest.raises(ConfigError, match="beside a service"):
            outward(WorkerConfig(link_auth="any"), f"service=far {beside}")
    assert conninfo_to_dict(outward(WorkerConfig(), f"{_THERE} service=''").dsn)["host"] == "127.0.0.1"


def test_without_require_auth_nothing_is_given_away_unless_the_host_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg.pq, "version", lambda: 150004)
    with pytest.raises(ConfigError, match="libpq 15"):
        outward(WorkerConfig(), _THERE)
    assert "require_auth" not in outward(WorkerConfig(link_auth="any"), _THERE).dsn
    assert outward(WorkerConfig(), "service=far").dsn == "service=far"


@pytest.mark.parametrize("text", ["nonsense", "md5,!password", "!"])
def test_methods_that_libpq_does_not_know_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        methods(text)
    with pytest.raises(ConfigError):
        WorkerConfig(link_auth=text)


def test_libpq_knows_the_methods() -> None:
    """What it does not know is refused before anything is sent; nobody answers at this port."""
    found = outward(WorkerConfig(link_auth="!oauth"), f"{_THERE} connect_timeout=2")
    with pytest.raises(psycopg.OperationalError) as failed:
        psycopg.connect(found.dsn)
    assert "require_auth" not in str(failed.value)
