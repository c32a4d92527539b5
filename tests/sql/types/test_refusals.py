"""What is refused is refused in words: settings, connection strings, changes of what was published."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import (
    call,
    column,
    endpoint,
    make_type,
    numbers,
    publish,
    queue,
    quoted,
    refused,
    rows,
    value,
)
from tests.fix_db import Connect

Name = Callable[..., str]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    made = name("tick")
    make_type(admin, made, "n integer, word text")
    return made


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("lease", "-1 second"),
        ("lease", "0"),
        ("lease", "infinity"),
        ("lease", "1000 years"),
        ("lease", None),
        ("lease", "soon"),
        ("max_batch_events", "-1"),
        ("max_batch_events", "0"),
        ("max_batch_events", "1e3"),
        ("max_batch_events", "99999999999"),
        ("run_batch_events", "-5"),
        ("filter_failures", "0"),
        ("table_threshold", "-1"),
        ("direct_retries", "-1"),
        ("retry_delay", "-1 second"),
        ("link_retention", "-1 day"),
        ("request_timeout", "0"),
        ("link_create_types", "maybe"),
        ("link_create_types", None),
    ],
)
def test_a_setting_takes_values_of_its_kind_and_range(
    admin: psycopg.Connection, setting: str, wrong: str | None
) -> None:
    before = value(admin, "select value from pgps.settings where name = %s", [setting])
    with refused("22023", setting, wrong or "NULL", "Give"):
        call(admin, "configure", setting, wrong)
    assert value(admin, "select value from pgps.settings where name = %s", [setting]) == before


def test_every_setting_takes_the_value_that_it_has(admin: psycopg.Connection) -> None:
    for setting, now in rows(admin, "select name, value from pgps.settings"):
        call(admin, "configure", setting, now)
        assert value(admin, "select value from pgps.settings where name = %s", [setting]) == now


@pytest.mark.parametrize("wrong", ["b" * 41, "a\nb", "a*"])
def test_the_name_of_a_broker_is_a_name(admin: psycopg.Connection, wrong: str) -> None:
    with refused("42622" if len(wrong) > 40 else "42602"):
        call(admin, "configure", "broker", wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "junk",
        "=",
        "host",
        "host=a junk",
        "hist=a",
        "host=a password='b",
        "host=a password='b\\'",
        "host='a'b=c",
        "host=a; drop",
        "postgresql://u@h/d?sslmod=x",
        "postgresql://u@h/d e",
        "http://h/d?host=x",
    ],
)
def test_a_connection_string_is_one_of_libpq(admin: psycopg.Connection, name: Name, wrong: str) -> None:
    link = name("link")
    with refused("22023", link, "host"):
        call(admin, "create_link", link, wrong)
    call(admin, "create_link", link, "host=nowhere")
    with refused("22023", link, "host"):
        call(admin, "alter_link", link, wrong)
    for right in (
        "host=a",
        " host = a\tport=5  dbname='b c' password='d\\'e\\\\' ",
        "service=x",
        "user=a\\ b host=c",
        "host='' dbname=d",
        "postgresql://",
        "postgres://u:p@h1:5,h2:6/d?sslmode=require&connect_timeout=3",
    ):
        call(admin, "alter_link", link, right)
    call(admin, "drop_link", link)


def test_an_error_about_a_connection_string_does_not_show_it(admin: psycopg.Connection, name: Name) -> None:
    link = name("link")
    with refused("22023") as caught:
        call(admin, "create_link", link, "host=a password='secret")
    assert "secret" not in str(caught.value.diag.message_primary) + str(caught.value.diag.message_hint)


@pytest.mark.parametrize("wrong", ['"', '"a', '"a"b"', '""', 'x"'])
def test_a_name_with_quotes_that_do_not_close_is_refused_in_words(admin: psycopg.Connection, wrong: str) -> None:
    for function in ("advertise", "unsubscribe", "drop_event_type", "drop_rule", "pause"):
        with refused("42602" if wrong[0] == '"' else "42704") as caught:
            call(admin, function, wrong)
        assert wrong in str(caught.value.diag.message_primary)
        assert caught.value.diag.message_hint


def test_what_was_published_is_not_changed_through_the_endpoint(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], tick: str
) -> None:
    publish(admin, tick, 1)
    everyone = connect(role("plain"))
    for statement in ("update {} set n = 2", "delete from {}", "truncate {}", "update {} set n = 2 where false"):
        with refused("0A000", tick, "INSERT INTO"):
            rows(admin, statement.format(endpoint(tick)))
        with refused("42501", tick):
            rows(everyone, statement.format(endpoint(tick)))
    for statement in (
        "insert into {} values (1) on conflict do nothing",
        "merge into {} t using (values (1)) v(n) on t.n = v.n when not matched then insert (n) values (v.n)",
    ):
        with refused("0A000"):
            rows(admin, statement.format(endpoint(tick)))
    call(admin, "alter_event_type", tick, add_attribute="more integer")
    with refused("0A000", tick):
        rows(admin, f"update {endpoint(tick)} set more = 2")
    assert column(admin, f"select n from {queue(tick, 'in')}") == [1]


def test_defining_and_dropping_is_silent(admin: psycopg.Connection, connect: Connect, name: Name) -> None:
    said: list[str | None] = []
    admin.add_notice_handler(lambda notice: said.append(notice.message_primary))
    rows(admin, "set client_min_messages = notice")
    for options in ({}, {"visibility": "immediate"}, {"reliability": "non-guaranteed"}):
        made = name()
        make_type(admin, made, **options)
        rows(admin, f"create table public.{made} (n integer)")
        call(admin, "create_rule", made, f"public.{made}", "insert", made, ["new.n"])
        call(admin, "subscribe", made, made, "n > 0")
        call(admin, "alter_event_type", made, add_attribute="m integer check (m > 0)")
        call(admin, "alter_event_type", made, drop_attribute="m")
        call(admin, "unsubscribe", made)
        call(admin, "subscribe", made, made, "n > 0")
        call(admin, "drop_event_type", made, cascade=True)
        rows(admin, f"drop table public.{made}")
    assert said == []


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("{t} is not null", [1]),
        ("{t} is null", [4]),
        ("not ({t} is null)", [1, 2, 3]),
        ("{t}.* is not null and n < 9", [1]),
        ("n is null or {t} notnull", [1, 3, 4]),
        ("public.{f}({t})", [1, 2, 3, 4]),
        ("to_jsonb({t}) ? 'word'", [1, 2, 3, 4]),
        ('"{t}" IS NOT NULL', [1]),
    ],
)
def test_a_filter_may_ask_for_the_event_as_a_whole(
    admin: psycopg.Connection, tick: str, name: Name, condition: str, expected: list[int]
) -> None:
    function, found = name("f"), name("s")
    rows(admin, f"create function public.{function}({endpoint(tick)}) returns boolean language sql as 'select true'")
    call(admin, "subscribe", found, tick, condition.format(t=tick, f=function))
    rows(admin, f"insert into {endpoint(tick)} values (1, 'a'), (2, null), (null, 'c'), (null, null)")
    rows(admin, "select pgps.dispatch()")
    got = column(admin, "select payload from pgps.receive(%s)", [found])
    places = [(1, "a"), (2, None), (None, "c"), (None, None)]
    assert [places.index((p["n"], p["word"])) + 1 for p in got] == expected


def test_a_policy_goes_also_when_its_role_has_dropped_what_it_owned(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], tick: str, name: Name
) -> None:
    alice = role("alice")
    call(admin, "create_policy", tick, "low", alice, "n < 10")
    rows(admin, f"drop owned by {quoted(alice)}")
    reader = connect(alice)
    call(reader, "subscribe", name("s"), tick)
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    assert rows(reader, f"select n from {queue(tick, 'in')}") == []
    call(admin, "drop_policy", tick, "low")
    assert rows(admin, "select from pgps.policies where event_type = %s", [tick]) == []
    publish(admin, tick, 2)
    assert column(reader, f"select n from {queue(tick, 'in')}") == [2]
    call(admin, "create_policy", tick, "low", alice, "n < 1")
    call(admin, "drop_policy", tick, "low")


def test_a_subscription_whose_owner_was_dropped_says_so_and_an_administrator_ends_it(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], tick: str, name: Name
) -> None:
    alice, theirs, mine = name("alice"), name("s"), name("s")
    rows(admin, f"create role {alice}")
    rows(admin, f"set session authorization {alice}")
    call(admin, "subscribe", theirs, tick, "n > 0")
    rows(admin, "reset session authorization")
    call(admin, "subscribe", mine, tick)
    rows(admin, f"drop owned by {alice}; drop role {alice}")
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    assert numbers(admin, mine) == [1]
    state, error = rows(admin, "select state, last_error from pgps.subscriptions where name = %s", [theirs])[0]
    assert (state, "dropped" in error) == ("suspended", True)
    chief = connect(role("chief", "pgps_admin"))
    for connection in (admin, chief):
        for function in ("ack(%s)", "receive(%s)", "open_stream(%s)", "end_of_stream(%s, 0, 0)"):
            with refused("55000", theirs, "unsubscribe"):
                rows(connection, f"select pgps.{function}", [theirs])
    call(chief, "unsubscribe", theirs)
    assert rows(admin, "select from pgps.subscriptions where name = %s", [theirs]) == []


@pytest.mark.parametrize(
    ("given", "sqlstate", "place", "hint"),
    [
        ("nope > 10", "42703", 1, "There are: n integer, word text"),
        ("n > 1 and\n  nope = 3", "42703", 13, "There are: n integer, word text"),
        ("n", "42804", 1, "A filter is one condition"),
        ("n > true", "42883", 3, "explicit type casts"),
        ("n in (select m from no_such.t)", "42P01", 21, "schema"),
        ("n::no_such > 1", "42704", 4, "schema"),
        ("generate_series(1, 2) = 1", "0A000", 1, "A filter is one condition"),
        ("word = 'é' and n = 'x'", "22P02", 20, "constant"),
    ],
)
def test_an_error_in_a_filter_has_its_place_in_what_was_given(
    admin: psycopg.Connection, tick: str, given: str, sqlstate: str, place: int, hint: str
) -> None:
    call(admin, "subscribe", f"{tick}_s", tick)
    for function, args, named in (
        ("subscribe", [tick, tick, given], {}),
        ("alter_subscription", [f"{tick}_s"], {"filter": given}),
    ):
        with refused(sqlstate, hint) as caught:
            call(admin, function, *args, **named)
        assert caught.value.diag.message_detail == f"At character {place} of the filter."


def test_an_error_in_a_rule_or_a_policy_has_its_place_too(admin: psycopg.Connection, tick: str) -> None:
    rows(admin, f"create table public.{tick} (id integer, v text)")
    rule = (tick, f"public.{tick}", "insert", tick)
    with refused("42703", "There are: id integer, v text", "At character 5 of value 2."):
        call(admin, "create_rule", *rule, ["new.id", "1 + new.nope"])
    with refused("42804", "At character 1 of value 1.", "cast"):
        call(admin, "create_rule", *rule, ["new.v", "new.v"])
    with refused("42703", "At character 11 of the condition."):
        call(admin, "create_rule", *rule, ["new.id", "new.v"], "true and (new.nope)")
    with refused("42703", "There are: n integer, word text", "In the expression."):
        call(admin, "create_policy", tick, tick, "pg_monitor", "nope > 1")


WRONG = [
    ("null", "1", "23502", "not-null"),
    ("'w'", "-1", "23514", "n_check"),
]


@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
def test_an_event_that_breaks_a_constraint_is_told_which_type_and_which_constraint(
    admin: psycopg.Connection, name: Name, visibility: str
) -> None:
    made = name("checked")
    make_type(admin, made, "word text not null, n integer check (n > 0)", visibility=visibility)
    ways = (
        f"insert into {endpoint(made)} (word, n) values ({{}}, {{}})",
        f"select pgps.publish('{quoted(made)}', jsonb_build_object('word', {{}}::text, 'n', {{}}))",
    )
    for way in ways:
        for word, n, state, broken in WRONG:
            with pytest.raises(psycopg.Error) as refusal:
                rows(admin, way.format(word, n))
            said = refusal.value.diag
            assert said.sqlstate == state
            assert f'relation "{made}"' in (said.message_primary or "")
            assert broken in (said.message_primary or "")
            # Over the loopback connection of publish only the message comes back.
            assert said.table_name in (made, None)
            assert said.constraint_name in (f"{made}_n_check", None)


def test_an_attribute_that_is_there_already_is_refused_with_what_to_do(admin: psycopg.Connection, name: Name) -> None:
    made = name("tick")
    for twice in ("n integer, n text", 'n integer, "n" integer'):
        with refused("42701", '"n" is given twice', "once"):
            call(admin, "create_event_type", made, twice)
    make_type(admin, made, "n integer, word text")
    with refused("42701", f'"{made}" has an attribute "word" already', "n integer, word text"):
        call(admin, "alter_event_type", made, add_attribute="word text")


def test_who_lists_views_sees_what_is_for_users(admin: psycopg.Connection, tick: str) -> None:
    rows(admin, "set search_path = pgps, pgps_event, pgps_queue")
    # As \d and \dv ask.
    seen = column(
        admin,
        "select c.relname from pg_class c where c.relkind in ('r', 'p', 'v') and pg_table_is_visible(c.oid)"
        " and c.relnamespace in ('pgps'::regnamespace, 'pgps_event'::regnamespace, 'pgps_queue'::regnamespace)",
    )
    rows(admin, "reset search_path")
    assert {"subscriptions", tick, f"{tick}_in", f"{tick}_out", f"{tick}_exception"} <= set(seen)
    assert [relation for relation in seen if relation.startswith("_") or relation.endswith(("_0", "_stage"))] == []


@pytest.mark.parametrize(
    ("kind", "hint"), [("in", "INSERT INTO pgps_event."), ("out", "pgps.ack"), ("exception", "pgps.discard_exception")]
)
def test_changing_a_queue_is_refused_with_what_to_do_instead(
    admin: psycopg.Connection, tick: str, kind: str, hint: str
) -> None:
    view = queue(tick, kind)
    changes = [f"insert into {view} (event_id) values (1)", f"update {view} set state = ''", f"delete from {view}"]
    for _ in range(2):
        for change in changes:
            with refused("55000", f'queue "{tick}_{kind}"', "read only", hint):
                rows(admin, change)
        # The views are made anew.
        call(admin, "alter_event_type", tick, drop_attribute="word")
        call(admin, "alter_event_type", tick, add_attribute="word text")
