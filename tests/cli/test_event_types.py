"""`pgps type` and `pgps type policy`."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.cli.conftest import Pgps

Name = Callable[..., str]
Done = Callable[..., str]


@pytest.fixture
def quote(name: Name, done: Done) -> str:
    """An advertised event type."""
    made = name("quote")
    done("type", "create", made, "symbol text not null, price numeric", "--advertise")
    return made


def test_a_type_is_created_shown_and_dropped(pgps: Pgps, name: Name) -> None:
    made = name("reading")
    assert pgps("type", "create", made, "a int not null, b text default 'x'", "--auditable").status == 0
    shown = pgps("type", "show", made, "--json").json
    assert shown["name"] == made
    assert shown["auditable"] is True
    assert [(a["name"], a["type"], a["not_null"]) for a in shown["attributes"]] == [
        ("a", "integer", True),
        ("b", "text", False),
    ]
    assert [queue["queue"] for queue in shown["queues"]] == [f"{made}_in", f"{made}_out", f"{made}_exception"]
    assert pgps("type", "drop", made).status == 0
    gone = pgps("type", "show", made)
    assert gone.status == 1
    assert gone.err == f'error: event type "{made}" does not exist\nhint: pgps type ls\n'


def test_types_are_listed_as_a_table_and_as_json(pgps: Pgps, quote: str) -> None:
    heading, *rows = pgps("type", "ls", quote[:5] + "*").out.splitlines()
    assert heading.split()[:2] == ["name", "attributes"]
    assert [row.split()[0] for row in rows] == [quote]
    assert [row["name"] for row in pgps("type", "ls", quote, "--json").json] == [quote]
    assert pgps("type", "ls", "nothing_like_that", "--json").json == []
    assert pgps("type", "ls", "nothing_like_that").err == "no event types\n"


def test_the_show_of_a_type_names_everything_about_it(pgps: Pgps, quote: str, name: Name) -> None:
    sub = name("sub")
    pgps("sub", "create", sub, quote, "--where", "price < 1")
    out = pgps("type", "show", quote).out
    for text in ("Attributes", "not null", "Queues", f"{quote}_out", "Advertised by", "Privileges", sub, "price < 1"):
        assert text in out


def test_names_are_folded_as_in_sql(pgps: Pgps, quote: str) -> None:
    assert pgps("type", "show", quote.upper(), "--json").json["name"] == quote
    assert pgps("type", "show", f'"{quote.upper()}"').status == 1


def test_a_dry_run_finds_what_would_be_refused_and_changes_nothing(pgps: Pgps, name: Name) -> None:
    made = name()
    result = pgps("type", "create", made, "a int", "--dry-run", "--show-sql")
    assert result.out == f"select pgps.create_event_type(name => '{made}', attributes => 'a int');\n"
    assert result.err == f'dry run, nothing changed: event type "{made}" created\n'
    assert pgps("type", "show", made).status == 1
    assert pgps("type", "create", made, "a no_such_type", "--dry-run").status == 1


def test_a_change_tells_what_it_did_as_json(pgps: Pgps, name: Name) -> None:
    made = name()
    told = pgps("type", "create", made, "a int", "--json").json
    assert told == {"done": f'event type "{made}" created', "dry_run": False}


def test_attributes_are_added_and_dropped(pgps: Pgps, quote: str) -> None:
    assert pgps("type", "alter", quote, "--add", "volume bigint").status == 0
    assert "volume" in pgps("type", "ls", quote).out
    assert pgps("type", "alter", quote, "--drop", "volume").status == 0
    assert "volume" not in pgps("type", "ls", quote).out


def test_errors_have_the_sqlstate_when_it_is_asked_for(pgps: Pgps, quote: str) -> None:
    again = ["type", "create", quote, "a int"]
    assert "42710" not in pgps(*again).err
    assert "sqlstate: 42710" in pgps(*again, "--verbose").err
    assert '"sqlstate": "42710"' in pgps(*again, "--json").err
    assert '"sqlstate": "42710"' in pgps("--json", *again).err


def test_privileges_are_granted_and_revoked(
    pgps: Pgps, quote: str, role: Callable[..., str], admin: psycopg.Connection
) -> None:
    trader = role("trader")
    assert pgps("type", "grant", quote, "publish", "subscribe", "--role", trader).status == 0
    assert {"role": trader, "publish": True, "subscribe": True} in pgps("type", "show", quote, "--json").json[
        "privileges"
    ]
    assert pgps("type", "revoke", quote, "publish", "--role", trader).status == 0
    assert {"role": trader, "publish": False, "subscribe": True} in pgps("type", "show", quote, "--json").json[
        "privileges"
    ]
    assert pgps("type", "grant", quote, "publish", "--role", "no_such_role").status == 1


def test_a_role_sees_only_what_it_may(pgps: Pgps, quote: str, role: Callable[..., str], dsn: str) -> None:
    stranger = role("stranger")
    target = psycopg.conninfo.make_conninfo(dsn, user=stranger, password="test")
    assert pgps("type", "ls", quote, "--json", dsn=target).json == []
    assert pgps("type", "show", quote, dsn=target).status == 1
    pgps("type", "grant", quote, "subscribe", "-r", stranger)
    row = pgps("type", "ls", quote, "--json", dsn=target).json[0]
    assert (row["can_publish"], row["can_subscribe"]) == (False, True)


def test_a_role_without_rights_gets_a_status_too(pgps: Pgps, quote: str, role: Callable[..., str], dsn: str) -> None:
    target = psycopg.conninfo.make_conninfo(dsn, user=role("stranger"), password="test")
    result = pgps("status", "--json", dsn=target)
    assert result.status == 0
    # Other tests of this database leave event types that everybody may use.
    for_everybody = [row["name"] for row in pgps("type", "ls", "--json", dsn=target).json]
    assert quote not in for_everybody
    assert (result.json["revision"], result.json["event_types"]) == (None, len(for_everybody))


def test_policies_are_added_listed_and_removed(pgps: Pgps, quote: str, role: Callable[..., str]) -> None:
    trader = role("trader")
    added = ("type", "policy", "add", quote, "ibm", trader, "symbol = 'IBM'")
    assert pgps(*added).status == 0
    policy = pgps("type", "policy", "ls", quote, "--json").json[0]
    assert (policy["name"], policy["role"]) == ("ibm", trader)
    assert "IBM" in policy["using_expression"]
    assert pgps(*added).status == 1
    assert pgps("type", "policy", "rm", quote, "ibm").status == 0
    assert pgps("type", "policy", "ls", quote, "--json").json == []


def test_advertising_is_taken_back(pgps: Pgps, quote: str) -> None:
    assert pgps("type", "unadvertise", quote).status == 0
    assert pgps("type", "show", quote, "--json").json["advertisements"] == []
    refused = pgps("publish", quote, '{"symbol": "IBM"}')
    assert refused.status == 1
    assert "hint: " in refused.err


def test_a_type_in_use_is_dropped_only_by_cascade(pgps: Pgps, quote: str, name: Name) -> None:
    pgps("sub", "create", name("sub"), quote)
    assert pgps("type", "drop", quote).status == 1
    assert pgps("type", "drop", quote, "--cascade").status == 2
    assert pgps("type", "drop", quote, "--cascade", "--yes").status == 0


def test_a_name_that_needs_quotes_is_shown_as_it_is_typed(pgps: Pgps, name: Name) -> None:
    made = name("Odd Näme")
    assert pgps("type", "create", made, '"A b" int', "--advertise").status == 0
    assert pgps("type", "show", made, "--json").json["attributes"][0]["name"] == "A b"
    assert pgps("publish", made, '{"A b": 1}').status == 0
    assert pgps("type", "drop", made, "--cascade", "-y").status == 0
