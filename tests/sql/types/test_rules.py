"""Active rules: a statement that changes a table publishes a set of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, make_type, refused, rows, take, value
from tests.fix_db import Connect

Name = Callable[..., str]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    """A type (n, was), a subscription and a table (id, price) of one name."""
    made = name("tick")
    make_type(admin, made, "n integer, was integer default -1")
    call(admin, "subscribe", made, made)
    rows(admin, f"create table public.{made} (id integer primary key, price integer)")
    return made


def seen(admin: psycopg.Connection, tick: str) -> list[tuple[Any, Any]]:
    rows(admin, "select pgps.dispatch()")
    found = rows(admin, "select payload -> 'n', payload -> 'was' from pgps.receive(%s, 20000)", [tick])
    call(admin, "ack", tick)
    return [(row[0], row[1]) for row in found]


def test_each_operation_publishes_old_and_new(admin: psycopg.Connection, tick: str) -> None:
    operations = "insert or update or delete"
    call(
        admin,
        "create_rule",
        tick,
        tick,
        operations,
        tick,
        ["new.price", "old.price"],
        "old.price is distinct from new.price",
    )
    rows(admin, f"insert into public.{tick} values (1, 10), (2, 20), (3, null)")
    assert seen(admin, tick) == [(10, None), (20, None)]
    rows(admin, f"update public.{tick} set price = price + 1, id = id + 10")
    assert seen(admin, tick) == [(11, 10), (21, 20)]
    rows(admin, f"update public.{tick} set id = id + 10")
    assert seen(admin, tick) == []
    rows(admin, f"delete from public.{tick} where price = 11")
    assert seen(admin, tick) == [(None, 11)]
    rows(admin, f"truncate public.{tick}")
    assert seen(admin, tick) == []


def test_columns_may_be_named_as_the_rule_names_things(admin: psycopg.Connection, tick: str) -> None:
    names = [*"lnorux", "new", "old", "event", "place"]
    rows(admin, f"create table public.{tick}_odd ({', '.join(f'{each} integer' for each in names)})")
    total = " + ".join(f"new.{each} - old.{each}" for each in names)
    call(admin, "create_rule", tick, f"{tick}_odd", "update", tick, [total], "new.n > old.o")
    rows(admin, f"insert into public.{tick}_odd values ({', '.join('1' for _ in names)})")
    rows(admin, f"update public.{tick}_odd set {', '.join(f'{each} = 2' for each in names)}")
    assert take(admin, tick) == [len(names)]
    rows(admin, f"drop table public.{tick}_odd")


def test_one_statement_of_ten_thousand_rows_raises_one_set(admin: psycopg.Connection, tick: str) -> None:
    call(admin, "create_rule", tick, tick, "insert, update", tick, ["new.price", "old.price"])
    rows(admin, f"insert into public.{tick} select n, n from generate_series(1, 10000) n")
    before = value(admin, "select count(*) from pgps_internal.control")
    rows(admin, f"update public.{tick} set price = price * 2")
    assert value(admin, "select count(*) from pgps_internal.control") == before + 1
    found = seen(admin, tick)
    assert len(found) == 20000
    assert sorted(found[10000:]) == [(n * 2, n) for n in range(1, 10001)]


def test_expressions_may_use_tables_and_leave_out_attributes_with_defaults(
    admin: psycopg.Connection, tick: str
) -> None:
    rows(admin, f"create table public.{tick}_b (id integer, factor integer)")
    rows(admin, f"insert into public.{tick}_b values (1, 5)")
    factor = f"(select b.factor * new.price from {tick}_b b where b.id = new.id)"
    call(
        admin,
        "create_rule",
        tick,
        tick,
        "INSERT",
        tick,
        [factor],
        f"exists (select from {tick}_b b where b.id = new.id)",
    )
    rows(admin, f"insert into public.{tick} values (1, 10), (2, 20)")
    assert seen(admin, tick) == [(50, -1)]


def test_values_that_are_missing_are_refused_with_how_many_are_wanted(admin: psycopg.Connection, name: Name) -> None:
    made = name("tick")
    make_type(admin, made, "n integer, was integer not null, at timestamptz default now()")
    rows(admin, f"create table public.{made} (id integer)")
    call(admin, "subscribe", made, made)
    for values in ("new.id", "new.id, new.id, now(), 4"):
        count = values.count(",") + 1
        said = (
            f"gives {count} values",
            "has 3 attributes, of which those after the first 2 may be left out",
            "n, was, at",
        )
        with refused("22023", *said):
            call(admin, "create_rule", made, made, "insert", made, values.split(", "))
        with refused("22023", *said):
            call(admin, "execute", f"CREATE RULE {made} AS ON INSERT TO {made} PUBLISH {made} ({values})")
        with refused("22023", *said):
            call(admin, "execute", f"PUBLISH {made} ({values.replace('new.id', '7')})")
    call(admin, "execute", f"PUBLISH {made} (1, 2)")
    call(admin, "create_rule", made, made, "insert", made, ["new.id", "new.id"])
    rows(admin, f"insert into public.{made} values (3)")
    assert seen(admin, made) == [(1, 2), (3, 3)]
    assert value(admin, "select state from pgps.rules where name = %s", [made]) == "active"
    rows(admin, f"alter table public.{made} disable trigger user")
    assert value(admin, "select state from pgps.rules where name = %s", [made]) == "disabled"
    query = "select last_published_at is not null, rate > 0 from pgps.advertisements where event_type = %s"
    assert rows(admin, query, [made]) == [(True, True)]


@pytest.mark.parametrize(
    ("changes", "sqlstate"),
    [
        ({"operations": "select"}, "22023"),
        ({"operations": None}, "22023"),
        ({"operations": ""}, "22023"),
        ({"event_type": "no_such"}, "42704"),
        ({"attributes": []}, "22023"),
        ({"attributes": ["1", "2", "3"]}, "22023"),
        ({"attributes": ["new.nope"]}, "42703"),
        ({"attributes": ["1; drop table x"]}, "42601"),
        ({"attributes": ["1), (2"]}, "42601"),
        ({"attributes": ["'x'::text"]}, "42804"),
        ({"condition": "new.price"}, "42804"),
        ({"condition": "true) or (true"}, "42601"),
        ({"run_as": "root"}, "22023"),
        ({"name": None}, "22023"),
    ],
)
def test_a_bad_rule_is_refused_and_leaves_nothing(
    admin: psycopg.Connection, tick: str, changes: dict[str, Any], sqlstate: str
) -> None:
    given = {"name": tick, "table_name": tick, "operations": "insert", "event_type": tick, "attributes": ["new.price"]}
    with refused(sqlstate):
        call(admin, "create_rule", **{**given, **changes})
    rows(admin, f"insert into public.{tick} values (1, 10)")
    assert take(admin, tick) == []
    assert value(admin, "select count(*) from pgps.rules where event_type = %s", [tick]) == 0


def test_a_dropped_rule_publishes_no_more(admin: psycopg.Connection, connect: Connect, role: Any, tick: str) -> None:
    call(admin, "create_rule", tick, tick, "insert", tick, ["new.price"])
    with refused("42710", tick):
        call(admin, "create_rule", tick, tick, "insert", tick, ["new.price"])
    with refused("42501", tick):
        call(connect(role("other")), "drop_rule", tick)
    call(admin, "drop_rule", tick)
    rows(admin, f"insert into public.{tick} values (1, 10)")
    assert take(admin, tick) == []
    with refused("42704", tick):
        call(admin, "drop_rule", tick)


def test_a_dropped_table_takes_no_other_rule_along(admin: psycopg.Connection, tick: str) -> None:
    call(admin, "create_rule", tick, tick, "insert", tick, ["new.price"])
    call(admin, "create_rule", f"{tick}_b", tick, "insert", tick, ["new.price"])
    rows(admin, f"drop table public.{tick}")
    assert value(admin, "select count(*) from pgps.rules where event_type = %s", [tick]) == 0
    call(admin, "drop_rule", tick)
    rows(admin, f"create table public.{tick} (price integer)")
    call(admin, "create_rule", f"{tick}_b", tick, "insert", tick, ["new.price"])
    rows(admin, f"drop table public.{tick}")
    call(admin, "unsubscribe", tick)
    call(admin, "drop_event_type", tick)


@pytest.mark.parametrize("run_as", ["invoker", "owner"])
def test_run_as_decides_whose_rights_publish(
    admin: psycopg.Connection, connect: Connect, role: Any, tick: str, run_as: str
) -> None:
    owner, user = role("owner"), role("user")
    rows(admin, f"alter table public.{tick} owner to {owner}")
    rows(admin, f"revoke insert on {endpoint(tick)} from public")
    rows(admin, f"grant insert on {endpoint(tick)} to {owner}")
    rows(admin, f"grant insert on public.{tick} to {user}")
    chief, session = connect(owner), connect(user)
    call(chief, "advertise", tick)
    call(chief, "create_rule", tick, tick, "insert", tick, ["new.price"], run_as=run_as)
    statement = f"insert into public.{tick} values (1, 10)"
    if run_as == "invoker":
        with refused("42501"):
            rows(session, statement)
        rows(admin, f"grant insert on {endpoint(tick)} to {user}")
        call(session, "advertise", tick)
    rows(session, statement)
    rows(admin, "select pgps.dispatch()")
    publisher = column(admin, "select publisher from pgps.receive(%s)", [tick])
    assert publisher == [user if run_as == "invoker" else owner]


def test_only_who_owns_the_table_and_may_publish_makes_a_rule(
    admin: psycopg.Connection, connect: Connect, role: Any, tick: str
) -> None:
    other = role("other")
    session = connect(other)
    with refused("42501", tick):
        call(session, "create_rule", tick, tick, "insert", tick, ["new.price"])
    rows(admin, f"alter table public.{tick} owner to {other}")
    rows(admin, f"revoke insert on {endpoint(tick)} from public")
    with refused("42501", tick):
        call(session, "create_rule", tick, tick, "insert", tick, ["new.price"])


def test_a_statement_that_names_a_partition_raises_what_its_parents_rule_says(
    admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    made, table = name("move"), name("t")
    make_type(admin, made)
    rows(admin, f"create table public.{table} (m text, n integer) partition by range (n)")
    rows(admin, f"create table public.{table}_1 (n integer, m text)")
    rows(admin, f"alter table public.{table} attach partition public.{table}_1 for values from (0) to (10)")
    rows(admin, f"create table public.{table}_2 partition of public.{table} for values from (10) to (20)")
    call(admin, "create_rule", made, f"public.{table}", "insert or update or delete", made, ["coalesce(new.n, -old.n)"])
    rows(admin, f"insert into public.{table} values ('x', 1), ('y', 11)")
    rows(admin, f"insert into public.{table}_1 values (2, 'z')")
    rows(admin, f"update public.{table}_2 set n = 12")
    rows(admin, f"update public.{table} set n = 13 where n = 1")
    rows(admin, f"delete from public.{table}_1")
    query = f"select n from pgps_queue.{made}_in order by event_id"
    assert [row[0] for row in rows(admin, query)] == [1, 11, 2, 12, 13, -2]
    call(admin, "drop_rule", made)
    rows(admin, f"insert into public.{table}_1 values (3, 'z')")
    assert len(rows(admin, query)) == 6
    rows(admin, f"drop table public.{table}")


@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
def test_a_rule_outlives_what_its_table_and_columns_are_renamed_to(
    admin: psycopg.Connection, name: Name, visibility: str
) -> None:
    made = name("tick")
    make_type(admin, made, "n integer, was integer", visibility=visibility)
    call(admin, "subscribe", made, made)
    rows(admin, f"create schema {made}; create table {made}.t (id integer primary key, price integer, more text)")
    rows(admin, f"create table {made}.twice (n integer); insert into {made}.twice values (2)")
    rows(admin, f"set search_path = {made}, public")
    attributes = ["new.price * (select n from twice)", "old.price"]
    call(
        admin,
        "create_rule",
        made,
        "t",
        "insert or update or delete",
        made,
        attributes,
        "old.price is distinct from new.price",
    )
    rows(admin, "reset search_path")
    rows(admin, f"alter table {made}.t rename column price to cost; alter table {made}.t rename to orders")
    rows(admin, f"alter table {made}.orders drop column more; alter table {made}.orders add column price text")
    rows(admin, f"alter schema {made} rename to {made}_new; alter table {made}_new.orders set schema public")
    rows(admin, f"alter table public.orders rename to {made}_orders")
    rows(admin, f"insert into public.{made}_orders values (1, 10, 'x')")
    rows(admin, f"update public.{made}_orders set cost = 11")
    rows(admin, f"delete from public.{made}_orders")
    assert seen(admin, made) == [(20, None), (22, 10), (None, 11)]
    with refused("2BP01", made, "cost", "pgps.drop_rule"):
        rows(admin, f"alter table public.{made}_orders drop column cost")
    call(admin, "drop_rule", made)
    rows(admin, f"alter table public.{made}_orders drop column cost")
    rows(admin, f"drop table public.{made}_orders; drop schema {made}_new cascade")


def test_who_renames_what_his_rule_names_is_refused_and_others_are_told(
    admin: psycopg.Connection, connect: Connect, role: Any, tick: str
) -> None:
    owner, other = role("owner"), role("other")
    rows(admin, f"alter table public.{tick} owner to {owner}; grant create on schema public to {owner}, {other}")
    session, stranger = connect(owner), connect(other)
    rows(session, f"create table public.{tick}_mine (price integer)")
    rows(stranger, f"create table public.{tick}_theirs (price integer); grant select on {tick}_theirs to public")
    call(session, "advertise", tick)
    condition = f"new.price in (select m.price from {tick}_mine m union select t.price from {tick}_theirs t)"
    call(session, "create_rule", tick, tick, "insert", tick, ["new.price"], condition)
    for change in (
        f"alter table {tick}_mine rename column price to cost",
        f"alter table {tick}_mine rename to {tick}_x",
    ):
        for whoever in (session, admin):
            with refused("2BP01", tick, "pgps.drop_rule"):
                rows(whoever, change)
    told: list[str] = []
    stranger.add_notice_handler(lambda notice: told.append(f"{notice.message_primary} {notice.message_hint}"))
    rows(stranger, f"alter table {tick}_theirs rename column price to cost")
    assert len(told) == 1, told
    assert f'rule "{tick}" names column price of {tick}_theirs, which is cost now' in told[0]
    rows(stranger, f"alter table {tick}_theirs rename column cost to price")
    rows(session, f"insert into {tick} values (1, 10)")
    rows(
        session,
        f"alter table {tick}_mine add column other integer; alter table {tick}_mine rename column other to others",
    )


def test_a_filter_whose_table_is_renamed_is_named_and_one_in_a_renamed_schema_goes_on(
    admin: psycopg.Connection, tick: str
) -> None:
    rows(
        admin,
        f"create schema {tick}_s; create table {tick}_s.wanted (n integer); insert into {tick}_s.wanted values (1)",
    )
    rows(admin, f"set search_path = {tick}_s, public")
    call(admin, "subscribe", f"{tick}_f", tick, "n in (select w.n from wanted w)")
    rows(admin, "reset search_path")
    told: list[str] = []
    admin.add_notice_handler(lambda notice: told.append(f"{notice.message_primary} {notice.message_hint}"))
    rows(admin, f"alter schema {tick}_s rename to {tick}_new")
    rows(admin, f"insert into {endpoint(tick)} (n) values (1), (2)")
    assert take(admin, f"{tick}_f") == [1]
    assert told == []
    rows(admin, f"alter table {tick}_new.wanted rename column n to m")
    assert f'the filter of subscription "{tick}_f" names column n of wanted, which is m now' in told[0]
    assert f"pgps.alter_subscription('{tick}_f', filter =>" in told[0]
    rows(admin, f"insert into {endpoint(tick)} (n) values (1), (3)")
    call(admin, "alter_subscription", f"{tick}_f", filter=f"n in (select w.m from {tick}_new.wanted w)")
    assert take(admin, f"{tick}_f") == [1]
    call(admin, "unsubscribe", f"{tick}_f")
    rows(admin, f"drop schema {tick}_new cascade")


def test_partitions_that_come_later_fire_the_rule_and_those_that_go_do_not(
    admin: psycopg.Connection, name: Name
) -> None:
    made, table = name("move"), name("t")
    make_type(admin, made)
    rows(admin, f"create table public.{table} (n integer) partition by range (n)")
    call(admin, "create_rule", made, f"public.{table}", "insert", made, ["new.n"])
    rows(
        admin,
        f"create table public.{table}_1 partition of public.{table} for values from (0) to (10) partition by list (n)",
    )
    rows(admin, f"create table public.{table}_3 partition of public.{table}_1 for values in (3)")
    rows(admin, f"create table public.{table}_2 (n integer)")
    rows(admin, f"alter table public.{table} attach partition public.{table}_2 for values from (10) to (20)")
    rows(admin, f"insert into public.{table} values (3), (11)")
    rows(admin, f"insert into public.{table}_3 values (3)")
    rows(admin, f"insert into public.{table}_2 values (12)")
    query = f"select n from pgps_queue.{made}_in order by event_id"
    assert column(admin, query) == [3, 11, 3, 12]
    rows(admin, f"alter table public.{table} detach partition public.{table}_2")
    rows(admin, f"insert into public.{table}_2 values (13)")
    rows(admin, f"alter table public.{table} rename column n to m; insert into public.{table}_3 values (3)")
    assert column(admin, query) == [3, 11, 3, 12, 3]
    rows(admin, f"drop table public.{table}, public.{table}_2")


def test_who_alters_another_table_does_not_wait_for_who_alters_one_with_a_rule(
    admin: psycopg.Connection, connect: Connect, tick: str
) -> None:
    rows(admin, f"create schema {tick}_a; create table {tick}_a.parent (n integer)")
    rows(admin, f"create table {tick}_a.child () inherits ({tick}_a.parent); create schema {tick}_b")
    rows(admin, f"create table {tick}_b.t (n integer)")
    call(admin, "create_rule", f"{tick}_a", f"{tick}_a.child", "insert", tick, ["new.n"])
    call(admin, "create_rule", f"{tick}_b", f"{tick}_b.t", "insert", tick, ["new.n"])
    first, second = connect(autocommit=False), connect()
    rows(first, f"alter table {tick}_a.parent rename column n to m; alter schema {tick}_a rename to {tick}_c")
    rows(second, "set lock_timeout = '60s'")
    rows(second, f"alter table {tick}_b.t rename column n to m; alter schema {tick}_b rename to {tick}_d")
    call(second, "create_rule", f"{tick}_e", f"{tick}_d.t", "update", tick, ["new.m"])
    call(second, "subscribe", f"{tick}_s", tick, f"n in (select t.m from {tick}_d.t t)")
    first.commit()
    rows(
        admin, f"insert into {tick}_c.child values (1); insert into {tick}_d.t values (2); update {tick}_d.t set m = 3"
    )
    assert take(admin, tick) == [1, 2, 3]
    rows(admin, f"drop schema {tick}_c, {tick}_d cascade")
