"""An administrator of pgps is no superuser, and an event type is no way to become one; nor are names."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, column, endpoint, make_type, queue, quoted, refused, rows, value
from tests.fix_db import Connect
from tests.security.conftest import Mallory

NAMES = [
    'a"b',
    "it's",
    "x; drop schema pgps cascade; --",
    '"); drop table pgps._call; --',
    "$$ %I %s %L $1",
    "größe 価格 🐘",
    "E'\\n' \\",
    "SELECT",
    " pgps_admin ",
]


@pytest.fixture
def eve(mallory: Mallory) -> Mallory:
    """Mallory as a member of pgps_admin."""
    rows(mallory.admin, f"grant pgps_admin to {quoted(mallory.role)}")
    mallory.shadow()
    mallory.define("win()", "integer", "1")
    mallory.define("win(integer)", "boolean", "true")
    return mallory


def has_gained(eve: Mallory) -> bool:
    rows(eve.admin, "select pgps.dispatch()")
    return eve.has_won()


def test_a_rewrite_rule_on_the_table_of_a_coming_event_type_is_refused(eve: Mallory, name: Callable[..., str]) -> None:
    made = name()
    # Who has a table of her own may make rules.
    rows(eve.connection, f"create table {eve.schema}.own ()")
    rows(eve.connection, f"create table {endpoint(made)} (n integer, _producer text, _producer_seq bigint)")
    rows(
        eve.connection,
        f"create rule evil as on update to {endpoint(made)} do also "
        f"update pg_catalog.pg_authid set rolsuper = true where rolname = '{eve.role}'",
    )
    args = {"name": made, "visibility": "deferred", "reliability": "guaranteed", "persistent": True, "auditable": False}
    with refused("55000", made):
        rows(eve.connection, "select pgps._call('build_type', %s)", [Jsonb(args | {"handler": "all"})])
    rows(eve.connection, f"drop table {endpoint(made)}")


@pytest.mark.parametrize(
    "attributes",
    [
        "n integer default {schema}.win()",
        "n integer check ({schema}.win(n))",
        "n text default pg_read_file('PG_VERSION')",
        "n xml default query_to_xml('select * from pg_authid', true, true, '')",
        "n integer, check (n operator({schema}.>) 1)",
        "n {schema}.yes",
        "n {schema}.yes[]",
        "n {schema}.pair",
        "n {schema}.mood",
    ],
)
def test_types_and_expressions_that_could_do_more_than_compute_are_refused(
    eve: Mallory, name: Callable[..., str], attributes: str
) -> None:
    rows(eve.connection, f"create domain {eve.schema}.yes as integer check ({eve.schema}.win(value))")
    rows(eve.connection, f"create type {eve.schema}.pair as (a integer, b {eve.schema}.yes)")
    rows(eve.connection, f"create type {eve.schema}.mood as enum ('sad')")
    eve.define(f"tell({eve.schema}.mood)", "json", "'1'")
    rows(eve.connection, f"create cast ({eve.schema}.mood as json) with function {eve.schema}.tell({eve.schema}.mood)")
    text, made = attributes.format(schema=eve.schema), name()
    with refused("42501"):
        call(eve.connection, "create_event_type", made, text, visibility="immediate")
    call(eve.connection, "create_event_type", made, "m integer")
    call(eve.connection, "advertise", made)
    rows(eve.connection, f"insert into {endpoint(made)} values (1)")
    if "," not in text:
        with refused("42501"):
            call(eve.connection, "alter_event_type", made, add_attribute=text)
    assert not has_gained(eve)


def test_ordinary_defaults_and_checks_are_for_administrators_too(eve: Mallory, name: Callable[..., str]) -> None:
    made = name()
    call(
        eve.connection, "create_event_type", made,
        "id uuid default gen_random_uuid(), at timestamptz not null default now(), "
        "n integer default 1 check (n between 0 and 9), "
        "word text check (lower(word) = word), day date default '2020-01-01' check (day > '2000-01-01')",
    )  # fmt: skip
    call(eve.connection, "advertise", made)
    rows(eve.connection, f"insert into {endpoint(made)} (word) values ('a')")
    call(eve.connection, "alter_event_type", made, add_attribute="until timestamptz default clock_timestamp()")
    assert rows(eve.connection, f"select n, word, until is not null from {queue(made, 'in')}") == [(1, "a", True)]


def test_a_table_that_stands_in_for_an_added_attribute_is_the_callers(eve: Mallory, name: Callable[..., str]) -> None:
    made = name()
    make_type(eve.admin, made)
    stand_in = value(eve.admin, "select pgps._scratch_name(%s)", [made])
    rows(eve.admin, f"create table {endpoint(stand_in)} (x integer)")
    with refused("55000", stand_in):
        rows(
            eve.connection,
            "select pgps._call('apply_attribute', %s)",
            [Jsonb({"name": made, "add": "x", "attributes": ["x"]})],
        )
    assert value(eve.admin, "select to_regclass(%s) is not null", [endpoint(stand_in)]) is True
    rows(eve.admin, f"drop table {endpoint(stand_in)}")


def test_the_search_path_of_a_policy_leads_nothing_astray(eve: Mallory) -> None:
    rows(eve.connection, f"set search_path = {eve.schema}, pg_catalog")
    call(eve.connection, "create_policy", quoted(eve.event_type), "p", eve.role, "n = 1")
    assert not has_gained(eve)


@pytest.mark.parametrize("text", NAMES)
def test_any_name_is_a_name_and_nothing_else(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str], text: str
) -> None:
    suffix = name("").rsplit("_", 1)[1]
    event_type = f"{text}{suffix}"[-40:] if len(text.encode()) < 36 else text
    strange = role(text)
    admin, other = mallory.admin, connect(strange)
    try:
        make_type(admin, event_type, f"n integer, {quoted(text)} text default 'x', {quoted(text + '2')} integer")
        rows(admin, f"grant insert, select on {endpoint(event_type)} to {quoted(strange)}")
        call(other, "advertise", quoted(event_type))
        call(admin, "create_policy", quoted(event_type), quoted(text), strange, f"{quoted(text)} <> 'hidden'")
        call(other, "subscribe", quoted(text + suffix), quoted(event_type), f"{quoted(text)} = 'it''s' and n > 0")
        call(other, "subscribe", quoted(suffix + text), quoted(event_type), f"exists (select) and {quoted(text)} > ''")
        rows(
            other,
            f"insert into {endpoint(event_type)} (n, {quoted(text)}) values (1, 'it''s'), (2, 'hidden'), (0, 'b')",
        )
        call(other, "publish", quoted(event_type), Jsonb({"n": 3, text: "it's"}))
        rows(admin, "select pgps.dispatch()")
        got = column(other, "select payload from pgps.receive(%s)", [quoted(text + suffix)])
        assert [(p["n"], p[text]) for p in got] == [(1, "it's"), (3, "it's")]
        got = column(other, "select payload from pgps.receive(%s)", [quoted(suffix + text)])
        assert [p["n"] for p in got] == [1, 0, 3]
        call(other, "ack", quoted(text + suffix))
        call(admin, "alter_event_type", quoted(event_type), add_attribute=f"{quoted(text + '3')} text")
        assert column(other, f"select n from {queue(event_type, 'in')}") == [1, 0, 3]
        call(admin, "drop_policy", quoted(event_type), quoted(text))
    finally:
        call(admin, "drop_event_type", quoted(event_type), cascade=True)
    assert value(admin, "select count(*) > 5 from pgps_internal.setting")


def test_names_of_rules_and_links_are_names(mallory: Mallory, name: Callable[..., str]) -> None:
    rows(mallory.admin, f"create table {mallory.schema}.{quoted(NAMES[2])} ({quoted(NAMES[0])} integer)")
    table = f"{mallory.schema}.{quoted(NAMES[2])}"
    for text in NAMES:
        call(
            mallory.admin,
            "create_rule",
            quoted(text),
            table,
            "insert or update",
            quoted(mallory.event_type),
            [f"new.{quoted(NAMES[0])}"],
        )
        rows(mallory.admin, f"insert into {table} values (1)")
        rows(mallory.admin, f"update {table} set {quoted(NAMES[0])} = 2")
        call(mallory.admin, "drop_rule", quoted(text))
        call(mallory.admin, "create_link", quoted(text), "host=nowhere")
        call(mallory.admin, "drop_link", quoted(text))
    assert value(mallory.admin, f"select count(*) from {queue(mallory.event_type, 'in')}") > len(NAMES)


@pytest.mark.parametrize(
    ("text", "sqlstate"), [("", "42602"), ("a*", "42602"), ("a\nb", "42602"), ("x" * 41, "42622"), (None, "22023")]
)
def test_what_is_no_name_is_refused(admin: psycopg.Connection, text: str | None, sqlstate: str) -> None:
    with refused(sqlstate):
        call(admin, "create_event_type", text, "n integer")
