"""Errors name what the user typed, where it stands in it, and what to type instead."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, endpoint, make_type, publish, refused, rows, take
from tests.fix_db import Connect

Name = Callable[..., str]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    made = name("tick")
    make_type(admin, made, "n integer, word text")
    return made


def test_an_error_in_an_attribute_list_has_its_place_and_shows_nothing_of_pgps(
    admin: psycopg.Connection, tick: str
) -> None:
    for function, args, named in (
        ("create_event_type", [f"{tick}_new", "a integer, b no_such"], {}),
        ("create_event_type", [f"{tick}_new", "a integer, b no_such -- why\n"], {}),
        ("alter_event_type", [tick], {"add_attribute": "b no_such"}),
    ):
        with refused("42704", 'type "no_such" does not exist', "schema") as caught:
            call(admin, function, *args, **named)
        said = caught.value.diag
        assert said.message_detail in {
            "At character 14 of the attribute list.",
            "At character 3 of the attribute list.",
            "In the attribute list.",
        }
        assert "pgps_event" not in (said.internal_query or "")
    with refused("42703", "There are: a, b"):
        call(admin, "create_event_type", f"{tick}_new", "a integer, b integer check (c > 0)")
    with refused("42P07", "no event type", "another name"):
        rows(admin, f"create table {endpoint(f'{tick}_new')} (n integer)")
        call(admin, "create_event_type", f"{tick}_new", "n integer")
    rows(admin, f"drop table {endpoint(f'{tick}_new')}")


def test_an_attribute_is_added_beside_an_event_type_of_whatever_name(admin: psycopg.Connection, tick: str) -> None:
    make_type(admin, f"{tick}_add", "n integer")
    call(admin, "alter_event_type", tick, add_attribute="more integer")
    call(admin, "drop_event_type", f"{tick}_add")
    publish(admin, tick, 1)
    # An attribute that what waits cannot have is refused with what to give.
    for wrong, state in (("last integer not null", "23502"), ("last integer default 1 check (last > 1)", "23514")):
        with refused(state, f'"{tick}"', "default"):
            call(admin, "alter_event_type", tick, add_attribute=wrong)
    call(admin, "alter_event_type", tick, add_attribute="last integer not null default 7")


def test_a_statement_names_what_was_typed_and_what_to_type(admin: psycopg.Connection, tick: str) -> None:
    for statement, state, named, hint in (
        (f"GRANT PUBLISH ON EVENT TYPE {tick} TO nobody_here", "42704", "nobody_here", "pg_roles"),
        (f"REVOKE SUBSCRIBE ON EVENT TYPE {tick} FROM public, nobody_here", "42704", "nobody_here", "pg_roles"),
        (f"CREATE RULE r AS ON INSERT TO no_such.orders PUBLISH {tick} (1)", "42P01", "no_such.orders", "schema"),
    ):
        with refused(state, named, hint):
            call(admin, "execute", statement)
    rows(admin, f"create table public.{tick} (id integer)")
    with refused("22023", 'invalid operation "inserts"', "INSERT"):
        call(admin, "create_rule", tick, f"public.{tick}", "update or inserts", tick, ["new.id"])


def test_who_resumes_a_filter_that_still_fails_is_told_how_to_give_another_one(
    admin: psycopg.Connection, tick: str
) -> None:
    rows(admin, f"create table public.{tick} (n integer)")
    call(admin, "subscribe", tick, tick, filter=f"n in (select t.n from public.{tick} t)")
    rows(admin, f"drop table public.{tick}")
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    with refused("42P01", f'subscription "{tick}"', f'relation "public.{tick}" does not exist', "alter_subscription"):
        call(admin, "resume", tick)


def test_hints_may_be_typed_as_they_stand_whatever_the_name(admin: psycopg.Connection, name: Name) -> None:
    """Without its quotes a name is another one: an event type beside it was dropped with all its events."""
    lower = name("quote")
    make_type(admin, lower)
    upper = lower.upper()
    make_type(admin, upper)
    call(admin, "subscribe", f'"{upper}"', f'"{upper}"')
    with refused("2BP01", upper) as caught:
        call(admin, "drop_event_type", f'"{upper}"')
    assert f"pgps.drop_event_type('\"{upper}\"', cascade => true)" in str(caught.value.diag.message_hint)
    call(admin, "drop_event_type", f'"{upper}"', cascade=True)
    assert rows(admin, "select name from pgps.event_types where name in (%s, %s)", [lower, upper]) == [(lower,)]


def test_a_prefix_in_quotes_is_no_other_prefix(admin: psycopg.Connection, name: Name) -> None:
    small = name("sec")
    upper = f"{small.upper()}_A"
    make_type(admin, small)
    make_type(admin, upper)
    typed = f'"{small.upper()}"*'
    for number, language in enumerate((True, False)):
        own = f"{small}_s{number}"
        if language:
            call(admin, "execute", f"CREATE SUBSCRIPTION {own} ON {typed}")
        else:
            call(admin, "subscribe", own, typed)
        said = rows(admin, "select event_type from pgps.subscriptions where name = %s", [own])
        assert said == [(f"{small.upper()}*",)]
        publish(admin, small, 1)
        publish(admin, upper, 2)
        assert take(admin, own) == [2]
        call(admin, "unsubscribe", own)
    call(admin, "drop_event_type", f'"{upper}"')
    with refused("42602", small):
        call(admin, "subscribe", "s", f'"{small}*')


def test_an_error_in_the_arguments_of_a_callback_has_its_place(admin: psycopg.Connection, tick: str) -> None:
    rows(admin, "create or replace function public.told_of(n integer) returns void language sql as ''")
    for arguments, state, detail in (
        ("n +", "42601", "At character "),
        ("'x'::integer", "22P02", "At character 1 "),
        ("n, nosuch", "42703", "At character 4 "),
    ):
        with refused(state) as caught:
            call(admin, "subscribe", "s", tick, execute=f"public.told_of({arguments})")
        said = caught.value.diag
        assert str(said.message_detail).startswith(detail), said.message_detail
        assert "arguments of the callback" in str(said.message_detail)
        assert "attributes of the event" in str(said.message_hint)
    rows(admin, "drop function public.told_of(integer)")


def test_a_type_that_is_not_guaranteed_is_never_persistent(admin: psycopg.Connection, name: Name) -> None:
    made = name("loose")
    call(admin, "create_event_type", made, "n integer", reliability="non-guaranteed")
    assert rows(admin, "select persistent from pgps.event_types where name = %s", [made]) == [(False,)]
    for before in (None, False):
        call(admin, "alter_queue", f"{made}_in", persistent=before)
        with refused("55000", made):
            call(admin, "alter_queue", f"{made}_in", persistent=True)
    with refused("22023", "1000 years"):
        call(admin, "alter_queue", f"{made}_in", retention="-1 day")
    call(admin, "alter_queue", f"{made}_in", retention="1000 years")


def test_what_is_not_taken_back_is_not_called_taken_back(
    admin: psycopg.Connection, connect: Connect, tick: str, role: Callable[..., str]
) -> None:
    """PostgreSQL takes back only what the same role has granted, and says nothing of the rest."""
    rows(admin, f"revoke select on {endpoint(tick)} from public")
    boss, nurse = role("boss"), role("nurse")
    own = connect(boss)
    rows(admin, f"grant select on {endpoint(tick)} to {boss} with grant option")
    rows(own, f"grant select on {endpoint(tick)} to {nurse}")
    with refused("42501", nurse, boss) as caught:
        call(admin, "execute", f"REVOKE SUBSCRIBE ON EVENT TYPE {tick} FROM {nurse}")
    assert f"set role {boss}; revoke select on pgps_event.{tick} from {nurse}" in str(caught.value.diag.message_hint)
    call(own, "execute", f"REVOKE SUBSCRIBE ON EVENT TYPE {tick} FROM {nurse}")
    call(admin, "execute", f"REVOKE SUBSCRIBE ON EVENT TYPE {tick} FROM {nurse}")
    rows(admin, f"revoke all on {endpoint(tick)} from {boss} cascade")
