"""What PostgreSQL calls on behalf of an expression, beside the functions that stand in it, is nobody's who may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg.types.json import Jsonb

from pgps import _scripts
from tests.fix_broker import call, column, endpoint, quoted, refused, rows, value
from tests.fix_db import Connect
from tests.security.conftest import Mallory, may_fail

# An operator of Eve's on functions of PostgreSQL alone; her own function is behind another one, which the planner may
# put in its place, or whose function it asks about statistics.
NEGATED = [
    "create operator {s}.!== (leftarg = integer, rightarg = integer, function = {s}.evil)",
    "create operator {s}.=== (leftarg = integer, rightarg = integer, function = int4ne, negator = operator({s}.!==))",
]
COMMUTED = [
    "create operator {s}.>>> (leftarg = integer, rightarg = integer, function = {s}.evil)",
    (
        "create operator {s}.<<< (leftarg = integer, rightarg = integer, function = int4lt, restrict = scalarltsel, "
        "join = scalarltjoinsel, commutator = operator({s}.>>>))"
    ),
]
ESTIMATED = [
    "create operator {s}.!== (leftarg = integer, rightarg = integer, function = {s}.evil)",
    (
        "create operator {s}.=== (leftarg = integer, rightarg = integer, function = int4ne, restrict = neqsel, "
        "negator = operator({s}.!==))"
    ),
]


@pytest.fixture
def eve(mallory: Mallory) -> Mallory:
    """An administrator of pgps with a function that notes as whom it runs, and takes over if it can."""
    rows(mallory.admin, f"grant pgps_admin to {quoted(mallory.role)}")
    rows(
        mallory.connection,
        f"create table {mallory.schema}.calls (who name); grant insert, select on {mallory.schema}.calls to public",
    )
    note = f"insert into {mallory.schema}.calls values (current_user);"
    mallory.define("evil(integer, integer)", "boolean", "true", before=note)
    return mallory


def define(eve: Mallory, operators: list[str]) -> None:
    for statement in operators:
        rows(eve.connection, statement.format(s=eve.schema))


def ran_as(eve: Mallory) -> set[str]:
    """Return the roles other than Eve's own with whose rights her function ran."""
    return set(column(eve.admin, f"select who from {eve.schema}.calls")) - {eve.role}


@pytest.mark.parametrize(
    "attribute",
    [
        "n integer check (not (n operator({s}.===) 1))",
        "n integer check (not (n operator({s}.===) all (array[1, n])))",
        "n integer, b boolean default (not (1 operator({s}.===) 1))",
        "n integer check (nullif(n operator({s}.===) 1, false) is not null)",
    ],
)
def test_an_operator_is_not_exchanged_for_one_that_runs_as_the_owner_of_pgps(
    eve: Mallory, name: Callable[..., str], attribute: str
) -> None:
    define(eve, NEGATED)
    made, other = name(), name()
    text = attribute.format(s=eve.schema)
    with refused("42501", "operator"):
        call(eve.connection, "create_event_type", made, text, visibility="immediate")
        call(eve.connection, "advertise", made)
        call(eve.connection, "publish", made, '{"n": 2}')
        assert not eve.has_won()
    call(eve.connection, "create_event_type", other, "k integer")
    call(eve.connection, "advertise", other)
    rows(eve.connection, f"insert into {endpoint(other)} values (1)")
    with refused("42501", "operator"):
        call(eve.connection, "alter_event_type", other, add_attribute=text.replace("integer", "integer default 2", 1))
        assert not eve.has_won()
    rows(eve.admin, "select pgps.dispatch()")
    assert not eve.has_won()


@pytest.mark.parametrize("operators", [NEGATED, COMMUTED, ESTIMATED], ids=["negated", "commuted", "estimated"])
@pytest.mark.parametrize("text", ["not (n operator({s}.{o}) 1)", "1 operator({s}.{o}) n", "n operator({s}.{o}) 1"])
def test_a_policy_for_others_has_no_operator_of_its_author(
    eve: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str], operators: list[str], text: str
) -> None:
    alice, found = role("alice"), name("s")
    define(eve, operators)
    text = text.format(s=eve.schema, o="<<<" if operators is COMMUTED else "===")
    try:
        with refused("42501", "operator"):
            call(eve.connection, "create_policy", quoted(eve.event_type), "p", alice, text)
    finally:
        reader = connect(alice)
        with may_fail("42"):
            call(reader, "subscribe", found, quoted(eve.event_type))
        rows(eve.admin, f"insert into {endpoint(eve.event_type)} (n) select generate_series(1, 500)")
        rows(eve.admin, "select pgps.dispatch()")
        # Not all tables: foreign ones of other tests would be asked, over connections that stay.
        rows(eve.admin, f"analyze pgps_internal.{quoted(eve.event_type + '_log')}")
        rows(reader, f"select from pgps_queue.{quoted(eve.event_type + '_in')}")
        rows(reader, "select from pgps.receive(%s)", [found])
        assert ran_as(eve) == set()


