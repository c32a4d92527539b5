"""`pgps network`."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.cli.conftest import Pgps
from tests.fix_broker import call

Done = Callable[..., str]


def test_a_network_is_added_shown_changed_and_dropped(
    pgps: Pgps, done: Done, admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    network = name("network")
    done(
        "network", "add", network, "host=sif dbname=a password=secret", "postgresql://me:secret@sigyn/a", "--user", "me"
    )
    try:
        call(admin, "spool", network, 1, "1", network=network)
        listed = next(row for row in pgps("network", "ls", "--json").json if row["name"] == network)
        assert (listed["state"], len(listed["contacts"]), listed["username"]) == ("defined", 2, "me")
        for shown in (done("network", "show", network), done("network", "show", network, "--json")):
            assert "sif" in shown
            assert "secret" not in shown, "passwords stay in the broker"
        assert "secret" not in str(listed)
        done("network", "set", network, "host=thor dbname=a")
        contacts = pgps("network", "show", network, "--json").json["contact_points"]
        assert [one["conninfo"] for one in contacts] == ["host=thor dbname=a"]
        refused = pgps("network", "rm", network, "--yes")
        assert (refused.status, "not arrived" in refused.err) == (1, True)
    finally:
        done("network", "rm", network, "--cascade", "--yes")
    gone = pgps("network", "show", network)
    assert (gone.status, "does not exist" in gone.err) == (1, True)
