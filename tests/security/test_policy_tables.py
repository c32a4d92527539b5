"""What a policy reads is what was checked, whatever its author does in other sessions meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, endpoint, meanwhile, quoted, refused, rows, value
from tests.fix_db import Connect
from tests.security.conftest import Mallory


@dataclass(frozen=True)
class Eve:
    """An administrator of pgps with a table, in two sessions, and somebody else for whom she may write policies."""

    mallory: Mallory
    second: psycopg.Connection
    alice: str

    @property
    def first(self) -> psycopg.Connection:
        return self.mallory.connection

    @property
    def schema(self) -> str:
        return self.mallory.schema

    def policies(self) -> int:
        query = "select count(*) from pgps.policies where event_type = %s"
        return int(value(self.mallory.admin, query, [self.mallory.event_type]))


@pytest.fixture
def eve(mallory: Mallory, connect: Connect, role: Callable[..., str]) -> Eve:
    alice = role("alice")
    dbname = mallory.admin.info.dbname
    rows(mallory.admin, f"grant pgps_admin to {quoted(mallory.role)}")
    rows(mallory.admin, f"grant create on database {quoted(dbname)} to {quoted(mallory.role)}")
    made = f"create function {mallory.schema}.tied(integer) returns boolean immutable language plpgsql as"
    rows(mallory.connection, f"{made} 'begin return true; end'; create table {mallory.schema}.ward (n integer)")
    return Eve(mallory, connect(mallory.role), alice)


def test_a_table_that_is_exchanged_while_the_policy_is_written_is_not_read(
    eve: Eve, connect: Connect, name: Callable[..., str]
) -> None:
    draft, wall, old = quoted(name()), quoted(name("wall")), quoted(name("old"))
    admin, s = eve.mallory.admin, eve.schema
    rows(admin, f"create table public.{wall} (n integer); grant select on public.{wall} to public")
    rows(
        eve.first,
        f"""
        create table pgps_event.{draft} (like {endpoint(eve.mallory.event_type)});
        create policy draft on pgps_event.{draft} for select
        using (exists (select from {s}.ward) and exists (select from public.{wall}))
        """,
    )
    args = {
        "event_type": quoted(eve.mallory.event_type), "name": "p", "role": eve.alice, "using_expression": "x",
        "draft": draft.strip('"'),
    }  # fmt: skip
    # The first table's name is written out when the second is waited for.
    holder = connect()
    holder.execute("begin")
    holder.execute(f"lock table public.{wall} in access exclusive mode")
    exchange = f"""
        alter schema {s} rename to {old}; create schema {s};
        create view {s}.ward as select 1 as n where {old}.tied(1)
        """

    def make() -> None:
        rows(eve.first, "select pgps._call('create_policy', %s)", [Jsonb(args)])

    try:
        with refused("40001", "another table"), meanwhile(admin, eve.first, make):
            try:
                rows(eve.second, exchange)
            finally:
                holder.execute("rollback")
        assert eve.policies() == 0
    finally:
        rows(admin, f"drop table public.{wall} cascade; drop schema if exists {old} cascade")


def test_a_materialized_view_is_read_by_a_policy_only_if_a_superuser_owns_it(eve: Eve) -> None:
    """Nobody but its owner can lock one, so that an index that he is just making would not be seen."""
    admin, s, event_type = eve.mallory.admin, eve.schema, quoted(eve.mallory.event_type)
    text = f"n in (select m.n from {s}.mv m)"
    rows(eve.first, f"create materialized view {s}.mv as select 1 as n")
    with eve.second.transaction():
        rows(eve.second, f"create index on {s}.mv (n) where {s}.tied(1)")
        with refused("42501", f"{s}.mv".replace('"', ""), "plain table"):
            call(eve.first, "create_policy", event_type, "p", eve.alice, text)
    rows(eve.first, f"drop materialized view {s}.mv")
    rows(admin, f"create materialized view {s}.mv as select 1 as n; grant select on {s}.mv to public")
    call(eve.first, "create_policy", event_type, "p", eve.alice, text)
    with refused("2BP01", "plain table"):
        rows(admin, f"alter materialized view {s}.mv owner to {quoted(eve.mallory.role)}")
    rows(admin, f"alter materialized view {s}.mv set (fillfactor = 90)")
    assert (
        value(
            admin, "select count(*) from pgps_internal.suspects() x where x.event_type = %s", [eve.mallory.event_type]
        )
        == 0
    )


def test_who_makes_an_index_on_what_inherits_from_a_superusers_table_is_waited_for(
    eve: Eve, name: Callable[..., str]
) -> None:
    admin, s, wall = eve.mallory.admin, eve.schema, quoted(name("wall"))
    rows(admin, f"create table public.{wall} (n integer); grant select on public.{wall} to public")
    rows(admin, f"alter table {s}.ward inherit public.{wall}")

    def make() -> None:
        text = f"n in (select w.n from public.{wall} w)"
        call(eve.first, "create_policy", quoted(eve.mallory.event_type), "p", eve.alice, text)

    try:
        eve.second.execute("begin")
        rows(eve.second, f"create index on {s}.ward (n) where {s}.tied(1)")
        with refused("42501", "tied"), meanwhile(admin, eve.first, make):
            eve.second.execute("commit")
        assert eve.policies() == 0
    finally:
        rows(admin, f"drop table public.{wall} cascade")
