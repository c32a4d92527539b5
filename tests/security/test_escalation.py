"""Nobody gets rights through what the broker runs for them: filters, callbacks, policies, rules."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from pgps import install
from tests.fix_broker import call, column, endpoint, make_type, publish, queue, quoted, refused, rows, value
from tests.fix_db import Connect
from tests.security.conftest import Mallory, may_fail


def serve(mallory: Mallory, *numbers: int) -> None:
    """Publish, dispatch and run callbacks in the superuser's own session."""
    publish(mallory.admin, mallory.event_type, *(numbers or (1, 2)))
    rows(mallory.admin, "select pgps.dispatch()")
    rows(mallory.admin, "call pgps.run_subscribers()")


def search_path_of(connection: psycopg.Connection) -> str:
    return str(value(connection, "show search_path"))


def test_a_callback_runs_with_the_rights_of_its_subscriber(mallory: Mallory, name: Callable[..., str]) -> None:
    mallory.define("win()")
    mallory.subscribe(name("s"), execute=mallory.callback("f", f"perform {mallory.schema}.win();"))
    serve(mallory)
    assert not mallory.has_won()


def test_a_filter_runs_with_the_rights_of_its_subscriber(mallory: Mallory, name: Callable[..., str]) -> None:
    mallory.subscribe(name("s"), filter=mallory.define("win()", "boolean", "true") + "()")
    serve(mallory)
    assert not mallory.has_won()


@pytest.mark.parametrize("local", ["false", "true"])
def test_a_callback_that_leaves_a_search_path_behind_fails_and_changes_nothing(
    mallory: Mallory, name: Callable[..., str], local: str
) -> None:
    mallory.shadow()
    path = f"perform set_config('search_path', '{mallory.schema}, pg_catalog', {local});"
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", path), max_attempts=1)
    before = search_path_of(mallory.admin)
    serve(mallory)
    assert not mallory.has_won()
    assert search_path_of(mallory.admin) == before
    failed = [] if local == "true" else ["55000", "55000"]
    # SET LOCAL ends with the generated function, which has a search_path of its own.
    assert column(mallory.admin, "select sqlstate from pgps.exceptions where subscription = %s", [found]) == failed


@pytest.mark.parametrize(
    "setting", ["standard_conforming_strings", "row_security", "transaction_read_only", "pgps.reliability"]
)
def test_a_callback_that_leaves_another_setting_behind_fails(
    mallory: Mallory, name: Callable[..., str], setting: str
) -> None:
    to = {"transaction_read_only": "on", "pgps.reliability": "non-guaranteed"}.get(setting, "off")
    before = value(mallory.admin, "select current_setting(%s, true)", [setting])
    body = f"perform set_config('{setting}', '{to}', false);"
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", body), max_attempts=1)
    serve(mallory, 1)
    (error,) = column(mallory.admin, "select error from pgps.exceptions where subscription = %s", [found])
    # Whose transaction is read-only finds out earlier.
    assert error in (
        "the callback changed a setting of the session",
        "cannot execute INSERT in a read-only transaction",
    )
    assert (value(mallory.admin, "select current_setting(%s, true)", [setting]) or None) == (before or None)


@pytest.mark.parametrize("local", ["false", "true"])
def test_what_a_filter_leaves_behind_is_taken_back(mallory: Mallory, name: Callable[..., str], local: str) -> None:
    mallory.shadow()
    rows(mallory.connection, f"create table {mallory.schema}.calls (n integer)")
    path = f"""
        insert into {mallory.schema}.calls values (1);
        perform set_config('search_path', '{mallory.schema}, pg_catalog', {local});
        perform set_config('standard_conforming_strings', 'off', {local});
    """
    found = mallory.subscribe(
        name("s"), filter=mallory.define("win(integer)", "boolean", "$1 = 2", before=path) + "(n)"
    )
    before = search_path_of(mallory.admin)
    serve(mallory, 1, 2)
    assert not mallory.has_won()
    assert search_path_of(mallory.admin) == before
    assert value(mallory.admin, "show standard_conforming_strings") == "on"
    assert [p["n"] for p in column(mallory.connection, "select payload from pgps.receive(%s)", [found])] == [2]
    assert rows(mallory.admin, f"select * from {mallory.schema}.calls") == []


def test_a_filter_replayed_in_the_subscribers_own_session_gets_no_rights(
    mallory: Mallory, name: Callable[..., str]
) -> None:
    mallory.shadow()
    path = f"perform set_config('search_path', '{mallory.schema}, pg_catalog', false);"
    call(mallory.admin, "alter_queue", f"{mallory.event_type}_in", auditable=True)
    serve(mallory)
    win = mallory.define("win(integer)", "boolean", "true", before=path)
    mallory.subscribe(name("s"), filter=f"{win}(n)", start="earliest")
    assert not mallory.has_won()


