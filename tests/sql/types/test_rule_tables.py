"""What an active rule can be on: it publishes what changes there, or is refused and never silently does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, refused, rows, value

Name = Callable[..., str]

SERVER = "create server {0} foreign data wrapper postgres_fdw options (host {1}, port {2}, dbname {3})"


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    """A type (n), a subscription and a table (id) of one name."""
    made = name("tick")
    make_type(admin, made, "n integer")
    call(admin, "subscribe", made, made)
    rows(admin, f"create table public.{made} (id integer, word text)")
    return made


@pytest.fixture
def elsewhere(admin: psycopg.Connection, tick: str) -> Iterator[str]:
    """A foreign server that is this database."""
    rows(admin, "create extension if not exists postgres_fdw")
    place = (value(admin, f"select current_setting({name!r})") for name in ("unix_socket_directories", "port"))
    host, port = (str(each).split(",")[0] for each in place)
    database = value(admin, "select current_database()")
    quoted = [psycopg.sql.Literal(each).as_string(admin) for each in (host, port, database)]
    rows(admin, SERVER.format(tick, *quoted))
    rows(admin, f"create user mapping for current_user server {tick} options (user 'postgres')")
    yield tick
    rows(admin, "select postgres_fdw_disconnect_all()")


def warnings(admin: psycopg.Connection) -> list[str]:
    heard: list[str] = []
    admin.add_notice_handler(lambda said: heard.append(f"{said.message_primary} {said.message_hint}"))
    return heard


def seen(admin: psycopg.Connection, tick: str) -> list[int]:
    rows(admin, "select pgps.dispatch()")
    return column(admin, "select (payload -> 'n')::integer from pgps.take(%s)", [tick])


def make_rule(
    admin: psycopg.Connection, tick: str, table: str, operations: str = "insert", moment: str = "end"
) -> None:
    rows(
        admin,
        "select pgps.create_rule(%s, %s, %s, %s, array['7'], moment => %s)",
        [f"{tick}_rule", table, operations, tick, moment],
    )


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("pgps_event.{0}", "pgps.subscribe('…', '{0}', execute"),
        ("pgps_queue.{0}_in", "belongs to pgps"),
        ("pgps_internal.setting", "belongs to pgps"),
        ("pg_class", "belongs to PostgreSQL"),
        ("information_schema.tables", "belongs to PostgreSQL"),
        ("public.{0}_view", "which is a view"),
        ("public.{0}_stored", "which is a materialized view"),
        ("public.{0}_counter", "which is a sequence"),
        ("public.{0}_row", "which is a composite type"),
        ("public.{0}_id", "which is an index"),
    ],
)
def test_a_rule_is_on_a_table(admin: psycopg.Connection, tick: str, table: str, said: str) -> None:
    rows(admin, f"create view public.{tick}_view as select * from public.{tick}")
    rows(admin, f"create materialized view public.{tick}_stored as select * from public.{tick}")
    rows(admin, f"create sequence public.{tick}_counter")
    rows(admin, f"create type public.{tick}_row as (id integer)")
    rows(admin, f"create index {tick}_id on public.{tick} (id)")
    with refused("42809", said.format(tick)):
        make_rule(admin, tick, table.format(tick))
    assert not column(admin, "select name from pgps.rules where event_type = %s", [tick])


def test_a_table_that_is_never_changed_has_no_rule(admin: psycopg.Connection, tick: str) -> None:
    rows(admin, f"create rule aside as on insert to public.{tick} where new.id > 5 do instead nothing")
    make_rule(admin, tick, f"public.{tick}")
    rows(admin, f"insert into public.{tick} values (1), (9)")
    assert seen(admin, tick) == [7]
    call(admin, "drop_rule", f"{tick}_rule")
    rows(admin, f"create or replace rule aside as on insert to public.{tick} do instead nothing")
    with refused("55000", '"aside"', "Make the rule on the table that is changed instead"):
        make_rule(admin, tick, f"public.{tick}")
    make_rule(admin, tick, f"public.{tick}", "delete")


def test_a_foreign_table_tells_of_statements_alone(admin: psycopg.Connection, tick: str, elsewhere: str) -> None:
    rows(
        admin,
        f"create foreign table public.{tick}_there (id integer, word text) server {elsewhere}"
        f" options (table_name {tick!r})",
    )
    with refused("42809", "which is a foreign table", "make the rule there", "moment => 'begin'"):
        make_rule(admin, tick, f"public.{tick}_there")
    make_rule(admin, tick, f"public.{tick}_there", moment="begin")
    rows(admin, f"insert into public.{tick}_there values (1), (2)")
    assert seen(admin, tick) == [7]


@pytest.fixture
def parts(admin: psycopg.Connection, tick: str) -> str:
    """A partitioned table, with one partition here."""
    rows(admin, f"create table public.{tick}_parts (id integer, word text) partition by range (id)")
    rows(admin, f"create table public.{tick}_here partition of public.{tick}_parts for values from (0) to (10)")
    return f"public.{tick}_parts"


def foreign_part(tick: str, elsewhere: str) -> str:
    return (
        f"create foreign table public.{tick}_part partition of public.{tick}_parts for values from (10) to (20)"
        f" server {elsewhere} options (table_name {tick!r})"
    )


def test_a_rule_warns_of_foreign_partitions(admin: psycopg.Connection, tick: str, parts: str, elsewhere: str) -> None:
    heard = warnings(admin)
    rows(admin, foreign_part(tick, elsewhere))
    assert not heard
    make_rule(admin, tick, parts)
    (warning,) = heard
    assert f"{tick}_part" in warning
    assert "link" in warning
    rows(admin, f"insert into {parts} values (1)")
    assert seen(admin, tick) == [7]


@pytest.mark.parametrize("how", ["made", "attached", "inherited"])
def test_a_foreign_partition_that_comes_later_is_warned_of(
    admin: psycopg.Connection, tick: str, parts: str, elsewhere: str, how: str
) -> None:
    there = f"(id integer, word text) server {elsewhere} options (table_name {tick!r})"
    rows(admin, f"create foreign table public.{tick}_alone {there}")
    make_rule(admin, tick, f"public.{tick}" if how == "inherited" else parts)
    heard = warnings(admin)
    rows(
        admin,
        {
            "made": foreign_part(tick, elsewhere),
            "attached": f"alter table {parts} attach partition public.{tick}_alone for values from (20) to (30)",
            "inherited": f"alter foreign table public.{tick}_alone inherit public.{tick}",
        }[how],
    )
    (warning,) = heard
    assert f'rule "{tick}_rule" does not publish what changes in the foreign table' in warning


def test_at_the_beginning_foreign_partitions_publish_too(
    admin: psycopg.Connection, tick: str, parts: str, elsewhere: str
) -> None:
    rows(admin, foreign_part(tick, elsewhere))
    heard = warnings(admin)
    make_rule(admin, tick, parts, moment="begin")
    for statement in (f"insert into {parts} values (11)", f"insert into public.{tick}_part values (12)"):
        rows(admin, statement)
        assert seen(admin, tick) == [7], statement
    assert not heard


def test_a_rule_on_a_foreign_table_goes_with_its_event_type(
    admin: psycopg.Connection, tick: str, elsewhere: str
) -> None:
    rows(
        admin,
        f"create foreign table public.{tick}_there (id integer, word text) server {elsewhere}"
        f" options (table_name {tick!r})",
    )
    make_rule(admin, tick, f"public.{tick}_there", moment="begin")
    call(admin, "drop_event_type", tick, cascade=True)
    assert not column(admin, "select name from pgps.rules where name = %s", [f"{tick}_rule"])
    rows(admin, f"insert into public.{tick}_there values (1)")
