"""`pgps install`, `upgrade`, `uninstall`, `status`."""

from __future__ import annotations

import psycopg
import pytest

from pgps import install
from tests.cli.conftest import Pgps


def test_install_status_and_uninstall_of_an_empty_database(pgps_without_database: Pgps, empty_database: str) -> None:
    pgps = pgps_without_database
    before = pgps("status", "--json", dsn=empty_database)
    assert before.status == 1
    assert before.json["installed"] is False

    assert pgps("install", dsn=empty_database).status == 0
    after = pgps("status", "--json", dsn=empty_database)
    assert after.status == 0
    assert after.json["up_to_date"] is True
    assert after.json["event_types"] == 0

    again = pgps("install", "--json", dsn=empty_database)
    assert again.json["scripts"] == []
    assert "up to date" in again.json["done"]

    refused = pgps("uninstall", dsn=empty_database)
    assert refused.status == 2
    assert "--yes" in refused.err
    assert pgps("uninstall", "--yes", dsn=empty_database).status == 0
    assert pgps("status", dsn=empty_database).status == 1


def test_the_dsn_may_be_an_argument(pgps_without_database: Pgps, empty_database: str) -> None:
    assert pgps_without_database("install", empty_database).status == 0
    assert pgps_without_database("upgrade", empty_database).status == 0
    assert pgps_without_database("uninstall", empty_database, "-y").status == 0


def test_a_dry_run_shows_the_sql_and_changes_nothing(pgps_without_database: Pgps, empty_database: str) -> None:
    result = pgps_without_database("install", "--dry-run", "--show-sql", dsn=empty_database)
    assert result.status == 0
    assert "create schema pgps" in result.out
    assert result.err.startswith("dry run, nothing changed: ")
    assert not install.status(empty_database).installed


def test_what_is_shown_installs_pgps_when_it_is_run(pgps_without_database: Pgps, empty_database: str) -> None:
    shown = pgps_without_database("install", "--dry-run", "--show-sql", dsn=empty_database).out
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(shown.encode())
    assert install.status(empty_database).revision == install.status(empty_database).head


def test_upgrade_of_an_empty_database_says_to_install(pgps_without_database: Pgps, empty_database: str) -> None:
    result = pgps_without_database("upgrade", dsn=empty_database)
    assert result.status == 1
    assert result.err.splitlines()[-1] == "hint: Install it: pgps install"


@pytest.mark.parametrize(
    "command",
    [["type", "ls"], ["type", "create", "t", "a int"], ["publish", "t", "{}"], ["listen", "s"], ["top", "--once"]],
    ids=" ".join,
)
def test_every_other_command_says_so_when_pgps_is_not_installed(
    command: list[str], pgps_without_database: Pgps, empty_database: str
) -> None:
    result = pgps_without_database(*command, dsn=empty_database)
    assert result.status == 1
    assert "is not installed in database" in result.err
    assert "hint: Install it: pgps install" in result.err
