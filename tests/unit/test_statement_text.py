"""Statements of the publish/subscribe language taken apart."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "sql" / "python"))
SqlTextError = importlib.import_module("lexer").SqlTextError
parse_filter = importlib.import_module("filter_text").parse_filter
parse_statement = importlib.import_module("statement_text").parse_statement

SUBSCRIPTION = {"scope": "local", "filter": None, "execute": None, "args": None, "priority": None}
PUBLICATION = {"visibility": None, "reliability": None, "columns": None, "count": 1}


def parts(statement: str) -> dict[str, Any]:
    result: dict[str, Any] = parse_statement(statement)
    return result


@pytest.mark.parametrize(
    ("statement", "fields"),
    [
        ("CREATE EVENT TYPE t AS (a1 integer, a2 text)", {"name": "t", "attributes": "a1 integer, a2 text"}),
        (
            "create event type \"T\" as ( price numeric(10,2) check (price > 0) -- not free\n, at date default ';' );",
            {"name": "T", "attributes": "price numeric(10,2) check (price > 0) -- not free\n, at date default ';'"},
        ),
        ("CREATE EVENT TYPE signal AS ()", {"name": "signal", "attributes": ""}),
    ],
)
def test_create_event_type(statement: str, fields: dict[str, Any]) -> None:
    assert parts(statement) == {"verb": "create_event_type", **fields}


@pytest.mark.parametrize(
    ("statement", "fields"),
    [
        ("DROP EVENT TYPE t", {"verb": "drop_event_type", "name": "t", "cascade": False}),
        ("DROP EVENT TYPE t RESTRICT", {"verb": "drop_event_type", "name": "t", "cascade": False}),
        ("drop event type t cascade;", {"verb": "drop_event_type", "name": "t", "cascade": True}),
        ("ALTER QUEUE q SET NON-AUDITABLE", {"verb": "alter_queue", "queue": "q", "auditable": False}),
        ("ALTER QUEUE q SET AUDITABLE", {"verb": "alter_queue", "queue": "q", "auditable": True}),
        ("alter/**/queue Q_in set non - auditable ;", {"verb": "alter_queue", "queue": "q_in", "auditable": False}),
        ("ADVERTISE t", {"verb": "advertise", "name": "t"}),
        ('advertise "select";', {"verb": "advertise", "name": "select"}),
        ("UNADVERTISE t", {"verb": "unadvertise", "name": "t"}),
        ("DROP RULE r", {"verb": "drop_rule", "name": "r"}),
        ("DROP SUBSCRIPTION s", {"verb": "drop_subscription", "name": "s"}),
    ],
)
def test_short_statements(statement: str, fields: dict[str, Any]) -> None:
    assert parts(statement) == fields


@pytest.mark.parametrize(
    ("statement", "fields"),
    [
        ("PUBLISH t (1, 'a')", {"event_type": "t", "values": "1, 'a'", "count": 2}),
        ("PUBLISH IMMEDIATE t (1)", {"event_type": "t", "visibility": "immediate", "values": "1"}),
        ("PUBLISH DEFERRED t (1)", {"event_type": "t", "visibility": "deferred", "values": "1"}),
        ("PUBLISH NON-GUARANTEED t (1)", {"event_type": "t", "reliability": "non-guaranteed", "values": "1"}),
        ("PUBLISH GUARANTEED t (1)", {"event_type": "t", "reliability": "guaranteed", "values": "1"}),
        (
            "PUBLISH DEFERRED NON-GUARANTEED t (1, f(2, 3), (select ')'), $$;$$);",
            {
                "event_type": "t",
                "visibility": "deferred",
                "reliability": "non-guaranteed",
                "values": "1, f(2, 3), (select ')'), $$;$$",
                "count": 4,
            },
        ),
        (
            "publish guaranteed immediate t (1)",
            {"event_type": "t", "visibility": "immediate", "reliability": "guaranteed", "values": "1"},
        ),
        ("PUBLISH immediate (1)", {"event_type": "immediate", "values": "1"}),
        ('PUBLISH "Immediate" (1)', {"event_type": "Immediate", "values": "1"}),
        ("PUBLISH non (1)", {"event_type": "non", "values": "1"}),
        ('PUBLISH t (a, "B") VALUES (1, 2)', {"event_type": "t", "columns": ["a", "B"], "values": "1, 2", "count": 2}),
        ("PUBLISH t (1 /* one */ -- or so\n)", {"event_type": "t", "values": "1"}),
    ],
)
def test_publish(statement: str, fields: dict[str, Any]) -> None:
    assert parts(statement) == {"verb": "publish", **PUBLICATION, **fields}


@pytest.mark.parametrize(
    ("operations", "found"),
    [
        ("INSERT", ["insert"]),
        ("UPDATE OR insert", ["insert", "update"]),
        ("{INSERT|UPDATE|DELETE}", ["insert", "update", "delete"]),
        ("delete, update", ["update", "delete"]),
    ],
)
def test_create_rule(operations: str, found: list[str]) -> None:
    statement = f"""
        CREATE RULE r AS ON {operations} TO shop."Order"
        WHERE new.publish between 1 and 2 and old.sum <> (case when new.ok then 1 end)
        PUBLISH t (new.sum, f(old.sum, 1), 'a, b' -- the last
        );"""
    assert parts(statement) == {
        "verb": "create_rule",
        "name": "r",
        "table": 'shop."Order"',
        "operations": found,
        "condition": "new.publish between 1 and 2 and old.sum <> (case when new.ok then 1 end)",
        "event_type": "t",
        "values": ["new.sum", "f(old.sum, 1)", "'a, b'"],
    }


def test_a_rule_needs_no_condition() -> None:
    result = parts("create rule r as on insert to orders publish t (new.a)")
    assert (result["condition"], result["values"]) == (None, ["new.a"])


@pytest.mark.parametrize(
    ("statement", "fields"),
    [
        ("CREATE SUBSCRIPTION s ON t", {"name": "s", "event_type": "t"}),
        ("CREATE LOCAL SUBSCRIPTION s ON t EXECUTE f()", {"name": "s", "event_type": "t", "execute": "f"}),
        (
            'CREATE GLOBAL SUBSCRIPTION s ON security* WHERE a = 1 EXECUTE my."F"(x, 2) WITH 5;',
            {
                "name": "s",
                "event_type": "security*",
                "scope": "global",
                "filter": "a = 1",
                "execute": 'my."F"',
                "args": "x, 2",
                "priority": 5,
            },
        ),
        ('CREATE SUBSCRIPTION s ON "Se*"', {"name": "s", "event_type": "Se*"}),
        ("CREATE SUBSCRIPTION s ON *", {"name": "s", "event_type": "*"}),
        ("CREATE SUBSCRIPTION s ON t WHERE a WITH -1", {"name": "s", "event_type": "t", "filter": "a", "priority": -1}),
        ("CREATE SUBSCRIPTION s ON t WITH PRIORITY 2", {"name": "s", "event_type": "t", "priority": 2}),
        (
            "CREATE SUBSCRIPTION s ON t WHERE execute = 1 or t.with is null EXECUTE f()",
            {"name": "s", "event_type": "t", "filter": "execute = 1 or t.with is null", "execute": "f"},
        ),
        (
            "CREATE SUBSCRIPTION s ON t WHERE at > timestamp with time zone 'now' -- or so\n WITH 1",
            {"name": "s", "event_type": "t", "filter": "at > timestamp with time zone 'now'", "priority": 1},
        ),
        (
            "CREATE SUBSCRIPTION s ON t WHERE a IN (WITH x AS (SELECT 1) SELECT execute execute FROM x) EXECUTE f()",
            {
                "name": "s",
                "event_type": "t",
                "filter": "a IN (WITH x AS (SELECT 1) SELECT execute execute FROM x)",
                "execute": "f",
            },
        ),
    ],
)
def test_create_subscription(statement: str, fields: dict[str, Any]) -> None:
    assert parts(statement) == {"verb": "create_subscription", **SUBSCRIPTION, **fields}


@pytest.mark.parametrize(
    ("rest", "fields"),
    [
        ("10.0.0.1 5432 USING bob Secret", {"address": "10.0.0.1", "user": "bob", "password": "Secret"}),
        (
            "db-1.example.com 5432 USING \"Bob\" 'a''b;'",
            {"address": "db-1.example.com", "user": "Bob", "password": "a'b;"},
        ),
        ("::1 5432 using 'bob' $ecret;", {"address": "::1", "user": "bob", "password": "$ecret"}),
        ("'/run/postgresql' 5432 using bob;", {"address": "/run/postgresql", "user": "bob", "password": None}),
        ("3com.example 5432 using bob E'\\x41'", {"address": "3com.example", "user": "bob", "password": "A"}),
    ],
)
def test_create_link(rest: str, fields: dict[str, Any]) -> None:
    assert parts(f"CREATE LINK l TO {rest}") == {"verb": "create_link", "name": "l", "port": 5432, **fields}


@pytest.mark.parametrize(
    ("statement", "verb", "privilege", "roles"),
    [
        ("GRANT PUBLISH ON EVENT TYPE t TO bob", "grant", "publish", ["bob"]),
        (
            'grant subscribe on event type t to "Bob", public, current_user;',
            "grant",
            "subscribe",
            ["Bob", "public", "current_user"],
        ),
        ("REVOKE PUBLISH ON EVENT TYPE t FROM bob", "revoke", "publish", ["bob"]),
    ],
)
def test_grant_and_revoke(statement: str, verb: str, privilege: str, roles: list[str]) -> None:
    assert parts(statement) == {"verb": verb, "privilege": privilege, "event_type": "t", "roles": roles}


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "-- nothing",
        "select 1",
        "\\d t",
        "{",
        "'",
        "create event trigger x on ddl_command_start execute function f()",
        "create rule r as on insert to t do instead nothing",
        "create rule r as on insert to t where new.publish do also insert into publish values (1)",
        "create or replace rule r as on insert to t do nothing",
        "drop rule r on t cascade",
        "drop rule if exists r on t",
        "create subscription s connection 'dbname=x' publication p",
        "drop subscription if exists s",
        "drop subscription s cascade",
        "create local temp table publish ()",
        "grant publish to bob",
        "grant select on t to bob",
        "revoke publish from bob",
        '"publish" t (1)',
        "published t (1)",
    ],
)
def test_ordinary_sql_has_no_verb(statement: str) -> None:
    assert parts(statement) == {"verb": None}


@pytest.mark.parametrize(
    ("statement", "position", "message"),
    [
        ("ALTER QUEUE q SET", 18, "at the end of the statement"),
        ("ALTER QUEUE q SET NON AUDITABLE", 19, '"NON"'),
        ("ADVERTISE t, u", 12, '","'),
        ("ADVERTISE select", 11, '"select"'),
        ("ADVERTISE 't'", 11, "'t'"),
        ("PUBLISH t (1", 13, "at the end of the statement"),
        ("PUBLISH t (1))", 14, '")"'),
        ("PUBLISH t (1; 2)", 13, '";"'),
        ("PUBLISH t ($1)", 12, '"$1"'),
        ("PUBLISH t (1,)", 13, '","'),
        ("PUBLISH t (1,,2)", 14, '","'),
        ("PUBLISH t (a]", 13, '"]"'),
        ("PUBLISH t VALUES (1)", 11, '"VALUES"'),
        ("PUBLISH IMMEDIATE DEFERRED t (1)", 19, '"DEFERRED"'),
        ("CREATE EVENT TYPE t (a int)", 21, '"("'),
        ("CREATE RULE r AS ON SELECT TO t PUBLISH e (1)", 21, '"SELECT"'),
        ("CREATE RULE r AS ON INSERT TO t WHERE PUBLISH e (1)", 52, "at the end of the statement"),
        ("CREATE RULE r AS ON {INSERT TO t PUBLISH e (1)", 29, '"TO"'),
        ("CREATE SUBSCRIPTION s ON t WHERE", 33, "at the end of the statement"),
        ("CREATE SUBSCRIPTION s ON t WHERE a) or (b", 35, '")"'),
        ("CREATE SUBSCRIPTION s ON t WHERE (a", 34, '"("'),
        ("CREATE SUBSCRIPTION s ON t WITH high", 33, '"high"'),
        ("CREATE SUBSCRIPTION s ON t EXECUTE f", 37, "at the end of the statement"),
        ("CREATE LINK l TO db port USING bob x", 21, '"port"'),
        ("GRANT PUBLISH ON t TO bob", 18, '"t"'),
        ("REVOKE PUBLISH ON EVENT TYPE t TO bob", 32, '"TO"'),
        ("ADVERTISE 'x", 11, "'x"),
        ("ADVERTISE t\x00", 12, "cannot store"),
    ],
)
def test_errors_say_what_and_where(statement: str, position: int, message: str) -> None:
    with pytest.raises(SqlTextError) as raised:
        parse_statement(statement)
    assert raised.value.sqlstate == "42601"
    assert raised.value.position == position
    assert message in raised.value.message
    assert raised.value.hint


def test_the_hint_is_the_right_syntax() -> None:
    with pytest.raises(SqlTextError) as raised:
        parse_statement("ALTER QUEUE q SET")
    assert raised.value.hint == "Syntax: ALTER QUEUE q SET [NON-AUDITABLE | AUDITABLE]"


@pytest.mark.parametrize(
    "statement", ["ADVERTISE t; DROP TABLE x", "CREATE SUBSCRIPTION s ON t WHERE a; DELETE FROM x"]
)
def test_a_second_statement_is_refused(statement: str) -> None:
    with pytest.raises(SqlTextError) as raised:
        parse_statement(statement)
    assert raised.value.hint == "Give one statement at a time."


HEADS = st.sampled_from(
    [
        "create event type t as (",
        "create subscription s on t where ",
        "create rule r as on insert to t where ",
        "create link l to ",
        "publish t (",
        "grant publish on event type t to ",
        "",
    ]
)
WORDS = st.sampled_from(
    "' '' \" $$ $1 -- /* */ \n ( ) [ ] { } ; , . : * - a 1 'a' or publish execute with time zone f( t( where using"
    " case end new.a immediate non guaranteed cascade \\".split(" ")
)


@given(head=HEADS, rest=st.lists(WORDS, max_size=15).map(" ".join))
def test_a_statement_taken_apart_is_whole_or_refused(head: str, rest: str) -> None:
    result: dict[str, Any] = {}
    try:
        result = parts(head + rest)
    except SqlTextError as error:
        position = error.position
    else:
        position = 1
    assert 1 <= position <= len(head + rest) + 1
    for expression in (result.get("filter"), result.get("condition")):
        message = ""
        try:
            parse_filter(expression or "true", "t", ["a"])
        except SqlTextError as error:
            message = error.message
        assert not re.search("unbalanced|unclosed|unterminated", message)
