"""Event types: create, alter, drop, and their queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import (
    call,
    endpoint,
    make_type,
    publish,
    queue,
    quoted,
    receive,
    refused,
    rows,
    take,
    value,
)
from tests.fix_db import Connect

Name = Callable[..., str]


def test_a_created_type_is_in_the_catalogue_with_its_queues(admin: psycopg.Connection, name: Name) -> None:
    made = name("quote")
    call(admin, "create_event_type", made, "symbol text not null, price numeric default 1.5 check (price > 0)")
    found = rows(
        admin,
        """
        select attributes, visibility, reliability, persistent, auditable, handler
        from pgps.event_types where name = %s
        """,
        [made],
    )
    attributes = [(a["name"], a["type"], a["not_null"], a["default"]) for a in found[0][0]]
    assert attributes == [("symbol", "text", True, None), ("price", "numeric", False, "1.5")]
    assert found[0][1:] == ("deferred", "guaranteed", True, False, "all")
    kinds = rows(admin, "select kind, queue, depth from pgps.queues where event_type = %s order by kind", [made])
    assert kinds == [(k, f"{made}_{k}", 0) for k in ("exception", "in", "out")]


def test_a_constraint_on_more_than_one_event_is_not_kept_and_warned_of(admin: psycopg.Connection, name: Name) -> None:
    tick, said = name(), list[str]()
    rows(admin, f"create table public.{tick} (n integer primary key)")
    admin.add_notice_handler(lambda notice: said.append(f"{notice.severity}: {notice.message_primary}"))
    make_type(admin, tick, f"id integer primary key, n integer references public.{tick}, u text unique check (u <> '')")
    (warned,) = [each for each in said if each.startswith("WARNING")]
    assert all(each in warned for each in ("_pkey", "_n_fkey", "_u_key"))
    rows(admin, f"truncate public.{tick}")
    rows(admin, f"insert into {endpoint(tick)} values (1, 1, 'x'), (1, 1, 'x')")
    for broken, sqlstate in (("null, 1, 'x'", "23502"), ("1, 1, ''", "23514")):
        with pytest.raises(psycopg.IntegrityError) as caught:
            rows(admin, f"insert into {endpoint(tick)} values ({broken})")
        assert caught.value.sqlstate == sqlstate
    rows(admin, f"drop table public.{tick}")


def test_names_are_folded_like_identifiers(admin: psycopg.Connection, name: Name) -> None:
    made = name("fold")
    call(admin, "create_event_type", made.upper(), 'N integer, "N" text')
    assert value(admin, "select count(*) from pgps.event_types where name = %s", [made]) == 1
    attributes = value(admin, "select attributes from pgps.event_types where name = %s", [made])
    assert [a["name"] for a in attributes] == ["n", "N"]


@pytest.mark.parametrize(
    "odd", ["with space", 'quo"te', "Ünïcode ☃", "Select", "semi;colon", "per%cent", "back\\slash"]
)
def test_a_name_may_have_quotes_spaces_and_unicode(admin: psycopg.Connection, name: Name, odd: str) -> None:
    made = name(odd)
    make_type(admin, made, f"n integer, {quoted(odd)} text")
    call(admin, "subscribe", quoted(f"s {made}"), quoted(made), filter=f"{quoted(odd)} = 'it''s'")
    rows(admin, f"insert into {endpoint(made)} (n, {quoted(odd)}) values (1, 'it''s'), (2, 'no')")
    rows(admin, "select pgps.dispatch()")
    assert receive(admin, quoted(f"s {made}")) == [{"n": 1, odd: "it's"}]
    assert value(admin, f"select count(*) from {queue(made, 'out')}") == 1
    call(admin, "alter_event_type", quoted(made), f"{quoted(odd + '2')} integer")
    assert receive(admin, quoted(f"s {made}")) == [{"n": 1, odd: "it's", odd + "2": None}]
    call(admin, "unsubscribe", quoted(f"s {made}"))
    call(admin, "drop_event_type", quoted(made), True)
    assert value(admin, "select to_regclass(%s)", [endpoint(made)]) is None


@pytest.mark.parametrize(
    ("given", "sqlstate"),
    [(None, "22023"), ("", "42602"), ("x" * 41, "42622"), ("a*", "42602"), ("ä" * 21, "42622"), ("a\nb", "42602")],
)
def test_a_bad_name_is_refused(admin: psycopg.Connection, given: str | None, sqlstate: str) -> None:
    with refused(sqlstate):
        call(admin, "create_event_type", given, "n integer")


def test_a_name_of_forty_bytes_works_throughout(admin: psycopg.Connection, name: Name) -> None:
    made = name("x" * 20)
    made = name("x" * (20 + 40 - len(made)))[:40]
    assert len(made) == 40
    make_type(admin, made)
    call(admin, "subscribe", made, made)
    publish(admin, made, 1)
    assert take(admin, made) == [1]
    call(admin, "alter_event_type", made, "b text")
    call(admin, "drop_event_type", made, True)


@pytest.mark.parametrize(
    ("attributes", "options", "sqlstate"),
    [
        (None, {}, "22023"),
        ("n integer", {"visibility": "never"}, "22023"),
        ("n integer", {"visibility": None}, "22023"),
        ("n integer", {"reliability": "sometimes"}, "22023"),
        ("n integer", {"handler": "nobody"}, "22023"),
        ("n no_such_type", {}, "42704"),
        ("n integer, n text", {}, "42701"),
        ("n integer); drop table x; --", {}, "42601"),
        ("pgps_x integer", {}, "42939"),
        ("event_id integer", {}, "42939"),
        ("_producer integer", {}, "42701"),
        ("n integer); create table public.{t} (b integer", {}, "42601"),
        ("n integer) inherits (pg_catalog.pg_class", {}, "42601"),
        ("n integer as (select 1)", {}, "42601"),
        ("like pg_catalog.pg_class", {}, "0A000"),
        ("n integer generated always as identity", {}, "0A000"),
        ("n integer default $1", {}, "42601"),
    ],
)
def test_a_bad_definition_is_refused_and_leaves_nothing(
    admin: psycopg.Connection, name: Name, attributes: str | None, options: dict[str, Any], sqlstate: str
) -> None:
    made = name()
    with refused(sqlstate):
        call(admin, "create_event_type", made, attributes and attributes.replace("{t}", made), **options)
    assert value(admin, "select to_regclass(%s)", [endpoint(made)]) is None
    assert value(admin, "select to_regclass(%s)", [f"public.{quoted(made)}"]) is None
    assert value(admin, "select count(*) from pgps.event_types where name = %s", [made]) == 0


def test_a_list_with_a_statement_in_it_is_refused_with_its_place(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    for refuse, function, args in (
        ("create", "create_event_type", (made, "a int); create table public.x (b int")),
        ("alter", "alter_event_type", (made, "c int; drop table public.x")),
        ("execute", "execute", (f"CREATE EVENT TYPE {made}_2 AS (a int) TABLESPACE x",)),
    ):
        if refuse == "alter":
            make_type(admin, made)
        with refused("42601") as caught:
            call(admin, function, *args)
        assert caught.value.diag.message_hint, refuse
        if refuse != "execute":
            assert "attribute list" in str(caught.value.diag.message_primary)
            assert caught.value.diag.message_detail == "At character 6 of the text."


@pytest.mark.parametrize("setting", ["on", "off"])
def test_constants_in_a_definition_mean_the_same_under_any_setting(connect: Connect, name: Name, setting: str) -> None:
    admin, made = connect(), name()
    rows(admin, f"set standard_conforming_strings = {setting}")
    text = "n integer, a text default 'back\\', b text default 'x); drop table y; --' check (b <> $$it's$$)"
    make_type(admin, made, text)
    rows(admin, f"insert into {endpoint(made)} (n) values (1)")
    assert rows(admin, f"select a, b from {queue(made, 'in')}") == [("back\\", "x); drop table y; --")]


def test_what_a_definition_made_is_compared_with_what_was_asked_for(admin: psycopg.Connection, name: Name) -> None:
    for columns, asked in (
        ("n integer", ["n"]),
        ("n integer, _producer text", ["n"]),
        ("n integer, _producer_seq bigint, _producer text", ["n"]),
        ("n integer, _producer text, _producer_seq integer", ["n"]),
        ("n integer, _producer text, _producer_seq bigint not null", ["n"]),
        ("n integer, _producer text default 'x', _producer_seq bigint", ["n"]),
        ("n integer, m integer, _producer text, _producer_seq bigint", ["n"]),
        ("m integer, n integer, _producer text, _producer_seq bigint", ["n", "m"]),
        ("n integer, _producer text, _producer_seq bigint, m integer", ["n", "m"]),
        ("n integer generated always as (1) stored, _producer text, _producer_seq bigint", ["n"]),
    ):
        made = name()
        rows(admin, f"create table {endpoint(made)} ({columns})")
        args = {
            "name": made, "attributes": asked, "visibility": "deferred", "reliability": "guaranteed",
            "persistent": True, "auditable": False, "handler": "all",
        }  # fmt: skip
        with refused("55000", made):
            rows(admin, "select pgps._call('build_type', %s)", [Jsonb(args)])
        rows(admin, f"drop table {endpoint(made)}")


def test_a_second_type_of_one_name_is_refused(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    make_type(admin, made)
    with refused("42710", made, "alter_event_type"):
        call(admin, "create_event_type", made, "n integer")


def test_two_sessions_that_create_one_name_at_once_make_one_type(connect: Connect, name: Name) -> None:
    made = name()
    first, second = connect(autocommit=False), connect(autocommit=False)
    call(first, "create_event_type", made, "n integer")
    second.execute("set local lock_timeout = '100ms'")
    with pytest.raises(psycopg.Error):
        call(second, "create_event_type", made, "n integer")
    second.rollback()
    first.commit()
    with refused("42710", made):
        call(second, "create_event_type", made, "n integer")


def test_only_an_administrator_creates_alters_and_drops(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Name
) -> None:
    made, other = name(), name()
    make_type(admin, made)
    nobody = connect(role("nobody"))
    for function, args in (
        ("create_event_type", (other, "n integer")),
        ("alter_event_type", (made, "b integer")),
        ("drop_event_type", (made,)),
        ("alter_queue", (f"{made}_in", True)),
    ):
        with refused("42501", "pgps_admin"):
            call(nobody, function, *args)
    member = connect(role("chief", "pgps_admin"))
    make_type(member, other)
    call(member, "alter_event_type", other, "b integer")
    call(member, "alter_queue", f"{other}_in", True)
    call(member, "drop_event_type", other)


def test_a_type_that_is_needed_is_not_dropped(admin: psycopg.Connection, name: Name) -> None:
    made, subscription = name(), name("s")
    make_type(admin, made)
    call(admin, "subscribe", subscription, made)
    with refused("2BP01", subscription, "cascade"):
        call(admin, "drop_event_type", made)
    call(admin, "unsubscribe", subscription)
    publish(admin, made, 1)
    with refused("2BP01", "not delivered", "cascade"):
        call(admin, "drop_event_type", made)
    rows(admin, "select pgps.dispatch()")
    call(admin, "drop_event_type", made)
    with refused("42704", made):
        call(admin, "drop_event_type", made)


def test_dropping_with_cascade_takes_subscriptions_rules_and_events_along(
    admin: psycopg.Connection, name: Name
) -> None:
    made, other = name(), name()
    for each in (made, other):
        make_type(admin, each)
        call(admin, "subscribe", each, each)
    rows(admin, f"create table public.t_{made} (n integer)")
    call(admin, "create_rule", made, f"t_{made}", "insert", made, ["new.n"])
    publish(admin, made, 1)
    publish(admin, other, 2)
    call(admin, "drop_event_type", made, True)
    assert value(admin, "select count(*) from pgps.subscriptions where name = %s", [made]) == 0
    assert value(admin, "select count(*) from pgps.rules where name = %s", [made]) == 0
    rows(admin, f"insert into public.t_{made} values (1)")
    assert take(admin, other) == [2], "dispatch goes on without the dropped type's events"
    rows(admin, f"drop table public.t_{made}")
    left = "select count(*) from pg_class where relname like %s || '%%' and relnamespace <> 'public'::regnamespace"
    assert value(admin, left, [made]) == 0


def test_a_dropped_type_can_be_made_again(admin: psycopg.Connection, name: Name) -> None:
    made = name()
    for attributes in ("n integer", "n integer, b text"):
        make_type(admin, made, attributes)
        call(admin, "subscribe", made, made)
        publish(admin, made, 1)
        assert take(admin, made) == [1]
        publish(admin, made, 2)
        call(admin, "drop_event_type", made, True)
    rows(admin, "select pgps.dispatch()")


def test_a_type_is_dropped_with_what_strangers_have_made_over_its_queues(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Name
) -> None:
    """Nobody needs a right to a queue for that."""
    made = name("tick")
    make_type(admin, made)
    stranger = connect(role("stranger"))
    rows(stranger, f"create temporary view mine as select * from {queue(made, 'in')}")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        call(admin, "drop_event_type", made)
    call(admin, "drop_event_type", made, cascade=True)
    assert value(admin, "select count(*) from pgps.event_types where name = %s", [made]) == 0
