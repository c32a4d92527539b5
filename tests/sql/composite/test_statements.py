"""Composite events and rules on events in the statement language."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, make_type, refused, rows, value
from tests.fix_db import Connect


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "quote", "symbol text not null, price numeric")
    return connection


def test_a_composite_event_and_a_rule_are_stated_and_run(broker: psycopg.Connection) -> None:
    tag = call(
        broker, "execute",
        "CREATE COMPOSITE EVENT rise ON quote a ; quote b CONTEXT chronicle PARTITION BY symbol WITHIN '1 day' "
        "WHERE b.price > a.price AS (symbol text = a.symbol, by numeric = b.price - a.price);",
    )  # fmt: skip
    assert tag == "CREATE COMPOSITE EVENT"
    rows(broker, "create table public.told (symbol text, amount numeric)")
    rows(
        broker,
        "create function public.tell(s text, n numeric) returns void language sql as "
        "$$ insert into public.told values (s, n) $$",
    )
    rule = "create rule big on rise where by > 5 execute public.tell(symbol, by) coupling detached with 3"
    assert call(broker, "execute", rule) == "CREATE RULE"
    assert rows(broker, "select kind, priority from pgps.subscriptions where name = 'big'") == [("internal", 3)]
    rows(broker, "insert into pgps_event.quote values ('A', 1), ('B', 1), ('A', 10), ('B', 2)")
    for _ in range(2):
        rows(broker, "select pgps.dispatch()")
    rows(broker, "call pgps.run_subscribers()")
    assert rows(broker, "select * from public.told") == [("A", 9)]
    found = rows(broker, "select context, partition_by, within::text, filter from pgps.composite_events")
    assert found == [("chronicle", "symbol", "1 day", "b.price > a.price")]
    assert call(broker, "execute", "drop rule big") == "DROP RULE"
    assert value(broker, "select count(*) from pgps.subscriptions") == 0


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE COMPOSITE EVENT x ON",
        "CREATE COMPOSITE EVENT ON quote",
        "CREATE COMPOSITE EVENT x ON quote CONTEXT recent WITHIN 5",
        "CREATE COMPOSITE EVENT x ON quote AS symbol",
        "CREATE RULE r ON quote EXECUTE f",
        "CREATE RULE r ON quote EXECUTE f() COUPLING loose",
    ],
)
def test_a_statement_that_is_none_is_refused_with_its_syntax(broker: psycopg.Connection, statement: str) -> None:
    with refused("42601", "syntax error"):
        call(broker, "execute", statement)


def test_words_of_the_clauses_may_be_aliases(broker: psycopg.Connection) -> None:
    call(broker, "execute", "create global composite event x on quote within << quote context where within.price > 0")
    found = rows(broker, "select expression, scope from pgps.composite_events")
    assert found == [("quote within ; quote context", "global")]
