"""`pgps sub`, `pgps exceptions`, `pgps queue`, `pgps rule`, `pgps config`."""

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


@pytest.fixture
def failed(quote: str, name: Name, done: Done, admin: psycopg.Connection) -> tuple[str, str]:
    """An event type, and a subscription whose function failed on two of its events."""
    sub, boom = name("sub"), name("boom")
    admin.execute(
        f"""
        create function public.{boom}(e pgps_event.{quote}) returns void language plpgsql as
        'begin raise exception ''no %'', e.symbol using errcode = ''P0777''; end'
        """.encode()
    )
    done("sub", "create", sub, quote, "--execute", f"public.{boom}", "--max-attempts", "1")
    done("publish", quote, '[{"symbol": "A"}, {"symbol": "B"}]')
    admin.execute("select pgps.dispatch()")
    admin.execute("call pgps.run_subscribers()")
    return quote, sub


def test_a_subscription_is_created_shown_and_removed(pgps: Pgps, quote: str, name: Name) -> None:
    sub = name("sub")
    assert pgps("sub", "create", sub, quote, "-w", "price < 80", "--priority", "3").status == 0
    row = pgps("sub", "show", sub, "--json").json
    assert (row["name"], row["event_type"], row["kind"], row["priority"]) == (sub, quote, "external", 3)
    assert "price < 80" in pgps("sub", "ls", "--type", quote).out
    refused = pgps("sub", "rm", sub)
    assert (refused.status, "--yes" in refused.err) == (2, True)
    assert pgps("sub", "rm", sub, "--yes").status == 0
    assert pgps("sub", "show", sub).err == f'error: subscription "{sub}" does not exist\nhint: pgps sub ls\n'


@pytest.mark.parametrize(
    ("predicate", "sqlstate"),
    [("prise < 80", "42703"), ("price <", "42601"), ("price", "42804"), ("true); select (true", "42601")],
)
def test_a_filter_that_does_not_compile_is_refused(
    pgps: Pgps, quote: str, name: Name, predicate: str, sqlstate: str
) -> None:
    result = pgps("sub", "create", name("sub"), quote, "--where", predicate, "--verbose")
    assert result.status == 1
    assert f"sqlstate: {sqlstate}" in result.err


def test_a_subscription_is_paused_resumed_and_moved(pgps: Pgps, quote: str, name: Name) -> None:
    sub = name("sub")
    pgps("sub", "create", sub, quote)
    assert pgps("sub", "pause", sub).status == 0
    assert [row["name"] for row in pgps("sub", "ls", "--type", quote, "--state", "paused", "--json").json] == [sub]
    assert f"hint: pgps sub resume {sub}" in pgps("sub", "show", sub).err
    assert pgps("sub", "resume", sub).status == 0
    assert pgps("sub", "seek", sub, "earliest").status == 0
    assert pgps("sub", "seek", sub, "sometime").status == 1


def test_a_subscription_on_a_pattern_is_listed_with_the_types_it_fits(pgps: Pgps, quote: str, name: Name) -> None:
    sub = name("sub")
    pgps("sub", "create", sub, quote + "*")
    assert [row["name"] for row in pgps("sub", "ls", "--type", quote, "--json").json] == [sub]
    assert sub in pgps("type", "show", quote).out
    pgps("sub", "rm", sub, "-y")


def test_explain_tells_why_an_event_reached_a_subscription_or_not(
    pgps: Pgps, quote: str, name: Name, admin: psycopg.Connection
) -> None:
    sub = name("sub")
    pgps("sub", "create", sub, quote, "--where", "price < 80")
    event = pgps("publish", quote, '{"symbol": "A", "price": 90}', "--json").json["last_event_id"]
    admin.execute("select pgps.dispatch()")
    steps = pgps("sub", "explain", sub, str(event), "--json").json
    assert steps
    assert set(steps[0]) == {"step", "outcome"}


def test_exceptions_are_listed_retried_and_discarded(pgps: Pgps, failed: tuple[str, str]) -> None:
    quote, sub = failed
    rows = pgps("exceptions", "ls", "--type", quote, "--json").json
    assert [(row["subscription"], row["sqlstate"], row["error"]) for row in rows] == [
        (sub, "P0777", "no A"),
        (sub, "P0777", "no B"),
    ]
    assert "no A" in pgps("exceptions", "ls", "--sub", sub).out
    shown = pgps("exceptions", "show", quote, str(rows[1]["event_id"]), "--json").json
    assert [(row["error"], row["payload"]) for row in shown] == [("no B", {"symbol": "B", "price": None})]
    assert "no B" in pgps("exceptions", "show", quote, str(rows[1]["event_id"])).out
    assert f"hint: pgps exceptions ls --sub {sub}" in pgps("sub", "show", sub).err

    assert pgps("exceptions", "retry", quote, str(rows[0]["event_id"]), "--json").json["value"] == 1
    assert pgps("exceptions", "discard", quote).status == 2
    assert pgps("exceptions", "discard", quote, "--sub", sub, "--yes", "--json").json["value"] == 1
    # What was put back is not discarded: it goes to the subscriber once more.
    left = pgps("exceptions", "ls", "--type", quote, "--json").json
    assert [row["event_id"] for row in left] == [rows[0]["event_id"]]


def test_a_queue_shows_its_events_and_is_changed(pgps: Pgps, quote: str) -> None:
    pgps("publish", quote, '[{"symbol": "A"}, {"symbol": "B"}]')
    queue = f"{quote}_in"
    shown = pgps("queue", "show", queue, "--limit", "1", "--json").json
    assert shown["depth"] == 2
    assert [event["symbol"] for event in shown["events"]] == ["B"]
    assert pgps("queue", "show", queue).out.count(" waiting") == 2
    assert pgps("queue", "set", queue, "--auditable", "--retention", "30 days").status == 0
    row = pgps("queue", "ls", "--type", quote, "--json").json[0]
    assert (row["queue"], row["auditable"], row["retention"]) == (queue, True, "30 days")
    assert pgps("queue", "set", queue, "--retention", "soon").status == 1
    assert pgps("queue", "show", "no_such_queue").status == 1


def test_a_rule_publishes_until_it_is_removed(pgps: Pgps, quote: str, name: Name, admin: psycopg.Connection) -> None:
    table, rule = name("prices"), name("rule")
    admin.execute(f"create table public.{table} (s text, p numeric)".encode())
    made = ("rule", "create", rule, f"public.{table}", "insert,update", quote, "new.s", "new.p", "-w", "new.p > 5")
    assert pgps(*made).status == 0
    row = pgps("rule", "ls", "--type", quote, "--json").json[0]
    assert (row["name"], row["attributes"]) == (rule, ["new.s", "new.p"])
    admin.execute(f"insert into public.{table} values ('A', 1), ('B', 9)".encode())
    assert pgps("queue", "show", f"{quote}_in", "--json").json["depth"] == 1
    assert pgps("rule", "rm", rule).status == 0
    assert pgps("rule", "rm", rule).status == 1


def test_settings_are_listed_and_changed(pgps: Pgps) -> None:
    before = {row["name"]: row["value"] for row in pgps("config", "ls", "--json").json}
    name, value = "max_batch_events", "123"
    assert pgps("config", "set", name, value).status == 0
    assert {row["name"]: row["value"] for row in pgps("config", "ls", "--json").json}[name] == value
    assert pgps("config", "set", name, before[name]).status == 0
    assert pgps("config", "set", "no_such_setting", "1").status == 1