@pytest.mark.parametrize("operators", [NEGATED, COMMUTED], ids=["negated", "commuted"])
def test_what_a_policy_reads_has_no_index_with_an_operator_of_its_owner(
    eve: Mallory, role: Callable[..., str], operators: list[str]
) -> None:
    define(eve, operators)
    rows(eve.connection, f"alter function {eve.schema}.evil(integer, integer) immutable")
    alice, word = role("alice"), "<<<" if operators is COMMUTED else "==="
    tie = f"create index on {eve.schema}.ward (n) where not (n operator({eve.schema}.{word}) 1)"
    text = f"n in (select w.n from {eve.schema}.ward w)"
    rows(eve.connection, f"create table {eve.schema}.ward (n integer); grant select on {eve.schema}.ward to public")
    with eve.connection.transaction(force_rollback=True):
        rows(eve.connection, tie)
        with refused("42501", "operator"):
            call(eve.connection, "create_policy", quoted(eve.event_type), "p", alice, text)
    call(eve.connection, "create_policy", quoted(eve.event_type), "p", alice, text)
    with refused("2BP01", "operator"):
        rows(eve.connection, tie)
    call(eve.connection, "drop_policy", quoted(eve.event_type), "p")
    rows(eve.connection, tie)


@pytest.mark.parametrize("group", ["pgps_admin", "staff"])
@pytest.mark.parametrize("what", ["a function", "row security"])
def test_a_policy_for_a_group_runs_nothing_of_one_member_as_another(
    eve: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str], group: str, what: str
) -> None:
    group = group if group == "pgps_admin" else role(group)
    bob = role("bob", group)
    rows(eve.admin, f"grant {quoted(group)} to {quoted(eve.role)}")
    s = eve.schema
    rows(
        eve.connection,
        f"create table {s}.ward (n integer); grant select on {s}.ward to public; insert into {s}.ward values (2);"
        f"alter table {s}.ward enable row level security; create policy p on {s}.ward using ({s}.evil(n, n))",
    )
    text = f"{s}.evil(n, 1)" if what == "a function" else f"n in (select w.n from {s}.ward w)"
    reader, found = connect(bob), name("s")
    try:
        with refused("42501", eve.schema.strip('"')):
            call(eve.connection, "create_policy", quoted(eve.event_type), "p", group, text)
    finally:
        call(reader, "subscribe", found, quoted(eve.event_type))
        rows(eve.admin, f"insert into {endpoint(eve.event_type)} (n) values (1), (2)")
        rows(eve.admin, "select pgps.dispatch()")
        rows(reader, f"select from pgps_queue.{quoted(eve.event_type + '_in')}")
        assert ran_as(eve) == set()


@pytest.mark.parametrize("kind", ["a policy", "an attribute"])
def test_what_an_expression_means_cannot_become_something_else_when_it_is_written_out(
    eve: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str], kind: str
) -> None:
    """Where Eve may make an operator that fits better: behind the check, and before the text is read again."""
    alice, made = role("alice"), name()
    rows(eve.admin, f"grant create on schema public to {quoted(eve.role)}")
    rows(eve.admin, "create operator public.@#@ (leftarg = anyarray, rightarg = anyarray, function = array_ne)")
    rows(
        eve.connection,
        f"create function {eve.schema}.more(integer[], integer[]) returns boolean language plpgsql as "
        f"$$ begin return {eve.schema}.evil(1, 1); end $$",
    )
    args: dict[str, object] = {"event_type": quoted(eve.event_type), "name": "p", "role": alice}
    draft, text = f"pgps_event.{made}", "array[1] operator(public.@#@) array[n]"
    better = f"create operator public.@#@ (leftarg = integer[], rightarg = integer[], function = {eve.schema}.more)"
    if kind == "a policy":
        rows(eve.connection, f"create table {draft} (like {endpoint(eve.event_type)})")
        rows(eve.connection, f"create policy d on {draft} using ({text})")
        verb, args = "create_policy", {**args, "using_expression": "true", "draft": made}
    else:
        call(eve.connection, "create_event_type", made, "k integer", visibility="immediate")
        call(eve.connection, "advertise", made)
        draft = f"pgps_event.{value(eve.admin, 'select pgps._scratch_name(%s)', [made])}"
        rows(eve.connection, f"create table {draft} (n integer default 2 check ({text}))")
        verb, args = "apply_attribute", {"name": made, "attributes": ["n"], "add": "n"}
    try:
        rows(eve.connection, better)
        with refused("42501", "public"):
            rows(eve.connection, "select pgps._call(%s, %s)", [verb, Jsonb(args)])
        assert ran_as(eve) == set()
    finally:
        rows(eve.admin, f"insert into {endpoint(eve.event_type)} (n) values (2)")
        reader, found = connect(alice), name("s")
        call(reader, "subscribe", found, quoted(eve.event_type), start="earliest")
        rows(eve.admin, "select pgps.dispatch()")
        rows(reader, f"select from pgps_queue.{quoted(eve.event_type + '_in')}")
        if kind != "a policy":
            rows(eve.connection, f"insert into {endpoint(made)} (k) values (1)")
        assert ran_as(eve) == set()
        assert not eve.has_won()
        rows(eve.admin, f"drop table if exists {draft}; drop operator public.@#@ (anyarray, anyarray) cascade")
        rows(eve.admin, "drop operator public.@#@ (integer[], integer[]) cascade")
        rows(eve.admin, f"revoke create on schema public from {quoted(eve.role)}")


