"""A name in the search_path is not called in place of a built-in one (CVE-2018-1058): the caller may be a superuser."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg

from tests.fix_broker import call, column, rows
from tests.security.conftest import Mallory

# Built-in functions that take anything: one with the very types of a call would be the better match.
TRAPS = [
    *(f"format({', '.join(['text'] * count)})" for count in range(2, 7)),
    *(f"jsonb_build_object({', '.join(['text'] * count)})" for count in range(2, 9)),
    "jsonb_build_object(text, text, text, jsonb)",
    "jsonb_build_array(jsonb)",
    "to_jsonb(name[])",
    "concat(text, text)",
    "jsonb_populate_record(text, jsonb)",
]
RETURNS = {"format": "text", "concat": "text"}
BETTER_MATCHES = """
    select distinct p.proname from pg_proc p
    where p.pronamespace = 'pg_catalog'::regnamespace and exists (
        select from unnest(p.proargtypes) t where t::regtype::text ~ '^"?any')
"""
CALLERS = """
    select p.proname, p.prosrc from pg_proc p join pg_language l on l.oid = p.prolang
    where p.pronamespace = 'pgps'::regnamespace and l.lanname in ('plpgsql', 'sql') and p.prosqlbody is null
        and not exists (select from unnest(p.proconfig) c where c ~ '^search_path=')
"""
# Syntax, not functions.
SYNTAX = {"coalesce", "any", "all", "array", "values", "exists", "in"}


def test_functions_in_the_search_path_of_a_superuser_are_not_called(mallory: Mallory, name: Callable[..., str]) -> None:
    for trap in TRAPS:
        mallory.define(trap, RETURNS.get(trap.partition("(")[0], "jsonb"), "null")
    mallory.define("cat(text[], text[])", "text[]", "null")
    rows(
        mallory.connection,
        f"create operator {mallory.schema}.|| (leftarg = text[], rightarg = text[], function = {mallory.schema}.cat)",
    )
    made, found, table = name("type"), name("s"), name("t")
    admin = mallory.admin
    rows(admin, f"create table public.{table} (n integer)")
    path = f"set search_path = {mallory.schema}, public"
    rows(admin, path)
    call(admin, "create_event_type", made, "n integer, word text default 'x'")
    call(admin, "advertise", made)
    call(admin, "alter_event_type", made, "more text")
    call(admin, "create_policy", made, "p", mallory.role, "n > 1")
    call(admin, "subscribe", found, made, "n > 1 and word in ('x', 'y')")
    call(admin, "create_rule", found, f"public.{table}", "insert", made, ["new.n"], "new.n > 1")
    rows(admin, f"insert into public.{table} values (2)")
    call(admin, "publish", made, '{"n": 3}')
    call(admin, "execute", f"publish {made} (4, 'x')")
    call(admin, "execute", f"grant subscribe on event type {made} to {mallory.role}")
    rows(admin, "select pgps.dispatch()")
    assert column(admin, "select (payload ->> 'n')::integer from pgps.receive(%s)", [found]) == [2, 3, 4]
    call(admin, "drop_rule", found)
    call(admin, "unsubscribe", found)
    rows(admin, f"reset search_path; drop table public.{table}")
    assert not mallory.has_won()


def test_public_functions_write_out_what_could_be_matched_better(admin: psycopg.Connection) -> None:
    generic = set(column(admin, BETTER_MATCHES)) - SYNTAX
    assert {"format", "jsonb_build_object", "unnest", "to_jsonb"} <= generic
    called = re.compile(r"(?<![\w.%'])(\w+)\(")
    callers = rows(admin, CALLERS)
    assert "publish" in dict(callers)
    found = {name: sorted(set(called.findall(source)) & generic) for name, source in callers}
    assert {name: names for name, names in found.items() if names} == {}
