"""Subscriptions and registrations for a prefix by roles that may not see all of it: they hold up nobody else."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, rows, take_as
from tests.fix_clients import Client
from tests.fix_db import Connect

LOCKED = """
    select distinct l.relation::regclass::text || ' ' || l.mode from pg_locks l
    where l.pid = %s and l.relation::regclass = any (pgps_internal.relations_of(array(
        select t.type_id from pgps_internal.event_type t where t.name = 'pb')))
"""


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    """One with the event types pa, which everybody may see, and pb, which nobody may."""
    connection = connect(dsn=own_database)
    for kind in ("pa", "pb"):
        make_type(connection, kind)
    rows(connection, "revoke all on pgps_event.pb from public")
    return connection


@pytest.fixture
def reader(role: Callable[..., str]) -> str:
    return role("reader")


def changes(broker: psycopg.Connection, session: psycopg.Connection) -> None:
    """Change the type that nobody may see, and drop it, while a transaction is open that may not hold it up."""
    assert column(broker, LOCKED, [session.info.backend_pid]) == []
    rows(broker, "set lock_timeout = '500ms'")
    call(broker, "alter_event_type", "pb", add_attribute="more integer")
    call(broker, "create_policy", "pb", "p", broker.info.user, "true")
    call(broker, "drop_policy", "pb", "p")
    call(broker, "alter_queue", "pb_in", persistent=False)
    with broker.transaction(force_rollback=True):
        call(broker, "drop_event_type", "pb", cascade=True)
    rows(broker, "reset lock_timeout")


SUBSCRIBED = {
    "plain": "select pgps.subscribe('x', 'p*')",
    "all": "select pgps.subscribe('x', '*')",
    "filter": "select pgps.subscribe('x', 'p*', 'n > 0')",
    "any": "select pgps.subscribe('x', 'p*', handler => 'any')",
    "earliest": "select pgps.subscribe('x', 'p*', start => 'earliest')",
    "event": "select pgps.subscribe('x', 'p*', start => '1')",
    "global": "select pgps.subscribe('x', 'p*', scope => 'global')",
}


@pytest.mark.parametrize("subscribed", SUBSCRIBED.values(), ids=SUBSCRIBED)
def test_who_subscribes_to_a_prefix_locks_no_type_that_he_may_not_see(
    broker: psycopg.Connection, connect: Connect, own_database: str, reader: str, subscribed: str
) -> None:
    publish(broker, "pb", 1)
    session = connect(reader, autocommit=False, dsn=own_database)
    rows(session, subscribed)
    changes(broker, session)
    publish(broker, "pb", 2)
    session.commit()
    session.autocommit = True
    assert take_as(broker, session, "x") == []
    publish(broker, "pb", 3)
    assert take_as(broker, session, "x") == []
    rows(broker, f"grant select on pgps_event.pb to {reader}")
    publish(broker, "pa", 4)
    publish(broker, "pb", 5)
    assert take_as(broker, session, "x") == [4, 5]


@pytest.mark.parametrize("mode", ["queued", "direct"])
def test_who_registers_for_a_prefix_locks_no_type_that_he_may_not_see(
    broker: psycopg.Connection, connect: Connect, own_database: str, reader: str, mode: str
) -> None:
    client = Client(connect(reader, dsn=own_database), "client")
    client.connection.autocommit = False
    client.register("p*", mode)
    changes(broker, client.connection)
    client.connection.commit()
    client.connection.autocommit = True
    publish(broker, "pb", 1)
    call(broker, "dispatch")
    rows(broker, f"grant select on pgps_event.pb to {reader}")
    client.listen()
    publish(broker, "pa", 2)
    publish(broker, "pb", 3)
    call(broker, "dispatch")
    if mode == "direct":
        assert sorted(client.pushed()) == [2, 3]
    else:
        assert [n for occurrence in client.taken() for n in occurrence] == [2, 3]


def test_a_callback_that_does_not_fit_a_type_that_its_owner_may_not_see_harms_nobody(
    broker: psycopg.Connection, connect: Connect, own_database: str, reader: str
) -> None:
    rows(broker, f"create schema {reader} authorization {reader}")
    call(broker, "create_event_type", "pc", "other text")
    session = connect(reader, dsn=own_database)
    rows(session, "create function works(n integer) returns void language sql as ''")
    call(session, "subscribe", "x", "p*", execute="works(n)")
    publish(broker, "pa", 1)
    assert call(broker, "dispatch") == 1
    assert column(broker, "select state from pgps.subscriptions where name = 'x'") == ["active"]
