"""Rules in the publisher's transaction miss none of its events, and have none that it has taken back."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, meanwhile, refused, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect

BY_FUNCTION = "insert into pgps_event.checked (n) values (app.note())"
OF_SEVERAL = "insert into pgps_event.checked (n) select app.note() from generate_series(1, 2)"
BEHIND = """
    with a as (insert into pgps_event.other (n) values (1) returning n)
    insert into pgps_event.checked (n) select -n from a
"""
BEFORE = """
    with a as (insert into pgps_event.checked (n) values (-7) returning n)
    insert into pgps_event.other (n) values (1)
"""
AFTER_A_RUN = """
    do $$ begin
        perform app.note();
        set constraints all immediate;
        insert into pgps_event.checked (n) values (app.note());
    end $$
"""
STATEMENTS = [BY_FUNCTION, OF_SEVERAL, BEHIND, BEFORE, AFTER_A_RUN]


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "checked")
    make_type(connection, "other")
    rows(
        connection,
        """
        create schema app;
        create function app.forbid(e pgps_event.checked) returns void language plpgsql as $$
        begin raise exception 'negative' using errcode = '23514'; end $$;
        create function app.nothing(e pgps_event.other) returns void language plpgsql as $$ begin end $$;
        create function app.note() returns integer language plpgsql as $$
        begin insert into pgps_event.other (n) values (1); return -1; end $$
        """,
    )
    return connection


@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_an_event_that_was_numbered_before_another_one_is_checked(
    broker: psycopg.Connection, statement: str, coupling: str
) -> None:
    call(broker, "subscribe", "r1", "checked", "n < 0", execute="app.forbid", coupling=coupling)
    call(broker, "subscribe", "r2", "other", execute="app.nothing", coupling=coupling)
    with refused("23514", "negative"):
        rows(broker, statement)
    assert value(broker, "select count(*) from pgps_queue.checked_in") == 0


def test_what_a_savepoint_took_back_is_no_part_of_a_composite_event(broker: psycopg.Connection) -> None:
    rows(broker, "create table public.hits (n integer)")
    call(broker, "create_composite_event", "both", "checked x ; other y", attributes="n integer = x.n")
    rows(
        broker,
        "create function app.hit(e pgps_event.both) returns void language sql as 'insert into public.hits select e.n'",
    )
    call(broker, "subscribe", "rule", "both", execute="app.hit", coupling="immediate")
    rows(
        broker,
        """
        do $$ begin
            begin
                insert into pgps_event.checked (n) values (1);
                raise exception 'back' using errcode = 'PS999';
            exception when sqlstate 'PS999' then null;
            end;
            insert into pgps_event.other (n) values (2);
            insert into pgps_event.checked (n) values (3);
            insert into pgps_event.other (n) values (4);
        end $$
        """,
    )
    assert rows(broker, "select n from public.hits") == [(3,)]


def test_publishers_do_not_wait_for_each_other_where_a_rule_has_lost_its_right(
    broker: psycopg.Connection, own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    owner = role("owner", "pgps_admin")
    rows(broker, f"grant usage, create on schema app to {owner}")
    with connect(dsn=own_database) as session:
        rows(session, f"set role {owner}")
        rows(session, "create function app.fine(e pgps_event.other) returns void language plpgsql as $$ begin end $$")
        call(session, "subscribe", "rule", "other", execute="app.fine", coupling="immediate")
    rows(broker, f"revoke pgps_admin from {owner}; revoke all on pgps_event.other from public, {owner}")
    first, second = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(first, "insert into pgps_event.other (n) values (1)")
    rows(second, "set lock_timeout = '5s'")
    rows(second, "insert into pgps_event.other (n) values (2)")
    first.commit()
    assert value(broker, "select state from pgps.subscriptions where name = 'rule'") == "suspended"


@pytest.mark.parametrize("how", ["filter", "arguments"])
def test_an_attribute_that_a_rule_names_is_not_taken_away(broker: psycopg.Connection, how: str) -> None:
    make_type(broker, "wide", "n integer, z integer")
    rows(
        broker,
        """
        create function app.take(e pgps_event.wide) returns void language plpgsql as $$ begin end $$;
        create function app.one(z integer) returns void language plpgsql as $$ begin end $$
        """,
    )
    if how == "filter":
        call(broker, "subscribe", "rule", "wide", "z > 0", execute="app.take", coupling="immediate")
    else:
        call(broker, "subscribe", "rule", "wide", execute="app.one(z)", coupling="immediate")
    with refused("2BP01", 'subscription "rule"'):
        call(broker, "alter_event_type", "wide", drop_attribute="z")
    rows(broker, "insert into pgps_event.wide (n) values (1)")


def test_a_client_that_registers_in_an_open_transaction_holds_up_no_retry(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    admin, session = connect(dsn=own_database), connect(dsn=own_database)
    client = Client(session, "eve")
    number = client.session
    client.register("checked", "direct")
    session.close()
    since = value(admin, "select pgps.retry_direct(null)")
    again = connect(dsn=own_database, autocommit=False)
    rows(again, "select * from pgps.register_for_event('eve', 'checked', 'direct', session => %s)", [number])
    rows(broker, "insert into pgps_event.checked (n) values (1)")
    rows(broker, "select pgps.dispatch()")
    rows(admin, "set statement_timeout = '5s'")
    assert value(admin, "select pgps.retry_direct(%s)", [since]) > 0


def test_a_call_of_a_client_that_was_dropped_meanwhile_says_so(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    number = Client(connect(dsn=own_database), "c").session
    holder = connect(dsn=own_database, autocommit=False)
    dropper, caller = connect(dsn=own_database), connect(dsn=own_database)
    rows(holder, "select pgps.commit_event('c', session => %s)", [number])

    def send() -> None:
        with refused("42704", 'client "c" does not exist any more'):
            call(caller, "send_request", "c", "select 1", session=number)

    with (
        meanwhile(broker, dropper, lambda: call(dropper, "drop_client", "c")),
        meanwhile(broker, caller, send),
    ):
        holder.commit()
