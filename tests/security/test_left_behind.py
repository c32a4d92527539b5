"""Nothing that a user's code leaves for the commit, or in the session, runs with other rights or speaks for others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fix_broker import call, column, meanwhile, publish, quoted, refused, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect, notifications
from tests.security.conftest import Mallory

Name = Callable[..., str]
Role = Callable[..., str]


def serve(mallory: Mallory, *numbers: int) -> None:
    """Publish, dispatch and run callbacks in the superuser's own session."""
    publish(mallory.admin, mallory.event_type, *(numbers or (1,)))
    rows(mallory.admin, "select pgps.dispatch()")
    rows(mallory.admin, "call pgps.run_subscribers()")


def errors(mallory: Mallory, subscription: str) -> list[tuple[str, str]]:
    query = "select sqlstate, error from pgps.exceptions where subscription = %s order by event_id"
    return [(state, error) for state, error in rows(mallory.admin, query, [subscription])]


def exclusion(mallory: Mallory, temporary: str) -> str:
    """Return PL/pgSQL that leaves an exclusion constraint to be checked again at the commit."""
    win = mallory.define("win(integer)", "integer", "1")
    # PostgreSQL lets no function that calls itself immutable write; one that it calls may.
    body = f"begin return {win}(1); end"
    win = f"{mallory.schema}.f"
    rows(mallory.connection, f"create function {win}(integer) returns integer immutable language plpgsql as '{body}'")
    table = "trap" if temporary else f"{mallory.schema}.trap"
    constraint = f"exclude using btree ({win}(x) with =) deferrable initially deferred"
    made = f"create {temporary} table {table} (x integer, {constraint})"
    # The second row is to be looked at again, and finds nothing in its way then.
    return (
        f"execute '{made}'; execute 'insert into {table} values (1), (2)'; execute 'delete from {table} where x = 1';"
    )


def trigger(mallory: Mallory, body: str = "") -> str:
    """Return PL/pgSQL that leaves a constraint trigger for the commit; `body` runs in it before it tries to win."""
    schema = mallory.schema
    mallory.define("win()", "trigger", "null", before=body)
    rows(mallory.connection, f"create table {schema}.trap (x integer)")
    rows(
        mallory.connection,
        f"create constraint trigger trap after insert on {schema}.trap deferrable initially deferred "
        f"for each row execute function {schema}.win()",
    )
    return f"insert into {schema}.trap values (1);"


def rearmed(mallory: Mallory) -> str:
    """As `trigger`, but what runs in it defers itself again, for ever."""
    return trigger(mallory, f"set constraints all deferred; insert into {mallory.schema}.trap values (1);")


def rearmed_by_name(mallory: Mallory) -> str:
    schema = mallory.schema
    return trigger(mallory, f"set constraints {schema}.trap deferred; insert into {schema}.trap values (1);")


def rearmed_in_a_savepoint(mallory: Mallory) -> str:
    inner = f"set constraints all deferred; insert into {mallory.schema}.trap values (1);"
    return trigger(mallory, f"begin {inner} exception when others then null; end;")