def test_a_policy_that_calls_a_function_gives_its_owner_no_rights(mallory: Mallory, name: Callable[..., str]) -> None:
    mallory.shadow()
    path = f"perform set_config('search_path', '{mallory.schema}, pg_catalog', false);"
    win = mallory.define("win(integer)", "boolean", "$1 operator(pg_catalog.>) 1", before=path)
    call(mallory.admin, "create_policy", quoted(mallory.event_type), "p", mallory.role, f"{win}(n)")
    found = mallory.subscribe(name("s"))
    before = search_path_of(mallory.admin)
    serve(mallory, 1, 2)
    assert not mallory.has_won()
    assert search_path_of(mallory.admin) == before
    assert [p["n"] for p in column(mallory.connection, "select payload from pgps.receive(%s)", [found])] == [2]
    assert not mallory.has_won()


def test_a_trigger_deferred_in_a_callback_does_not_run_with_the_workers_rights(
    mallory: Mallory, name: Callable[..., str]
) -> None:
    mallory.define("win()", "trigger", "null")
    rows(mallory.connection, f"create table {mallory.schema}.trap (n integer)")
    rows(
        mallory.connection,
        f"create constraint trigger trap after insert on {mallory.schema}.trap deferrable initially deferred "
        f"for each row execute function {mallory.schema}.win()",
    )
    body = f"insert into {mallory.schema}.trap values (1);"
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", body), max_attempts=1)
    serve(mallory, 1)
    assert not mallory.has_won()
    assert column(mallory.admin, "select sqlstate from pgps.exceptions where subscription = %s", [found]) == []


def test_a_callback_cannot_change_the_role_of_the_session(mallory: Mallory, name: Callable[..., str]) -> None:
    for number, body in enumerate(["reset role;", "set role none;", "reset session authorization;", "reset all;"]):
        mallory.subscribe(name("s"), execute=mallory.callback(f"f{number}", body), max_attempts=1)
    mallory.define("win()")
    mallory.subscribe(name("s"), execute=mallory.callback("g", f"set local role none; perform {mallory.schema}.win();"))
    serve(mallory, 1)
    assert not mallory.has_won()


