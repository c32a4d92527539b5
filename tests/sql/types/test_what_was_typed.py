"""Errors name what the user typed, where it stands in it, and what to type instead."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, endpoint, make_type, publish, refused, rows

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
