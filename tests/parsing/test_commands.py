"""The command line on a server without PL/Python: what needs to be parsed is parsed by the way."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.cli.conftest import Pgps, pgps, pgps_without_database  # noqa: F401 - fixtures

pytestmark = pytest.mark.timeout(600)

TYPE = "create event type quote as (symbol text not null, price numeric); advertise quote"


def names(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("select name from pgps.subscriptions order by name")]


@pytest.fixture
def run(pgps_without_database: Pgps, bare: str) -> Pgps:  # noqa: F811 - the fixture
    """Run `pgps` on a server without PL/Python."""

    def called(*arguments: str, stdin: str | bytes = "", dsn: str | None = None) -> object:
        return pgps_without_database(*arguments, stdin=stdin, dsn=dsn or bare)

    return called  # type: ignore[return-value]


def reader(run: Pgps, bare: str) -> str:
    """Make the event type, and a role that may subscribe to it and log in; return how it connects."""
    assert run("sql", "-c", TYPE).status == 0
    with psycopg.connect(bare, autocommit=True) as connection:
        if connection.execute("select to_regrole('reader_here') is null").fetchone() == (True,):
            connection.execute("create role reader_here login")
        connection.execute("grant select on pgps_event.quote to reader_here")
    return psycopg.conninfo.make_conninfo(bare, user="reader_here")


def test_the_shell_takes_the_language_and_sql(run: Pgps, bare: str) -> None:
    done = run(
        "sql",
        "-c", f"{TYPE}; create subscription dear on quote where price > 100",
        "-c", "select pgps.subscribe('cheap', 'quote', filter => 'price < 5')",
        "-c", "begin; select pgps.subscribe('undone', 'quote', filter => 'price < 4'); rollback",
        "-c", "begin; create subscription done on quote where price < 3; commit; vacuum pg_class",
    )  # fmt: skip
    assert (done.status, done.err.count("error:")) == (0, 0), done.err
    assert names(bare) == ["cheap", "dear", "done"]


def test_a_whole_script_is_one_transaction(run: Pgps, bare: str) -> None:
    script = f"{TYPE}; create subscription dear on quote where price > 100; select pgps.nothing();"
    assert run("sql", "--single-transaction", stdin=script).status == 1
    assert names(bare) == []
    assert run("sql", "--single-transaction", stdin=script.replace("select pgps.nothing();", "")).status == 0
    assert names(bare) == ["dear"]


def test_passwords_in_statements_are_neither_kept_nor_told(run: Pgps, bare: str) -> None:
    done = run("sql", "-c", "create link away to 'broker.example' 5432 using 'peer' 'geheim'")
    assert done.status == 0, done.err
    with psycopg.connect(bare) as connection:
        query = "select count(*) from pgps_internal.parsed_text p where p::text like '%geheim%'"
        assert connection.execute(query.encode()).fetchone() == (0,)


def test_commands_that_define_something_do_it_at_once(run: Pgps, bare: str) -> None:
    assert run("type", "create", "quote", "symbol text not null, price numeric").status == 0
    assert run("type", "advertise", "quote").status == 0
    assert run("sub", "create", "dear", "quote", "--where", "price > 100", "--dry-run").status == 0
    assert names(bare) == []
    done = run("sub", "create", "dear", "quote", "--where", "price > 100")
    assert (done.status, names(bare)) == (0, ["dear"]), done.err


def test_a_role_without_the_right_is_told_what_to_ask_for(run: Pgps, bare: str) -> None:
    as_reader = reader(run, bare)
    call = ("sql", "-c", "select pgps.subscribe('mine', 'quote', filter => 'price > 100')")
    refused = run("--json", *call, dsn=as_reader)
    assert refused.status == 1
    error = json.loads(refused.err.splitlines()[-1])
    assert error["sqlstate"] == "0A000"
    assert "pgps parse" in error["hint"]
    assert run("parse", error["detail"], dsn=as_reader).status == 1
    stored = run("parse", "-", stdin=error["detail"])
    assert (stored.status, stored.err) == (0, "stored 1 results\n")
    done = run(*call, dsn=as_reader)
    assert (done.status, names(bare)) == (0, ["mine"]), done.err


def test_an_administrator_parses_a_statement_before_somebody_executes_it(run: Pgps, bare: str) -> None:
    as_reader = reader(run, bare)
    with psycopg.connect(bare, autocommit=True) as connection:
        connection.execute("create or replace function public.note(price numeric) returns void language sql as ''")
    text = "select pgps.subscribe('mine', 'quote', filter => 'price > 100', execute => 'note(price)')"
    assert run("parse", "--command", text).status == 0
    assert names(bare) == []
    done = run("sql", "-c", text, dsn=as_reader)
    assert (done.status, names(bare)) == (0, ["mine"]), done.err


def test_a_role_defines_while_another_connection_stores(run: Pgps, bare: str) -> None:
    as_reader = reader(run, bare)
    done = run("sql", "--parse-as", bare, "-c", "create subscription mine on quote where price > 7", dsn=as_reader)
    assert (done.status, names(bare)) == (0, ["mine"]), done.err


def test_nothing_to_parse_is_said(run: Pgps) -> None:
    assert run("parse").status == 2
    assert run("parse", "At character 3 of the text.").status == 2
    assert run("parse", "--missing").err == "stored 0 results\n"


def test_doctor_finds_it_well_and_says_what_is_unknown(run: Pgps) -> None:
    found = run("--json", "doctor")
    findings = {one["check"]: one for one in json.loads(found.out)}
    assert findings["plpython3u"]["level"] == "ok"
    assert findings["disk"]["level"] == "note"
    assert "unknown" in findings["disk"]["message"]
    assert found.status == 0


def test_status_and_metrics_are_as_anywhere(run: Pgps) -> None:
    assert run("status").status == 0
    assert run("metrics", "--once").status == 0
