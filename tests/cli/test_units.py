"""`pgps service` and `pgps uow`."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.cli.conftest import Pgps
from tests.fix_units import Party

Name = Callable[..., str]
Done = Callable[..., str]


def test_services_and_units_of_work(
    pgps: Pgps, done: Done, admin: psycopg.Connection, name: Name, connect: Callable[..., psycopg.Connection]
) -> None:
    service = f"a/b/{name('s')}"
    done("service", "add", service, "--deferred", "--lifetime", "2 hours", "--status-lifetime", "3")
    try:
        listed = next(row for row in pgps("service", "ls", "--json").json if row["name"] == service)
        assert (listed["deferred"], listed["depth"], listed["servers"]) == (True, 0, 0)
        client = Party(connect(), name("token"))
        uow_id = client.request(service, "x")["uow_id"]
        making = client.send("y", to_service=service)["uow_id"]
        assert uow_id in done("uow", "ls")
        assert pgps("uow", "show", uow_id, "--json").json["status"] == "ACCEPTED"
        done("uow", "cancel", uow_id, "--yes")
        assert "CANCELLED" in done("uow", "show", uow_id)
        assert client.status(making) == "RECEIVED"
        refused = pgps("uow", "cancel", uow_id, "--yes")
        assert (refused.status, "CANCELLED" in refused.err) == (1, True)
        assert pgps("uow", "show", "U0").status == 1
    finally:
        done("service", "rm", service, "--yes")
    assert all(row["name"] != service for row in pgps("service", "ls", "--json").json)
