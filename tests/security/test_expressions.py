"""What an administrator or a subscriber writes down is never evaluated with more rights than they have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, column, endpoint, make_type, queue, quoted, refused, rows, value
from tests.fix_db import Connect
from tests.security.conftest import Mallory, may_fail

# Each runs code of the domain's owner when text is turned into a value of the type.
CONSTANTS = [
    "('{{x}}'::{s}.dom[])[1]",
    "'x'::{s}.dom",
    "('(x)'::text)::{s}.pair",
    "('(x)'::{s}.pair).a",
    "upper_inf('[1,2)'::{s}.span)",
    "upper_inf('{{[1,2)}}'::{s}.spans)",
    "{s}.first('{{x}}')",
    "'{{x}}'::{s}.doms",
]


@pytest.fixture
def traps(mallory: Mallory) -> Mallory:
    """Mallory with data types that take over when text becomes one of them."""
    mallory.define("win(text)", "boolean", "true")
    mallory.define("win(integer)", "boolean", "true")
    s = mallory.schema
    rows(
        mallory.connection,
        f"""
        create domain {s}.dom as text check ({s}.win(value));
        create domain {s}.doms as {s}.dom[] check (value is not null);
        create domain {s}.number as integer check ({s}.win(value));
        create type {s}.pair as (a {s}.dom);
        create type {s}.span as range (subtype = {s}.number, multirange_type_name = {s}.spans);
        create function {s}.first({s}.dom[]) returns text immutable language sql return $1[1]::text
        """,
    )
    return mallory


@pytest.fixture
def eve(traps: Mallory) -> Mallory:
    """An administrator of pgps with these types; what she does herself, with her rights, she may."""
    rows(traps.admin, f"grant pgps_admin to {quoted(traps.role)}")
    return traps


@pytest.mark.parametrize("constant", CONSTANTS)
def test_constants_of_a_policy_give_an_administrator_no_rights(
    eve: Mallory, role: Callable[..., str], constant: str
) -> None:
    text = f"word is distinct from ({constant.format(s=eve.schema)})::text"
    for who in (eve.role, role("alice")):
        with may_fail("42"):
            call(eve.connection, "create_policy", quoted(eve.event_type), who, who, text)
        assert not eve.has_won()
    rows(eve.admin, f"insert into {endpoint(eve.event_type)} values (1, 'x')")
    rows(eve.admin, "select pgps.dispatch()")
    assert not eve.has_won()


@pytest.mark.parametrize("constant", CONSTANTS)
@pytest.mark.parametrize("form", ["default {}", "check (c <> {})", "default null check (coalesce(c, {}) is not null)"])
def test_constants_of_defaults_and_checks_give_an_administrator_no_rights(
    eve: Mallory, name: Callable[..., str], constant: str, form: str
) -> None:
    made = name()
    text = "c text " + form.format(f"({constant.format(s=eve.schema)})::text")
    with refused("42501", eve.schema.strip('"')):
        call(eve.connection, "create_event_type", made, "n integer, " + text, visibility="immediate")
    call(eve.connection, "create_event_type", made, "n integer")
    call(eve.connection, "advertise", made)
    rows(eve.connection, f"insert into {endpoint(made)} values (1)")
    with refused("42501", eve.schema.strip('"')):
        call(eve.connection, "alter_event_type", made, add_attribute=text)
    rows(eve.admin, "select pgps.dispatch()")
    assert not eve.has_won()


@pytest.mark.parametrize("tier", ["{c}", "n > 0 and {c}", "{c} or exists (select)"])
@pytest.mark.parametrize("constant", CONSTANTS)
def test_constants_of_a_filter_give_a_subscriber_no_rights(
    traps: Mallory, name: Callable[..., str], constant: str, tier: str
) -> None:
    condition = f"word is distinct from ({constant.format(s=traps.schema)})::text"
    for number in range(3):
        traps.subscribe(name("s"), filter=f"{tier.format(c=condition)} and n <> {number}", scope="global")
    rows(traps.admin, f"insert into {endpoint(traps.event_type)} values (1, 'x')")
    rows(traps.admin, "select pgps.dispatch()")
    assert not traps.has_won()


@pytest.mark.parametrize("kind", ["dom", "dom[]", "pair", "span", "doms"])
def test_types_of_constants_that_a_caller_makes_up_give_no_rights(
    traps: Mallory, name: Callable[..., str], kind: str
) -> None:
    args = {
        "name": name("s"), "filter": "word = 'x'", "constant_types": [f"{traps.schema}.{kind}"], "scope": "global",
        "types": {"pattern": False, "event_type": traps.event_type, "types": [traps.event_type]}, "priority": 0,
        "start": "now", "max_attempts": 1, "schemas": [],
    }  # fmt: skip
    rows(traps.connection, "select pgps._call('subscribe', %s)", [Jsonb(args)])
    rows(traps.admin, f"insert into {endpoint(traps.event_type)} values (1, 'x')")
    rows(traps.admin, "select pgps.dispatch()")
    assert not traps.has_won()
    assert len(column(traps.connection, "select payload from pgps.receive(%s)", [args["name"]])) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("c text default (select rolname from pg_authid limit 1)", "sub"),
        ("c text default {s}.win(1)::text", "win"),
        ("c text default {s}.run('x')", "run"),
        ("c xml default xmlelement(name a)", "XML"),
        ("c boolean check (c is distinct from ({s}.same(1, 1)))", "same"),
        ("c text default pg_read_file('PG_VERSION')", "pg_read_file"),
        ("c text default current_setting('is_superuser')", "current_setting"),
        ("c bigint default nextval('pgps_internal.event_id_seq')", ""),
        ("c bigint default nextval({n}::regclass)", "nextval"),
        ("c int check (nextval('{n}'::regclass) > c)", "sequence in a check"),
        ("c int check (nextval('{n}'::name::regclass) is not null)", "sequence in a check"),
    ],
)
def test_only_what_is_listed_may_stand_in_a_default_or_check(
    eve: Mallory, name: Callable[..., str], text: str, said: str
) -> None:
    made = name()
    eve.define("same(integer, integer)", "boolean", "true")
    # A superuser's, but it may do anything with the rights of whoever calls it.
    rows(
        eve.admin,
        f"create function {eve.schema}.run(text) returns text immutable language plpgsql as 'begin return $1; end'",
    )
    number = value(eve.admin, "select 'pgps_internal.event_id_seq'::regclass::oid::int")
    with pytest.raises(psycopg.Error) as caught:
        call(eve.connection, "create_event_type", made, text.format(s=eve.schema, n=number), visibility="immediate")
    assert caught.value.sqlstate in ("42501", "0A000")
    assert said in str(caught.value)


def test_ordinary_expressions_of_every_kind_are_for_administrators(eve: Mallory, name: Callable[..., str]) -> None:
    made = name()
    call(
        eve.connection, "create_event_type", made,
        "n bigint default 1, at timestamptz default now() + interval '1 day', tags text[] default '{a,b}', "
        "word text default coalesce(nullif('x', 'y'), 'z') check (case when n > 1 then word like 'x%' else true end), "
        "j jsonb default '{}' check (j ->> 'a' is null or (j ->> 'a')::int between 1 and 9), "
        "who text default current_user, day date check (day > '2020-01-01'::date and day < current_date + 10000), "
        "k text default gen_random_uuid(), check (greatest(n, 1) = any ('{1,2,3}'::bigint[]) and tags[1] = 'a'), "
        "u text collate \"C\" default to_char(now(), 'YYYY') check (length(u) = 4 and (u, word) is not null)",
        visibility="immediate",
    )  # fmt: skip
    call(eve.connection, "advertise", made)
    rows(eve.connection, f"insert into {endpoint(made)} (day) values ('2024-01-02')")
    call(eve.connection, "alter_event_type", made, add_attribute="w text default 'q'::varchar(3) check (w <> 'r')")
    assert rows(eve.connection, f"select n, word, w from {queue(made, 'in')}") == [(1, "x", "q")]


@pytest.mark.parametrize(
    "text",
    [
        "{s}.win(n)",
        "n in (select n from {s}.peek)",
        "n in (select n from public.{secret})",
        "word = (select n::text from unnest(array[1]) n)",
        "table_to_xml('pg_class', true, true, '') is null",
        "word <> set_config('a.b', 'c', false)",
        "n operator({s}.===) 1",
    ],
)
def test_a_policy_for_somebody_else_calls_no_code_of_its_author(
    eve: Mallory, role: Callable[..., str], name: Callable[..., str], text: str
) -> None:
    secret, alice = name("secret"), role("alice")
    rows(eve.admin, f"create table public.{secret} (n integer)")
    rows(eve.admin, f"grant select on public.{secret} to {quoted(alice)}")
    rows(eve.connection, f"create view {eve.schema}.peek as select 1 as n where {eve.schema}.win(1)")
    eve.define("same(integer, integer)", "boolean", "true")
    rows(
        eve.connection,
        f"create operator {eve.schema}.=== (leftarg = integer, rightarg = integer, function = {eve.schema}.same)",
    )
    with refused("42501"):
        call(
            eve.connection, "create_policy", quoted(eve.event_type), "p", alice,
            text.format(s=eve.schema, secret=secret),
        )  # fmt: skip
    assert rows(eve.admin, "select from pgps.policies where event_type = %s", [eve.event_type]) == []


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("n in (select n from public.{t})", True),
        ("n in (select x.n from public.{t} x join public.{t} y using (n) where y.consents)", True),
        ("n in (select n from public.{t} where secret = 'x')", False),
        ("exists (select from public.{t} t where t::text ~ 'x')", False),
        ("n in (select x.n from public.{t} x where exists (select from public.{t} y where y.secret = 'x'))", False),
        ("exists (select from public.{t} t where t.tableoid <> 0)", False),
        ("n < (select count(*) from public.{t})", False),
    ],
)
def test_a_policy_reads_the_columns_that_its_author_may_read(
    eve: Mallory, role: Callable[..., str], name: Callable[..., str], text: str, *, is_allowed: bool
) -> None:
    alice, table = role("alice"), name("ward")
    rows(eve.admin, f"create table public.{table} (gone integer, n integer, secret text, consents boolean)")
    rows(eve.admin, f"alter table public.{table} drop column gone; grant select on public.{table} to {quoted(alice)}")
    rows(eve.admin, f"grant select (n, consents) on public.{table} to {quoted(eve.role)}")
    with nullcontext() if is_allowed else refused("42501", table):
        call(eve.connection, "create_policy", quoted(eve.event_type), "p", alice, text.format(t=table))
    rows(eve.admin, f"drop table public.{table} cascade")


def test_a_policy_reads_plain_tables_by_whatever_name_they_have_now(
    eve: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    alice, table = role("alice"), name("ward")
    rows(eve.admin, f"create table public.{table} (n integer); grant select on public.{table} to public")
    rows(eve.admin, f"insert into public.{table} values (2)")
    text = f"n >= 0 and word <> 'it''s' and exists (select from {table} t where t.n = {quoted(table + 'x')}.n)"
    with pytest.raises(psycopg.errors.UndefinedTable):
        call(eve.connection, "create_policy", quoted(eve.event_type), "p", alice, text)
    text = f"n >= 0 and exists (select from {table} t where t.n = any (array[n, -1]) or word = 'x' and t.n = -5)"
    call(eve.connection, "create_policy", quoted(eve.event_type), "p", alice, f"{text} and current_user <> 'nobody'")
    rows(eve.admin, f"alter table public.{table} rename to {table}_2")
    reader = connect(alice)
    call(reader, "subscribe", name("s"), quoted(eve.event_type))
    rows(eve.admin, f"insert into {endpoint(eve.event_type)} values (1, 'a'), (2, 'b'), (2, 'c')")
    assert column(reader, f"select word from {queue(eve.event_type, 'in')} order by word") == ["a", "b", "c"]
    rows(eve.admin, f"drop table public.{table}_2 cascade")


@pytest.mark.parametrize(
    "sql",
    [
        "create table {d} (n integer, word text, _producer text, _producer_seq bigint)",
        "create table {d} (like {t}); create policy a on {d} using (true); create policy b on {d} using (true)",
        "create table {d} (n integer); create policy a on {d} using (n = 1)",
        "create table {d} (like {t}); create policy a on {d} using (true); create rule b as on update to {d} do {n}",
        "create view {d} as select 1 as n",
    ],
)
def test_what_stands_in_for_the_draft_of_a_policy_is_refused(eve: Mallory, name: Callable[..., str], sql: str) -> None:
    made = name("draft")
    draft = f"pgps_event.{made}"
    # Who has a table of her own may make rules.
    rows(eve.connection, f"create table {eve.schema}.own ()")
    args = {"event_type": quoted(eve.event_type), "name": "p", "role": eve.role, "using_expression": "true"}
    for statement in sql.format(d=draft, t=endpoint(eve.event_type), n="nothing").split("; "):
        rows(eve.connection, statement)
    for relation in (made, eve.event_type, "no such", f"pgps_event.{made}", 7, None):
        with refused("55000"):
            rows(eve.connection, "select pgps._call('create_policy', %s)", [Jsonb(args | {"draft": relation})])
    rows(eve.connection, f"drop {'view' if 'view' in sql else 'table'} {draft}")
    assert not eve.has_won()


def test_what_a_planner_would_evaluate_does_not_come_with_an_event_type(eve: Mallory, name: Callable[..., str]) -> None:
    rows(
        eve.connection,
        f"create function {eve.schema}.fold(integer) returns integer immutable language plpgsql as "
        f"$$ begin perform {eve.schema}.win($1); return 1; end $$",
    )
    for trap in (
        "create index on {t} (({s}.fold(1)))",
        "create statistics {s}.st on ({s}.fold(1)), n from {t}",
    ):
        made = name()
        rows(eve.connection, f"create table {endpoint(made)} (n integer, _producer text, _producer_seq bigint)")
        rows(eve.connection, trap.format(t=endpoint(made), s=eve.schema))
        args = {
            "name": made, "visibility": "deferred", "reliability": "guaranteed", "persistent": True,
            "auditable": False, "handler": "all",
        }  # fmt: skip
        with refused("55000", made):
            rows(eve.connection, "select pgps._call('build_type', %s)", [Jsonb(args)])
        rows(eve.connection, f"drop table {endpoint(made)}")


def test_a_type_in_a_schema_that_somebody_may_exchange_is_no_attribute_for_administrators(
    eve: Mallory, name: Callable[..., str]
) -> None:
    made = name()
    rows(eve.admin, f"create domain {eve.schema}.good as integer check (value > 0)")
    with refused("42501", "good"):
        call(eve.connection, "create_event_type", made, f"n {eve.schema}.good")
    make_type(eve.admin, made, f"n {eve.schema}.good")
    rows(eve.admin, f"insert into {endpoint(made)} values (1)")


# What ties code of a table's owner to whoever reads it, and how it goes for the planner or the executor.
TIES = {
    "a rule": ['create rule "_RETURN" as on select to {t} do instead select 1 as n where {s}.tied(1)'],
    "row security": ["alter table {t} enable row level security", "create policy p on {t} using ({s}.tied(n))"],
    "an index of some rows": ["create index on {t} (n) where {s}.tied(1)"],
    "an index on an expression": ["create index on {t} (({s}.tied(1)))"],
    "statistics": ["create statistics {s}.st on ({s}.tied(n)), n from {t}"],
    "a check of a child": ["create table {s}.child (check ({s}.tied(1))) inherits ({t})"],
    "an index of a child": [
        "create table {s}.child () inherits ({t})",
        "create index on {s}.child (n) where {s}.tied(1)",
    ],
    "a child of its own": [
        "create table {s}.child (n integer, check ({s}.tied(1)))",
        "alter table {s}.child inherit {t}",
    ],
    "a schema with a child": ["create schema ties create table child (check ({s}.tied(1))) inherits ({t})"],
}


@pytest.fixture
def policed(eve: Mallory, role: Callable[..., str]) -> tuple[Mallory, str, str]:
    """Eve with a table, and somebody else for whom she may write policies, but as whom she may not run anything."""
    alice = role("alice")
    rows(
        eve.connection,
        f"create table {eve.schema}.ward (n integer); grant select on {eve.schema}.ward to {quoted(alice)}",
    )
    body = f"begin return {eve.schema}.win($1); end"
    made = f"create function {eve.schema}.tied(integer) returns boolean immutable language plpgsql as '{body}'"
    rows(eve.connection, made)
    return eve, f"{eve.schema}.ward", alice


@pytest.mark.parametrize("tie", TIES)
def test_what_a_table_brings_along_keeps_a_policy_from_reading_it(policed: tuple[Mallory, str, str], tie: str) -> None:
    eve, table, alice = policed
    if tie == "a rule" and eve.admin.info.server_version >= 160000:
        pytest.skip("this server makes no views of tables")
    if tie == "a schema with a child":
        rows(eve.admin, f"grant create on database {eve.admin.info.dbname} to {quoted(eve.role)}")
    text = f"n in (select w.n from {table} w)"
    statements = [statement.format(t=table, s=eve.schema) for statement in TIES[tie]]
    with eve.connection.transaction(force_rollback=True):
        for statement in statements:
            rows(eve.connection, statement)
        with refused("42501", eve.schema.strip('"')):
            call(eve.connection, "create_policy", quoted(eve.event_type), "p", alice, text)
    call(eve.connection, "create_policy", quoted(eve.event_type), "p", alice, text)
    with refused("2BP01", 'policy "p"'), eve.connection.transaction():
        for statement in statements:
            rows(eve.connection, statement)
    # What does nothing of that remains possible, and all of it once there is no policy.
    with eve.connection.transaction(force_rollback=True):
        rows(eve.connection, f"alter table {table} add check (n < 100)")
        if tie != "a rule":  # a table that ever had an index makes no view
            rows(eve.connection, f"create index on {table} (n) where n > 1")
    call(eve.connection, "drop_policy", quoted(eve.event_type), "p")
    with eve.connection.transaction(force_rollback=True):
        for statement in statements:
            rows(eve.connection, statement)


def test_an_index_is_not_made_concurrently_on_what_a_policy_reads(policed: tuple[Mallory, str, str]) -> None:
    """One that fails stays, and REINDEX makes it valid without an event trigger."""
    eve, table, alice = policed
    call(eve.connection, "create_policy", quoted(eve.event_type), "p", alice, f"n in (select w.n from {table} w)")
    tied = f"create index CONCURRENTLY on {table} (n) where {eve.schema}.tied(1)"
    with refused("0A000", eve.schema.strip('"')):
        rows(eve.connection, tied)
    rows(eve.admin, tied)
    rows(eve.admin, f"create index concurrently on {table} (n) where n > 1")
    conditions = "select pg_get_expr(indpred, indrelid) from pg_index where indrelid = %s::regclass"
    assert column(eve.connection, conditions, [table]) == ["(n > 1)"]
    call(eve.connection, "drop_policy", quoted(eve.event_type), "p")
    rows(eve.connection, tied)
