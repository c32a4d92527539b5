"""Who administers links says where the worker connects; what the worker's host keeps secret stays there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.fix_broker import call, refused, rows, value
from tests.fix_db import wait_until
from tests.fix_worker import Workers
from tests.links.false_server import FalseServer, false_server
from tests.links.rig import Broker

Brokers = Callable[[int], list[Broker]]


@pytest.fixture
def false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FalseServer]:
    """A false server, and a host on which a worker has passwords for others, in all the places that libpq has."""
    with false_server() as server:
        passfile = tmp_path / "passfile"
        passfile.write_text("*:*:*:peer:secret\ndb.hospital:*:*:hospital:secret\n")
        passfile.chmod(0o600)
        services = tmp_path / "services"
        services.write_text(
            f"[far]\nhost=db.hospital\nuser=far\npassword=secret\n"
            f"[old]\nhost=127.0.0.1\nport={server.port}\nuser=old\npassword=secret\nrequire_auth=md5\n"
        )
        monkeypatch.setenv("PGPASSFILE", str(passfile))
        monkeypatch.setenv("PGPASSWORD", "secret")
        monkeypatch.setenv("PGSERVICEFILE", str(services))
        yield server


def test_a_link_gives_no_password_away_but_as_the_host_s_administrator_says(
    brokers: Brokers, workers: Workers, false: FalseServer, tmp_path: Path
) -> None:
    (a,) = brokers(1)
    there = f"host=127.0.0.1 port={false.port} sslmode=disable"
    keys = tmp_path / "keys"
    expected = {
        "cleartext": (f"{there} user=peer dbname=cleartext", "waiting", "--link-auth"),
        "wanted": (f"{there} user=peer dbname=cleartext require_auth=password", "blocked", "--link-auth password"),
        "but": (f"{there} user=peer dbname=cleartext require_auth=!oauth", "waiting", "--link-auth"),
        "md5": (f"{there} user=peer dbname=md5", "waiting", "--link-auth"),
        "environment": (f"{there} user=anybody dbname=scram", "waiting", "passfile"),
        "address": (
            f"host=db.hospital hostaddr=127.0.0.1 port={false.port} user=hospital dbname=scram",
            "blocked",
            "verify-full",
        ),
        "service": (f"{there} dbname=scram service=far", "blocked", "into the service"),
        "keys": (f"{there} user=nobody dbname=scram sslkeylogfile={keys}", "blocked", "Leave it out"),
        # The administrator of the host says so in the service.
        "old": ("service=old dbname=md5", "waiting", ""),
    }
    for name, (conninfo, _, _) in expected.items():
        call(a.admin, "create_link", name, f"{there} user={name} dbname=scram")
        # As an earlier release took it.
        rows(a.admin, "update pgps_internal.link set conninfo = %s where name = %s", [conninfo, name])
    passfile = str(tmp_path / "passfile")
    call(a.admin, "create_network", "net", [f"{there} dbname=cleartext"], username="peer", passfile=passfile)
    workers(a.dsn)
    found: dict[str, tuple[str, str]] = {}

    def all_say_why() -> bool:
        # Whoever the server has kept waiting for too long says that, and tries again.
        said = rows(a.admin, "select name, state, coalesce(hint, '') from pgps.links")
        found.update({name: (state, hint) for name, state, hint in said})
        return all(found[name][0] == state and hint in found[name][1] for name, (_, state, hint) in expected.items())

    wait_until(all_say_why, what=f"all were tried, and say why: {expected}")
    contact = "select state = 'waiting' and strpos(hint, '--link-auth') > 0 from pgps.network_contacts"
    wait_until(lambda: value(a.admin, contact), what="the network, too")
    asked = {("peer", "cleartext"), ("peer", "md5"), ("anybody", "scram"), ("old", "md5")}
    wait_until(lambda: false.given and asked <= false.answered, what="each has given a password, or refused to")
    assert list(false.given) == [("old", "md5")]
    assert not keys.exists()
    for name, (_, state, hint) in expected.items():
        assert found[name][0] == state, name
        assert hint in found[name][1], name


def test_a_network_s_string_that_is_none_is_said_and_the_others_go_on(brokers: Brokers, workers: Workers) -> None:
    (a,) = brokers(1)
    for name in ("odd", "even"):
        call(a.admin, "create_network", name, ["host=127.0.0.1 port=1 dbname=x"])
    odd = "network_id = (select network_id from pgps_internal.network where name = 'odd')"
    rows(a.admin, f"update pgps_internal.network_contact set conninfo = 'host=h dbname' where {odd}")
    workers(a.dsn)
    said = "select last_error from pgps.network_contacts where network = %s"
    wait_until(lambda: "127.0.0.1" in (value(a.admin, said, ["even"]) or ""), what="the other one was tried")
    wait_until(lambda: "malformed" in (value(a.admin, said, ["odd"]) or ""), what="it says why")


def test_the_host_s_administrator_allows_more_and_what_was_allowed_goes_on(
    brokers: Brokers, workers: Workers, role: Callable[..., str], false: FalseServer, tmp_path: Path
) -> None:
    a, b = brokers(2)
    linker = role("linker", "pgps_link")
    with (tmp_path / "passfile").open("a") as passfile:
        passfile.write(f"*:*:*:{linker}:test\n")
    there = f"host=127.0.0.1 port={false.port} sslmode=disable user=peer"
    call(a.admin, "create_link", "md5", f"{there} dbname=md5")
    call(a.admin, "create_link", "cleartext", f"{there} dbname=cleartext")
    tcp = conninfo_to_dict(b.dsn) | {"user": linker, "password": None, "port": b.admin.info.port}
    if str(tcp["host"]).startswith("/"):
        tcp["host"] = "127.0.0.1"
    call(a.admin, "create_link", "good", make_conninfo("", **tcp))
    workers(a.dsn, "--link-auth", "scram-sha-256,md5")
    states = "select array_agg(state order by name) from pgps.links"
    wait_until(lambda: value(a.admin, states) == ["waiting", "up", "waiting"], what="all were tried")
    # Whoever the server has kept waiting for too long tries again.
    asked = {("peer", "md5"), ("peer", "cleartext")}
    wait_until(lambda: false.given and asked <= false.answered, what="one has given a password, and one has refused to")
    assert list(false.given) == [("peer", "md5")]


@pytest.mark.parametrize(
    ("conninfo", "says"),
    [
        ("host=h dbname=d sslkeylogfile=/tmp/keys", "sslkeylogfile"),
        ("postgresql://h/d?servicefile=/tmp/services", "servicefile"),
        ("host=h gssdelegation=1", "gssdelegation"),
        ("host=h hostaddr=192.0.2.1 dbname=d", "belong together"),
        ("postgresql://me@h:5432/d?hostaddr=192.0.2.1", "belong together"),
        ("service=far host=h", "beside a service"),
        ("postgresql://h/d?service=far", "beside a service"),
        ("service=far sslmode=disable", "beside a service"),
        ("service=far require_auth=password", "beside a service"),
    ],
)
def test_a_string_that_leads_a_password_elsewhere_is_refused_at_once(
    brokers: Brokers, conninfo: str, says: str
) -> None:
    (a,) = brokers(1)
    with refused("22023", says):
        call(a.admin, "create_link", "far", conninfo)
    with refused("22023", says):
        call(a.admin, "create_network", "net", [conninfo])


def test_strings_that_lead_nowhere_else_are_taken(brokers: Brokers) -> None:
    (a,) = brokers(1)
    taken = (
        "host=h hostaddr=192.0.2.1 sslmode=verify-full sslrootcert=system",
        "postgresql://h/d?hostaddr=192.0.2.1&sslmode=verify-full",
        "postgresql:///d?hostaddr=192.0.2.1",
        "service=far user=me dbname=d options='-c jit=off' connect_timeout=3",
        "host=h require_auth=scram-sha-256 channel_binding=require",
    )
    for number, conninfo in enumerate(taken):
        call(a.admin, "create_link", f"far_{number}", conninfo)
