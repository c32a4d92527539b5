"""Attributes of any data type, from publication to the consumer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, endpoint, make_type, quoted, receive, refused, rows, value

Name = Callable[..., str]

DEFINITIONS = """
create type public.mood as enum ('sad', 'fine');
create domain public.percent as integer check (value between 0 and 100);
create type public.point3 as (x float8, y float8, "Z z" text)
"""

VALUES = {
    "public.mood": "'fine'",
    "public.percent": "42",
    "integer[]": "'{{1,2},{3,null}}'",
    "public.mood[]": "'{sad,fine}'",
    "public.point3": "row(1, 2.5, 'x\"y')",
    "public.point3[]": "array[row(1, 2, null)::public.point3]",
    "numrange": "'[1.5,)'",
    "int4multirange": "'{[1,3),[5,6)}'",
    "jsonb": """'{"a": [1, null, "x"]}'""",
    "json": """'{"a": 1,  "b": null}'""",
    "xml": "'<a/>'",
    "point": "'(1,2)'",
    "bytea": "'\\x00ff'",
    "uuid": "'00000000-0000-0000-0000-000000000001'",
    "inet": "'10.0.0.1/8'",
    "interval": "'1 year 2 mons 3.5 secs'",
    "timestamptz": "'infinity'",
    "timestamp(3)": "'2024-02-29 12:00:00.123456'",
    "varchar(3)": "'abc'",
    "char(5)": "'ab'",
    "numeric(12,4)": "'123.45678'",
    "float8": "'NaN'",
    "money": "'12.30'",
    "bit varying(5)": "'101'",
    "bit(3)": "'101'",
    "tsvector": "'a b'::tsvector",
    "regclass": "'pg_class'",
    "name": "'n'",
    '"char"': "'c'",
    "xid8": "'123'",
}


@pytest.fixture
def typed(own_database: str, connect: Callable[..., psycopg.Connection]) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    rows(connection, DEFINITIONS)
    return connection


def test_every_data_type_arrives_as_postgresql_would_show_it(typed: psycopg.Connection) -> None:
    attributes = [(f"a{n}", kind, literal) for n, (kind, literal) in enumerate(VALUES.items())]
    make_type(typed, "all_kinds", ", ".join(f"{a} {kind}" for a, kind, _ in attributes), auditable=True)
    call(typed, "subscribe", "all_kinds", "all_kinds")
    rows(typed, "create table public.seen (event jsonb)")
    rows(
        typed,
        "create function public.keep(e pgps_event.all_kinds) returns void language sql as "
        "'insert into public.seen values (to_jsonb(e))'",
    )
    call(typed, "subscribe", "inside", "all_kinds", execute="public.keep")
    rows(typed, f"insert into pgps_event.all_kinds values ({', '.join(literal for *_, literal in attributes)})")
    rows(typed, "select pgps.dispatch()")
    casts = ", ".join(f"({literal})::{kind} as {a}" for a, kind, literal in attributes)
    expected = value(typed, f"select to_jsonb(x) from (select {casts}) x")
    assert receive(typed, "all_kinds") == [expected]
    rows(typed, "call pgps.run_subscribers()")
    assert value(typed, "select event - '_producer' - '_producer_seq' from public.seen") == expected
    for kind, count in (("in", 1), ("out", 2), ("exception", 0)):
        assert value(typed, f"select count(*) from pgps_queue.all_kinds_{kind}") == count
    names = ", ".join(a for a, *_ in attributes)
    assert value(typed, f"select to_jsonb(x) from (select {names} from pgps_queue.all_kinds_in) x") == expected
    assert call(typed, "publish", "all_kinds", json.dumps(expected)) is not None
    rows(typed, "select pgps.dispatch()")
    assert receive(typed, "all_kinds")[1] == expected, "and as JSON"


def test_a_filter_on_any_data_type_means_what_it_says(typed: psycopg.Connection) -> None:
    attributes = [(f"a{n}", kind, literal) for n, (kind, literal) in enumerate(VALUES.items())]
    make_type(typed, "one", "n integer, " + ", ".join(f"{a} {kind}" for a, kind, _ in attributes))
    for attribute, kind, literal in attributes:
        call(typed, "subscribe", f"given_{attribute}", "one", filter=f"{attribute}::text = ({literal})::{kind}::text")
        call(typed, "subscribe", f"missing_{attribute}", "one", filter=f"{attribute} is null")
    rows(typed, f"insert into pgps_event.one values (1, {', '.join(literal for *_, literal in attributes)})")
    rows(typed, "insert into pgps_event.one (n) values (2)")
    rows(typed, "select pgps.dispatch()")
    for attribute, kind, _ in attributes:
        assert [p["n"] for p in receive(typed, f"given_{attribute}")] == [1], kind
        assert [p["n"] for p in receive(typed, f"missing_{attribute}")] == [2], kind


CONDITIONS = [
    ("public.mood", "a = 'fine'", "'fine'", "'sad'"),
    ("public.mood", "a > 'sad'", "'fine'", "'sad'"),
    ("public.percent", "a > 50", "51", "50"),
    ("integer[]", "3 = any (a)", "'{1,3}'", "'{1}'"),
    ("integer[]", "a[2] > 1", "'{1,3}'", "'{1}'"),
    ("public.point3", "(a).x > 1", "row(2,0,'')", "row(1,0,'')"),
    ("public.point3", "(two.a).\"Z z\" = 'q'", "row(2,0,'q')", "row(1,0,'')"),
    ("numrange", "a @> 3.0", "'[1,4]'", "'[4,5]'"),
    ("jsonb", "a @> '{\"k\": 1}'", '\'{"k": 1, "l": 2}\'', "'{\"k\": 2}'"),
    ("jsonb", "a ->> 'k' = 'v' and a ? 'k'", '\'{"k": "v"}\'', "'{\"k\": 2}'"),
    ("text", "a like 'x%' and a !~ 'z$'", "'xy'", "'xz'"),
    ("timestamptz", "a > timestamptz '2024-01-01' - interval '1 day'", "'2024-01-01'", "'2023-01-01'"),
    ("date", "a between '2024-01-01' and '2024-12-31'", "'2024-06-01'", "'2025-01-01'"),
    ("char(5)", "a = 'ab'", "'ab'", "'abc'"),
    ("boolean", "a", "true", "false"),
    ("boolean", "not a", "false", "true"),
    ("numeric", "a = 1.50", "1.5", "1.51"),
    ("bytea", "a = '\\x00ff'", "'\\x00ff'", "'\\x00'"),
]


def test_operators_of_a_data_type_filter(typed: psycopg.Connection) -> None:
    make_type(typed, "two", "n integer, " + ", ".join(f"a{n} {kind}" for n, (kind, *_) in enumerate(CONDITIONS)))
    for n, (_, condition, yes, no) in enumerate(CONDITIONS):
        call(typed, "subscribe", f"s{n}", "two", filter=re.sub(r"\ba\b", f"a{n}", condition))
        rows(typed, f"insert into pgps_event.two (n, a{n}) values (1, {yes}), (2, {no})")
    rows(typed, "select pgps.dispatch()")
    for n, (_, condition, *_) in enumerate(CONDITIONS):
        assert [p["n"] for p in receive(typed, f"s{n}")] == [1], condition


def test_a_type_may_have_a_thousand_attributes(typed: psycopg.Connection) -> None:
    make_type(typed, "wide", ", ".join(f"a{n} integer" for n in range(1000)))
    call(typed, "subscribe", "wide", "wide", filter="a999 > 1 and a0 is null")
    rows(typed, "insert into pgps_event.wide (a999) values (1), (2)")
    call(typed, "publish", "wide", json.dumps({f"a{n}": n for n in range(1, 1000)}))
    rows(typed, "select pgps.dispatch()")
    first, second = receive(typed, "wide")
    assert first["a999"] == 2
    assert len(first) == 1000
    assert second == {f"a{n}": n or None for n in range(1000)}
    assert value(typed, "select count(*) from pgps_queue.wide_out") == 2
    call(typed, "alter_event_type", "wide", "b text", None)
    call(typed, "drop_event_type", "wide", True)


def test_a_type_may_have_no_attribute(typed: psycopg.Connection) -> None:
    make_type(typed, "bare", "")
    call(typed, "subscribe", "bare", "bare")
    rows(typed, "insert into pgps_event.bare default values")
    call(typed, "publish", "bare", "{}")
    rows(typed, "select pgps.dispatch()")
    assert receive(typed, "bare") == [{}, {}]


def test_a_payload_of_fifty_megabytes_arrives(typed: psycopg.Connection) -> None:
    make_type(typed, "big", "t text, j jsonb")
    call(typed, "subscribe", "big", "big", filter="length(t) > 1000")
    rows(typed, "insert into pgps_event.big values (repeat('x', 50000000), '1')")
    rows(typed, "select pgps.publish('big', jsonb_build_object('t', repeat('y', 2000)))")
    rows(typed, "select pgps.dispatch()")
    found = rows(typed, "select length(payload ->> 't'), left(payload ->> 't', 1) from pgps.receive('big')")
    assert found == [(50000000, "x"), (2000, "y")]


def test_constraints_and_defaults_hold_at_publication(typed: psycopg.Connection) -> None:
    make_type(
        typed, "checked", "n integer not null check (n > 0), p public.percent default 7, at timestamptz default now()"
    )
    call(typed, "subscribe", "checked", "checked")
    for wrong, sqlstate in (("(null)", "23502"), ("(0)", "23514"), ("(1, 101)", "23514"), ("('x')", "22P02")):
        with pytest.raises(psycopg.Error) as caught:
            rows(typed, f"insert into pgps_event.checked values {wrong}")
        assert caught.value.sqlstate == sqlstate
    objects = ("{}", "23502"), ('{"n": 0}', "23514"), ('{"n": 1, "p": 101}', "23514"), ('{"n": "x"}', "22P02")
    for wrong, sqlstate in objects:
        with pytest.raises(psycopg.Error) as caught:
            call(typed, "publish", "checked", wrong)
        assert caught.value.sqlstate == sqlstate
    rows(typed, f"insert into {endpoint('checked')} (n) values (1)")
    call(typed, "publish", "checked", json.dumps({"n": 2}))
    rows(typed, "select pgps.dispatch()")
    found = receive(typed, quoted("checked"))
    assert [(p["n"], p["p"], p["at"] is not None) for p in found] == [(1, 7, True), (2, 7, True)]


def test_attributes_may_be_named_as_the_broker_names_things(typed: psycopg.Connection) -> None:
    names = [*"abcdeiklmnoprstuwx", "ids", "events", "payload", "row", "new", "old", "caller", "args", "one"]
    make_type(typed, "one", ", ".join(f"{quoted(each)} integer" for each in names))
    rows(typed, "create table public.seen (n integer)")
    total = " + ".join(f"(e).{quoted(each)}" for each in names)
    rows(
        typed,
        "create function public.keep(e pgps_event.one) returns void language sql as "
        f"'insert into public.seen select {total}'",
    )
    call(typed, "subscribe", "inside", "one", execute="public.keep")
    for each in names:
        call(typed, "subscribe", f"over {each}", "one", filter=f"{quoted(each)} > 0")
        call(typed, "subscribe", f"in {each}", "one", filter=f"{quoted(each)} in (select n from (values (1)) v (n))")
    rows(
        typed,
        f"insert into pgps_event.one select {', '.join('v' for _ in names)} from (values (1), (0)) v (v)",
    )
    assert value(typed, "select depth from pgps.queues where queue = 'one_in'") == 2
    rows(typed, "select pgps.dispatch()")
    rows(typed, "call pgps.run_subscribers()")
    assert rows(typed, "select n from public.seen order by 1") == [(0,), (len(names),)]
    for each in names:
        assert receive(typed, f"over {each}") == [dict.fromkeys(names, 1)], each
        assert receive(typed, f"in {each}") == [dict.fromkeys(names, 1)], each
        assert (
            value(typed, f"select {quoted(each)} from pgps_queue.one_out where subscription = %s", [f"in {each}"]) == 1
        )


QUEUE_COLUMNS = {
    "in": {"enqueued_at", "publisher", "origin", "state"},
    "out": {"subscription", "matched_at", "attempts", "state"},
    "exception": {"subscription", "failed_at", "attempts", "sqlstate", "error", "state"},
}


def test_attributes_may_have_the_names_of_a_queues_own_columns(typed: psycopg.Connection) -> None:
    names = sorted({*QUEUE_COLUMNS["in"], *QUEUE_COLUMNS["out"], *QUEUE_COLUMNS["exception"], "event", "published_at"})
    make_type(typed, "one", ", ".join(f"{each} text" for each in names[1:]), auditable=True)
    call(typed, "alter_event_type", "one", f"{names[0]} text")
    sent = {each: f"my {each}" for each in names}
    call(typed, "subscribe", "found", "one", filter="state like 'my %' and origin in ('my origin')", max_attempts=1)
    call(typed, "subscribe", "failing", "one", filter="state = error or 1 / (length(attempts) - 11) > 0")
    call(typed, "publish", "one", json.dumps(sent))
    rows(typed, "select pgps.dispatch()")
    assert receive(typed, "found") == [sent]
    call(typed, "nack", "found", value(typed, "select event_id from pgps.receive('found')"), "no")
    for kind, own in QUEUE_COLUMNS.items():
        shown = value(typed, f"select to_jsonb(q) from pgps_queue.one_{kind} q order by q limit 1")
        for each in names:
            assert shown[f"attribute_{each}" if each in own else each] == f"my {each}", (kind, each)
        assert all(shown[each] != f"my {each}" for each in own)
    call(typed, "retry_exception", "one", subscription="found")
    assert receive(typed, "found") == [sent]
    assert value(typed, "select state from pgps_queue.one_exception") == "failed"


def test_an_attribute_that_has_the_name_of_another_ones_column_has_a_column_too(typed: psycopg.Connection) -> None:
    make_type(typed, "one", "state text, attribute_state text")
    call(typed, "publish", "one", '{"state": "a", "attribute_state": "b"}')
    query = "select attribute_state, attribute_state_, state from pgps_queue.one_in"
    assert rows(typed, query) == [("b", "a", "waiting")]


def test_an_attribute_of_a_reserved_name_is_refused(typed: psycopg.Connection) -> None:
    make_type(typed, "two")
    for attribute in ("event_id", "xid", "pgps_x", '"$1"', '"$2"', '"$10"'):
        with refused("42939", f'"{attribute.strip(chr(34))}"', "choose another"):
            call(typed, "create_event_type", "one", f"n integer, {attribute} text")
        with refused("42939", f'"{attribute.strip(chr(34))}"', "choose another"):
            call(typed, "alter_event_type", "two", f"{attribute} text")
    for attribute in ('"$"', '"$a"', '"a$1"', '"$1a"'):
        call(typed, "alter_event_type", "two", f"{attribute} text")


@pytest.mark.parametrize("collation", ['"C"', '"und-x-icu"'])
def test_an_added_attribute_has_the_collation_it_was_given(typed: psycopg.Connection, collation: str) -> None:
    make_type(typed, "one", f"word text collate {collation}")
    call(typed, "alter_event_type", "one", f"another text collate {collation} default 'é'")
    collations = """
        select array_agg(distinct attcollation::regcollation::text) from pg_attribute
        where attname in ('word', 'another') and attrelid in (
            'pgps_event.one'::regclass, 'pgps_internal.one_log'::regclass, 'pgps_internal.one_kept'::regclass,
            'pgps_internal.one_audit'::regclass)
    """
    assert value(typed, collations) == [collation]
    call(typed, "subscribe", "upper", "one", filter="another < 'a'")
    call(typed, "publish", "one", '{"another": "Z"}')
    rows(typed, "select pgps.dispatch()")
    assert len(receive(typed, "upper")) == (collation == '"C"')