def test_temporary_objects_of_a_callback_shadow_nothing_for_others(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    table, victim = name("limits"), connect(role("victim"))
    rows(mallory.admin, f"create table public.{table} as select 2 as n")
    rows(mallory.admin, f"grant select on public.{table} to public")
    body = f"create temp table if not exists {table} as select 1 as n; grant select on {table} to public;"
    body += "create domain pg_temp.text as pg_catalog.text check (false);"
    mallory.subscribe(name("first"), execute=mallory.callback("f", body), priority=9)
    found = name("s")
    call(victim, "subscribe", found, quoted(mallory.event_type), f"n in (select n from {table})")
    safe = name("s")
    call(victim, "subscribe", safe, quoted(mallory.event_type), "word::text || 'x' <> 'y' or n = 2")
    serve(mallory, 1)
    serve(mallory, 1, 2)
    assert [p["n"] for p in column(victim, "select payload from pgps.receive(%s)", [found])] == [2]
    assert value(mallory.admin, "select state from pgps.subscriptions where name = %s", [safe]) == "active"


def test_a_rule_that_publishes_as_its_owner_is_not_led_by_temporary_objects(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    table = name("orders")
    rows(mallory.admin, f"create table public.{table} (n integer); create table public.{table}_limit as select 5 as n")
    rows(mallory.admin, f"grant insert on public.{table} to public")
    call(
        mallory.admin, "create_rule", name("r"), f"public.{table}", "insert", quoted(mallory.event_type),
        [f"(select n from {table}_limit)"], run_as="owner",
    )  # fmt: skip
    mallory.define("win()", "integer", "7")
    rows(mallory.connection, f"create temp view {table}_limit as select {mallory.schema}.win() as n")
    rows(mallory.connection, f"insert into public.{table} values (1)")
    assert not mallory.has_won()
    assert column(mallory.admin, f"select n from {queue(mallory.event_type, 'in')}") == [5]


def test_a_rule_runs_with_the_rights_of_whoever_changes_the_table(mallory: Mallory, name: Callable[..., str]) -> None:
    rows(mallory.connection, f"create table {mallory.schema}.t (n integer)")
    secret = name("secret")
    rows(mallory.admin, f"create table public.{secret} as select 42 as n")
    call(mallory.connection, "advertise", quoted(mallory.event_type))
    with refused("42501", secret):
        call(
            mallory.connection, "create_rule", name("r"), f"{mallory.schema}.t", "insert", quoted(mallory.event_type),
            [f"(select n from public.{secret})"],
        )  # fmt: skip


def test_only_the_owner_of_a_table_makes_a_rule_on_it(mallory: Mallory, name: Callable[..., str]) -> None:
    table = name("t")
    rows(mallory.admin, f"create table public.{table} (n integer)")
    rows(mallory.admin, f"grant all on public.{table} to public")
    with refused("42501", table):
        call(
            mallory.connection,
            "create_rule",
            name("r"),
            f"public.{table}",
            "insert",
            quoted(mallory.event_type),
            ["new.n"],
        )


def test_a_filter_cannot_read_what_its_subscriber_may_not(mallory: Mallory, name: Callable[..., str]) -> None:
    secret = name("secret")
    rows(mallory.admin, f"create table public.{secret} as select 1 as n")
    with refused("42501", secret):
        mallory.subscribe(name("s"), filter=f"exists (select from public.{secret} x where x.n = 1)")
    with refused("42501", "pg_authid"):
        mallory.subscribe(name("s"), filter="exists (select from pg_authid)")


def test_a_callback_of_somebody_else_cannot_be_called_without_the_right_to(
    mallory: Mallory, name: Callable[..., str]
) -> None:
    function = name("f")
    target = f"public.{function}({endpoint(mallory.event_type)})"
    rows(mallory.admin, f"create function {target} returns void language sql security definer as 'select'")
    rows(mallory.admin, f"revoke all on function {target} from public")
    with refused("42501", function):
        mallory.subscribe(name("s"), execute=f"public.{function}")


@pytest.mark.parametrize(
    "predicate",
    [
        "true); alter role {role} superuser; --",
        "true\n); alter role {role} superuser; --",
        "1 = 1) union select 1 from pg_authid where (true",
        "true; select 1",
        "'a' = 'a\\' or true --'",
        "$q$ $q$ = $q$ ) ; --",
        "n = 1 /* ",
        "n = 1 -- \n or (true",
        "U&'\\0027 ) ; --' = '' or true)",
    ],
)
def test_a_filter_is_one_expression_however_it_is_written(
    mallory: Mallory, name: Callable[..., str], predicate: str
) -> None:
    text = predicate.format(role=quoted(mallory.role))
    scope = name("s")
    for connection in (mallory.connection,):
        for strings in ("on", "off"):
            rows(connection, f"set standard_conforming_strings = {strings}")
            try:
                call(connection, "subscribe", scope, quoted(mallory.event_type), text)
            except psycopg.Error:
                continue
            call(connection, "unsubscribe", scope)
        rows(connection, "reset standard_conforming_strings")
    serve(mallory, 1)
    assert not mallory.has_won()


def test_a_forged_loopback_is_not_for_administrators(
    mallory: Mallory, connect: Connect, role: Callable[..., str]
) -> None:
    bob = connect(role("bob", "pgps_admin"))
    with refused("42501", "loopback"):
        call(bob, "configure", "loopback", "dbname=template1 user=postgres")
    assert value(mallory.admin, "select value from pgps.settings where name = 'loopback'") == ""


def test_the_loopback_is_nobody_elses_where_dblink_was_there_before(
    empty_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    admin = connect(dsn=empty_database)
    rows(admin, "create extension dblink schema public")
    install.install(empty_database)
    make_type(admin, "now", "n integer check (n > 0)", visibility="immediate")
    who = role("mallory")
    rows(admin, f"grant insert on pgps_event.now to {who}")
    publisher = connect(who, dsn=empty_database)
    call(publisher, "advertise", "now")
    for number in (1, 2, -1):
        with may_fail("23"):
            publish(publisher, "now", number)
        # There is no such connection; its name would be the text of another one.
        with refused("2F003"):
            rows(publisher, "select public.dblink_exec('pgps_loopback', %s)", [f"alter role {who} superuser"])
    rows(admin, "select public.dblink_connect('pgps_loopback', %s)", [make_conninfo(empty_database, dbname="postgres")])
    publish(admin, "now", 3)
    assert column(admin, "select n from pgps_queue.now_in order by n") == [1, 2, 3]
    assert value(admin, "select rolsuper from pg_roles where rolname = %s", [who]) is False
    call(publisher, "unadvertise", "now")
    rows(admin, f"drop owned by {who}")


def test_arguments_of_the_way_in_are_data_for_everybody(mallory: Mallory) -> None:
    for verb in (
        "x(name, jsonb); select 1",
        "explain\n",
        "explain(name,jsonb",
        'do_"',
        "run_subscriber",
        "",
        "EXPLAIN",
    ):
        with refused("22023", "unknown call"):
            rows(mallory.connection, "select pgps._call(%s, %s)", [verb, Jsonb({})])