TRAPS: dict[str, tuple[Callable[[Mallory], str], str]] = {
    "exclusion": (lambda m: exclusion(m, ""), ""),
    "exclusion in a temporary table": (lambda m: exclusion(m, "temporary"), ""),
    "trigger": (trigger, ""),
    "trigger that defers again": (rearmed, "0A000"),
    "trigger that defers again by name": (rearmed_by_name, "0A000"),
    "trigger that defers again in a savepoint": (rearmed_in_a_savepoint, "0A000"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_what_a_callback_defers_to_the_commit_runs_with_its_owners_rights(
    mallory: Mallory, name: Name, trap: str
) -> None:
    make, state = TRAPS[trap]
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", make(mallory)), max_attempts=1)
    serve(mallory, 1)
    assert not mallory.has_won()
    assert [state for state, _ in errors(mallory, found)] == ([state] if state else [])


@pytest.mark.parametrize("trap", TRAPS)
def test_what_a_request_defers_to_the_commit_runs_with_its_owners_rights(
    mallory: Mallory, name: Name, trap: str
) -> None:
    make, state = TRAPS[trap]
    client = Client(mallory.connection, name("client"))
    client.call("send_request", f"do $do$ begin {make(mallory)} end $do$")
    number = value(mallory.admin, "select request_no from pgps.claim_request()")
    assert call(mallory.admin, "run_request", number) == ("failed" if state else "done")
    found = client.reply()
    assert found is not None
    assert found["sqlstate"] == (state or None)
    assert not mallory.has_won()


def test_a_workers_passwords_are_not_read_by_what_a_callback_defers(
    mallory: Mallory, connect: Connect, role: Role, name: Name
) -> None:
    schema = mallory.schema
    rows(mallory.connection, f"create table {schema}.stolen (conninfo text)")
    rows(mallory.connection, f"grant insert on {schema}.stolen to public")
    steal = f"begin insert into {schema}.stolen select l::text from pgps.serve_links() l; "
    body = trigger(mallory, steal + "exception when insufficient_privilege then null; end;")
    mallory.subscribe(name("s"), execute=mallory.callback("f", body))
    call(mallory.admin, "create_link", name("link"), "host=127.0.0.1 port=1 dbname=x password=secret")
    publish(mallory.admin, mallory.event_type, 1)
    rows(mallory.admin, "select pgps.dispatch()")
    rows(connect(role("worker", "pgps_worker")), "call pgps.run_subscribers()")
    assert rows(mallory.connection, f"select count(*) from {schema}.trap") == [(1,)], "the callback has run"
    assert rows(mallory.connection, f"select * from {schema}.stolen") == []
    rows(mallory.admin, "select pgps.drop_link(name) from pgps.links")


def test_what_a_worker_has_deferred_does_not_run_with_the_rights_of_a_subscriber(
    mallory: Mallory, connect: Connect, name: Name
) -> None:
    rows(mallory.admin, f"grant pgps_worker to {quoted(mallory.role)}")
    table, found = name("t"), name("s")
    rows(
        mallory.admin,
        f"create function public.{table}(pgps_event.{quoted(mallory.event_type)}) returns void language sql as ''",
    )
    call(mallory.admin, "subscribe", found, quoted(mallory.event_type), execute=f"public.{table}")
    body = trigger(mallory)
    publish(mallory.admin, mallory.event_type, 1)
    rows(mallory.admin, "select pgps.dispatch()")
    rows(mallory.connection, f"begin; do $do$ begin {body} end $do$")
    with refused("25001"):
        call(mallory.connection, "run_subscriber", found)
    rows(mallory.connection, "rollback")
    with refused("25001"):
        rows(mallory.connection, f"do $do$ begin {body} perform pgps._run('{found}', false); end $do$")
    with refused("25001"):
        rows(mallory.connection, f"do $do$ begin {body} perform pgps.run_request(1); end $do$")
    rows(mallory.connection, f"do $do$ begin {body} call pgps.run_subscribers(); end $do$")
    assert value(mallory.admin, "select delivered from pgps.subscriptions where name = %s", [found]) == 1
    assert not mallory.has_won()


@pytest.mark.parametrize("failing", [None, 3])
def test_constraints_that_are_deferred_as_usual_hold_for_callbacks_too(
    mallory: Mallory, name: Name, failing: int | None
) -> None:
    schema = mallory.schema
    rows(mallory.connection, f"create table {schema}.parent (id integer primary key)")
    reference = f"references {schema}.parent deferrable initially deferred"
    rows(mallory.connection, f"create table {schema}.child (id integer, parent integer {reference})")
    parent = f"insert into {schema}.parent values (($1).n);"
    parent = f"if ($1).n <> {failing} then {parent} end if;" if failing else parent
    body = f"insert into {schema}.child values (($1).n, ($1).n); {parent}"
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", body), max_attempts=1)
    serve(mallory, 1, 2, 3, 4)
    assert column(mallory.connection, f"select id from {schema}.child order by id") == [
        n for n in (1, 2, 3, 4) if n != failing
    ]
    assert [state for state, _ in errors(mallory, found)] == (["23503"] if failing else [])


# ----------------------------------------------------------------------------------------------------------------------
# The session
# ----------------------------------------------------------------------------------------------------------------------

SETTINGS = {
    "pgps.act_as": "postgres",
    "pgps.client": "1",
    "pgps.handler": "any",
    "statement_timeout": "17ms",
    "lock_timeout": "17ms",
    "idle_in_transaction_session_timeout": "17ms",
    "client_encoding": "LATIN1",
    "client_min_messages": "error",
    "default_transaction_read_only": "on",
    "work_mem": "64kB",
    "datestyle": "German",
    "timezone": "Asia/Tokyo",
    "default_tablespace": "pg_default",
    "temp_tablespaces": "pg_default",
    "extra_float_digits": "-3",
    "bytea_output": "escape",
    "application_name": "mallory",
    "plpgsql.check_asserts": "off",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_of_the_caller_is_another_one_after_callbacks(mallory: Mallory, name: Name, setting: str) -> None:
    admin = mallory.admin
    before = value(admin, "select current_setting(%s, true)", [setting])
    body = f"perform set_config('{setting}', '{SETTINGS[setting]}', false);"
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", body), max_attempts=1)
    serve(mallory)
    assert (value(admin, "select current_setting(%s, true)", [setting]) or None) == (before or None)
    assert errors(mallory, found) == [("55000", "the callback changed a setting of the session")]


def test_a_setting_that_a_role_has_by_default_is_compared(mallory: Mallory, name: Name) -> None:
    setting = f"app_{mallory.role}.tenant"
    rows(
        mallory.admin,
        f"alter role {quoted(mallory.role)} set \"{setting}\" = 'x'".replace('"app', "app").replace(
            'tenant"', "tenant"
        ),
    )
    rows(mallory.admin, "select set_config(%s, '7', false)", [setting])
    body = f"perform set_config('{setting}', '8', false);"
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", body), max_attempts=1)
    serve(mallory)
    assert value(mallory.admin, "select current_setting(%s, true)", [setting]) == "7"
    assert [state for state, _ in errors(mallory, found)] == ["55000"]


def test_the_next_publication_of_the_caller_is_its_own(mallory: Mallory, name: Name) -> None:
    body = f"perform set_config('pgps.act_as', '{mallory.role}', false);"
    mallory.subscribe(name("s"), execute=mallory.callback("f", body), max_attempts=1)
    serve(mallory)
    publish(mallory.admin, mallory.event_type, 2)
    found = column(mallory.admin, f"select publisher from pgps_queue.{quoted(mallory.event_type + '_in')} where n = 2")
    assert found == [value(mallory.admin, "select current_user")]


def test_a_setting_that_a_role_is_given_meanwhile_is_none_of_the_session(
    mallory: Mallory, name: Name, connect: Connect
) -> None:
    """An administrator gives it to a role, of any database of the server, while the callback runs."""
    lock = value(mallory.admin, "select abs(hashtext(%s)::bigint)", [mallory.role])
    callback = mallory.callback("f", f"perform pg_advisory_xact_lock({lock});")
    found = mallory.subscribe(name("s"), execute=callback, max_attempts=1)
    other = connect()
    rows(other, f"select pg_advisory_lock({lock})")
    with meanwhile(other, mallory.admin, lambda: serve(mallory)):
        rows(other, f"alter role {mallory.role} set extension.made_up = 'meanwhile'")
        rows(other, f"select pg_advisory_unlock({lock})")
    assert errors(mallory, found) == []


@pytest.mark.parametrize("kind", ["table", "view", "type", "function"])
def test_temporary_objects_of_a_callback_are_gone_when_it_has_run(mallory: Mallory, name: Name, kind: str) -> None:
    mallory.define("win()", "text", "''")
    make = {
        "table": "create temporary table pg_roles as select 'mallory'::text as rolname",
        "view": f"create temporary view pg_roles as select {mallory.schema}.win() as rolname",
        "type": "create type pg_temp.text as (x integer)",
        "function": "create function pg_temp.f() returns integer language sql as 'select 1'",
    }[kind]
    body = f"execute $x${make}$x$; "
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", body), max_attempts=1)
    serve(mallory)
    assert errors(mallory, found) == []
    there = (
        "select count(*) from pg_depend where refclassid = 'pg_namespace'::regclass and refobjid = pg_my_temp_schema()"
    )
    assert value(mallory.admin, there) == 0
    assert value(mallory.admin, "select count(*) from pg_roles where rolname = current_user") == 1
    rows(mallory.admin, "create temporary table mine as select 1 as n")
    serve(mallory)
    assert errors(mallory, found) == [("55000", "the callback left temporary objects behind")]
    assert rows(mallory.admin, "table mine") == [(1,)]


def test_a_temporary_table_of_a_callback_serves_it_until_it_ends(mallory: Mallory, name: Name) -> None:
    schema = mallory.schema
    rows(mallory.connection, f"create table {schema}.kept (n integer)")
    body = f"""
        create temporary table if not exists work (n integer) on commit drop; insert into work values (($1).n);
        insert into {schema}.kept select sum(n) from work;
    """
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", body), max_attempts=1)
    serve(mallory, 1, 2)
    serve(mallory, 4)
    assert errors(mallory, found) == []
    assert column(mallory.connection, f"select n from {schema}.kept") == [1, 3, 4]


@pytest.mark.parametrize("numbers", [(1,), (1, 2)])
def test_what_a_callback_prepares_is_gone_when_it_raises(
    mallory: Mallory, name: Name, numbers: tuple[int, ...]
) -> None:
    """A client would execute it as its own: its driver calls what it prepares _pg3_0, _pg3_1 …"""
    callback = mallory.callback("prepares", "execute 'prepare _pg3_99 as select 1'; raise exception 'fails';")
    mallory.subscribe(name("s"), execute=callback, max_attempts=1)
    serve(mallory, *numbers)
    assert column(mallory.admin, "select name from pg_prepared_statements where from_sql") == []


@pytest.mark.parametrize("role_of", ["filter", "policy"])
def test_what_a_filter_or_a_policy_prepares_is_gone_when_it_raises(mallory: Mallory, name: Name, role_of: str) -> None:
    prepares = mallory.define(
        "prepares(integer)", "boolean", "1/0 = 1", before="execute 'prepare _pg3_99 as select 1';"
    )
    if role_of == "policy":
        rows(mallory.admin, f"grant usage on schema {mallory.schema} to public")
        call(mallory.admin, "create_policy", quoted(mallory.event_type), name("p"), mallory.role, f"{prepares}(n)")
    mallory.subscribe(name("s"), **({"filter": f"{prepares}(n)"} if role_of == "filter" else {}))
    serve(mallory, 1, 2)
    assert column(mallory.admin, "select name from pg_prepared_statements where from_sql") == []


def test_channels_are_as_they_were(mallory: Mallory, name: Name) -> None:
    rows(mallory.admin, 'listen mine; listen "Ours, too"')
    body = "execute 'listen theirs'; execute 'unlisten mine'; perform pg_notify('mine', 'hello');"
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", body), max_attempts=1)
    serve(mallory)
    assert errors(mallory, found) == []
    assert set(column(mallory.admin, "select pg_listening_channels()")) == {"mine", "Ours, too"}
    assert [n.payload for n in notifications(mallory.admin)] == ["hello"]
    rows(mallory.admin, "unlisten *")
    serve(mallory)
    assert rows(mallory.admin, "select pg_listening_channels()") == []


LOCKS = """
select mode, classid::bigint, objid::bigint, objsubid from pg_locks
where locktype = 'advisory' and pid = pg_backend_pid()
"""


@pytest.mark.parametrize("held", [False, True])
def test_advisory_locks_are_as_they_were(mallory: Mallory, connect: Connect, name: Name, held: bool) -> None:
    caller = connect()
    if held:
        rows(caller, "select pg_advisory_lock(-5), pg_advisory_lock_shared(7, -8), pg_advisory_lock(9)")
    before = set(rows(caller, LOCKS))
    body = """
        perform pg_advisory_lock(-6), pg_advisory_lock(-6), pg_advisory_lock_shared(3, 4), pg_advisory_xact_lock(11);
        perform pg_advisory_unlock(-5), pg_advisory_unlock_shared(7, -8);
    """
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", body), max_attempts=1)
    publish(mallory.admin, mallory.event_type, 1)
    rows(mallory.admin, "select pgps.dispatch()")
    rows(caller, "call pgps.run_subscribers()")
    assert errors(mallory, found) == []
    assert set(rows(caller, LOCKS)) == before


def test_an_advisory_lock_that_a_callback_gave_away_is_told(mallory: Mallory, connect: Connect, name: Name) -> None:
    caller, thief = connect(), connect()
    rows(caller, "select pg_advisory_lock(12)")
    mallory.subscribe(name("s"), execute=mallory.callback("f", "perform pg_advisory_unlock(12);"))
    publish(mallory.admin, mallory.event_type, 1)
    rows(mallory.admin, "select pgps.dispatch()")
    waits = meanwhile(mallory.admin, thief, lambda: rows(thief, "select pg_advisory_lock(12)"))
    with waits, refused("55000", "(12)"):
        rows(caller, "call pgps.run_subscribers()")


def test_numbers_of_sequences_are_forgotten_rather_than_anothers(mallory: Mallory, name: Name) -> None:
    sequence = f"public.{name('q')}"
    rows(mallory.admin, f"create sequence {sequence}")
    rows(mallory.admin, f"grant usage on sequence {sequence} to public")
    rows(mallory.admin, f"select nextval('{sequence}')")
    mallory.subscribe(name("s"), execute=mallory.callback("f", f"perform nextval('{sequence}');"))
    serve(mallory)
    with refused("55000"):
        value(mallory.admin, f"select currval('{sequence}')")


def test_callbacks_do_not_read_from_a_cursor_of_the_caller(mallory: Mallory, name: Name) -> None:
    mallory.subscribe(name("s"), execute=mallory.callback("f", "execute 'fetch all from secret';"))
    rows(mallory.admin, "begin; declare secret cursor with hold for select 'secret'; commit")
    with refused("55000", "secret", "close secret"):
        rows(mallory.admin, "call pgps.run_subscribers()")
    rows(mallory.admin, "close secret")
    rows(mallory.admin, "call pgps.run_subscribers()")


def test_a_callback_may_notify_publish_and_set_locally(mallory: Mallory, name: Name) -> None:
    call(mallory.connection, "advertise", quoted(mallory.event_type))
    body = f"""
        perform pg_notify('anybody', 'x');
        if ($1).n < 3 then
            insert into pgps_event.{quoted(mallory.event_type)} (n) values (($1).n + 1);
            perform pgps.publish('{quoted(mallory.event_type)}', jsonb_build_object('n', 9), 'immediate');
        end if;
    """
    found = mallory.subscribe(name("s"), execute=mallory.callback("f", body), max_attempts=1)
    serve(mallory, 1)
    serve(mallory)
    assert errors(mallory, found) == []
    assert value(mallory.admin, "select delivered from pgps.subscriptions where name = %s", [found]) >= 2