@pytest.mark.parametrize("kind", ["check", "default", "operator", "difference"])
def test_a_superusers_type_runs_nothing_of_others(eve: Mallory, name: Callable[..., str], kind: str) -> None:
    kept, made = name("d"), name()
    define(eve, NEGATED)
    s = eve.schema
    rows(
        eve.connection,
        f"create function {s}.apart(integer, integer) returns float8 immutable language plpgsql as "
        f"$$ begin perform {s}.evil($1, $2); return $1 - $2; end $$;"
        f"create function {s}.given() returns integer language plpgsql as "
        f"$$ begin perform {s}.evil(1, 1); return 2; end $$",
    )
    rows(
        eve.admin,
        {
            "check": f"create domain public.{kept} as integer check ({s}.evil(value, 1))",
            "default": f"create domain public.{kept} as integer default {s}.given()",
            "operator": f"create domain public.{kept} as integer check (not (value operator({s}.===) 1))",
            "difference": f"create type public.{kept} as range (subtype = integer, subtype_diff = {s}.apart)",
        }[kind],
    )
    try:
        with refused("42501", kept):
            call(eve.connection, "create_event_type", made, f"n integer, d public.{kept}", visibility="immediate")
            call(eve.connection, "advertise", made)
            call(eve.connection, "publish", made, '{"n": 2}')
            assert not eve.has_won()
        call(eve.connection, "create_event_type", made, "n integer")
        with refused("42501", kept):
            call(eve.connection, "alter_event_type", made, add_attribute=f"d public.{kept}")
    finally:
        call(eve.admin, "drop_event_type", made, cascade=True)
        rows(eve.admin, f"drop type public.{kept}")


def test_what_is_there_already_is_told_by_the_upgrade_and_by_doctor(
    eve: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    """A superuser may put it there, as older releases let an administrator."""
    checked, defaulted, typed, policed, kept = name(), name(), name(), name(), name("d")
    define(eve, NEGATED)
    s, alice = eve.schema, role("alice")
    rows(eve.connection, f"create table {s}.ward (n integer); grant select on {s}.ward to public")
    rows(eve.connection, f"alter table {s}.ward enable row level security")
    rows(eve.admin, f"create domain public.{kept} as integer")
    make = "create_event_type"
    call(eve.admin, make, checked, f"n integer check (not (n operator({s}.===) 1))")
    call(eve.admin, make, defaulted, f"n integer, b boolean default {s}.evil(1, 1)")
    call(eve.admin, make, typed, f"n public.{kept}")
    rows(eve.admin, f"alter domain public.{kept} add check ({s}.evil(value, 1))")
    call(eve.admin, make, policed, "n integer check (n > 0), t text default upper('x')")
    call(eve.admin, "create_policy", policed, "operator", alice, f"not (n operator({s}.===) 1)")
    call(eve.admin, "create_policy", policed, "reads", alice, f"n in (select w.n from {s}.ward w)")
    call(eve.admin, "create_policy", policed, "her_own", eve.role, f"{s}.evil(n, 1)")
    call(eve.admin, "create_policy", policed, "harmless", alice, "n = 1 or t like 'x%' or now() > '2020-01-01'")
    wanted = [(checked, None), (defaulted, None), (typed, None), (policed, "operator"), (policed, "reads")]
    found = call(eve.connection, "suspects")
    here = [f for f in found if f["event_type"] in {made for made, _ in wanted}]
    try:
        assert sorted((f["event_type"], f["policy"] or "") for f in here) == sorted((a, b or "") for a, b in wanted)
        assert all(s.strip('"') in f["fault"] for f in here)
        told: list[str] = []
        session = connect()
        session.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
        rows(session, _scripts.read("code/types/suspects.sql"))
        assert len([text for text in told if any(made in text for made, _ in wanted)]) == len(wanted)
        with refused("42501"):
            call(connect(alice), "suspects")
    finally:
        for made in (checked, defaulted, typed, policed):
            call(eve.admin, "drop_event_type", made, cascade=True)
        rows(eve.admin, f"drop domain public.{kept}")
