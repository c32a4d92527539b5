"""What the broker does when somebody renames something runs nothing that another wrote, and holds nobody up."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, rows, value
from tests.fix_db import Connect


@pytest.fixture
def mallory(own_database: str, connect: Connect, role: Callable[..., str]) -> psycopg.Connection:
    """Somebody with a schema, and a domain whose check makes him superuser when a superuser reads a constant of it."""
    admin, name = connect(dsn=own_database), role("mallory")
    make_type(admin, "tick", "n integer, s text")
    rows(admin, f"create schema evil authorization {name}")
    session = connect(name, dsn=own_database)
    rows(
        session,
        "create function evil.f() returns boolean language plpgsql as $$ begin"
        f" execute 'alter role {name} superuser'; return true; exception when insufficient_privilege then"
        " return true; end $$",
    )
    rows(session, "create domain evil.dom as text check (evil.f()); create table evil.t (n integer, s text)")
    call(session, "advertise", "tick")
    return session


def is_superuser(admin: psycopg.Connection, session: psycopg.Connection) -> bool:
    return bool(value(admin, "select rolsuper from pg_roles where rolname = %s", [session.info.user]))


def test_who_renames_runs_nothing_of_a_rules_author(
    mallory: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    admin = connect(dsn=own_database)
    call(mallory, "create_rule", "r", "evil.t", "insert or update", "tick", ["new.n", "'x'::evil.dom"], "evil.f()")
    call(mallory, "subscribe", "s", "tick", "s <> 'x'::evil.dom")
    rows(admin, "alter table evil.t rename column n to m; alter table evil.t add column z integer")
    rows(admin, "create table public.other (a integer); alter table public.other rename a to b")
    with pytest.raises(psycopg.Error) as caught:
        rows(admin, "alter schema evil rename to worse")
    assert caught.value.sqlstate == "2BP01", "both are mallory's"
    rows(admin, "alter function evil.f() owner to current_user; alter function evil.f() rename to g")
    assert not is_superuser(admin, mallory)


def test_names_of_columns_are_never_code(mallory: psycopg.Connection, own_database: str, connect: Connect) -> None:
    admin = connect(dsn=own_database)
    names = ['a" from pgps_internal.rule; --', "b as x, (select evil.f()) as y", "$$; drop table x; $$", "%I", "new"]
    for place, name in enumerate(names):
        column = psycopg.sql.Identifier(name).as_string(None)
        rows(mallory, f"create table evil.t{place} (n integer)")
        call(mallory, "create_rule", f"r{place}", f"evil.t{place}", "insert or update or delete", "tick", ["new.n"])
        rows(mallory, f"alter table evil.t{place} rename column n to {column}".replace("%", "%%"))
        rows(admin, f"insert into evil.t{place} values ({place})")
    assert [row[0] for row in rows(admin, "select n from pgps_queue.tick_in order by 1")] == [0, 1, 2, 3, 4]
    assert not is_superuser(admin, mallory)


def test_a_strangers_rule_holds_up_nobody_who_renames_what_is_his_own(
    mallory: psycopg.Connection, own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    admin, name = connect(dsn=own_database), role("victim")
    rows(admin, f"create schema shop authorization {name}")
    victim = connect(name, dsn=own_database)
    rows(victim, "create table shop.prices (price integer); grant usage on schema shop to public")
    rows(victim, "grant select on shop.prices to public")
    call(mallory, "create_rule", "r", "evil.t", "insert", "tick", ["(select max(p.price) from shop.prices p)"])
    call(mallory, "subscribe", "s", "tick", "n in (select p.price from shop.prices p)")
    for whoever in (victim, admin):
        rows(whoever, "alter table shop.prices rename column price to cost")
        rows(whoever, "alter table shop.prices rename column cost to price")
        rows(whoever, "alter table shop.prices rename to costs; alter table shop.costs rename to prices")
    rows(victim, "alter table shop.prices drop column price")
