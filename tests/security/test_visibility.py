"""Row-level policies and rights decide what a role may ever receive, also when they change on the way."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, publish, queue, quoted, refused, rows, sink, sunk, value
from tests.fix_db import Connect, notifications
from tests.security.conftest import Mallory


def deliver(mallory: Mallory, *numbers: int) -> None:
    publish(mallory.admin, mallory.event_type, *numbers)
    rows(mallory.admin, "select pgps.dispatch()")


def got(connection: psycopg.Connection, subscription: str) -> list[int]:
    return [p["n"] for p in column(connection, "select payload from pgps.receive(%s)", [subscription])]


def allow(mallory: Mallory, policy: str, expression: str) -> None:
    call(mallory.admin, "create_policy", quoted(mallory.event_type), policy, mallory.role, expression)


def test_policies_add_up_and_without_one_a_role_gets_nothing(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    other, found, none = connect(role("other")), name("s"), name("s")
    allow(mallory, "small", "n < 3")
    allow(mallory, "nine", "n = 9")
    mallory.subscribe(found)
    call(other, "subscribe", none, quoted(mallory.event_type))
    deliver(mallory, 1, 5, 9)
    assert got(mallory.connection, found) == [1, 9]
    assert column(mallory.connection, f"select n from {queue(mallory.event_type, 'in')}") == [1, 9]
    assert got(other, none) == []
    assert rows(other, f"select * from {queue(mallory.event_type, 'in')}") == []


def test_a_policy_made_after_matching_holds_at_delivery(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    found, inner = mallory.subscribe(name("s")), name("s")
    table = f"{mallory.schema}.seen"
    rows(mallory.connection, f"create table {table} (n integer)")
    mallory.subscribe(inner, execute=mallory.callback("f", f"insert into {table} values (($1).n);"))
    deliver(mallory, 1, 2, 3)
    allow(mallory, "odd", "n % 2 = 1")
    rows(mallory.admin, "call pgps.run_subscribers()")
    assert got(mallory.connection, found) == [1, 3]
    assert column(mallory.admin, f"select n from {table} order by n") == [1, 3]
    assert call(mallory.connection, "ack", found) in (2, 3)
    assert got(mallory.connection, found) == []


def test_a_policy_holds_for_the_past_for_retries_and_for_archives(mallory: Mallory, name: Callable[..., str]) -> None:
    call(mallory.admin, "alter_queue", f"{mallory.event_type}_in", auditable=True)
    deliver(mallory, 1, 2)
    allow(mallory, "odd", "n % 2 = 1")
    assert got(mallory.connection, mallory.subscribe(name("s"), start="earliest")) == [1]
    failing = mallory.subscribe(name("s"), filter="1 / (n - n) > 0")
    publish(mallory.admin, mallory.event_type, 1, 2)
    rows(mallory.admin, "select pgps.dispatch()")
    assert call(mallory.admin, "retry_exception", quoted(mallory.event_type), subscription=failing) >= 0
    assert set(column(mallory.connection, f"select n from {queue(mallory.event_type, 'exception')}")) <= {1}


def test_revoked_select_stops_delivery_and_keeps_the_events(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    alice = role("alice")
    connection, found, pattern = connect(alice), name("s"), name("s")
    rows(mallory.admin, f"revoke select on {endpoint(mallory.event_type)} from public")
    rows(mallory.admin, f"grant select on {endpoint(mallory.event_type)} to {quoted(alice)}")
    call(connection, "subscribe", found, quoted(mallory.event_type))
    call(connection, "subscribe", pattern, mallory.event_type + "*")
    deliver(mallory, 1)
    rows(mallory.admin, f"revoke select on {endpoint(mallory.event_type)} from {quoted(alice)}")
    deliver(mallory, 2)
    with refused("42501", mallory.event_type):
        got(connection, found)
    assert got(connection, pattern) == []
    rows(mallory.admin, f"grant select on {endpoint(mallory.event_type)} to {quoted(alice)}")
    assert got(connection, found) == [1]
    deliver(mallory, 3)
    assert got(connection, found) == [1, 3]


def test_a_callback_whose_owner_lost_the_right_is_suspended(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    found, table = name("s"), f"{mallory.schema}.seen"
    rows(mallory.connection, f"create table {table} (n integer)")
    mallory.subscribe(found, execute=mallory.callback("f", f"insert into {table} values (($1).n);"))
    other = sink(mallory.admin, mallory.event_type)
    call(mallory.admin, "subscribe", name("s"), quoted(mallory.event_type), execute=other)
    deliver(mallory, 1)
    rows(mallory.admin, f"revoke select on {endpoint(mallory.event_type)} from public")
    rows(mallory.admin, "call pgps.run_subscribers()")
    assert column(mallory.admin, f"select n from {table}") == []
    assert sunk(mallory.admin, other) == [1]
    rows(mallory.admin, f"grant select on {endpoint(mallory.event_type)} to public")
    call(mallory.connection, "resume", found)
    rows(mallory.admin, "call pgps.run_subscribers()")
    assert column(mallory.admin, f"select n from {table}") == [1]
    rows(mallory.admin, f"drop function {other}; drop table {other}")


def test_a_trace_shows_no_event_that_a_policy_hides(mallory: Mallory, name: Callable[..., str]) -> None:
    call(mallory.admin, "subscribe", name("s"), quoted(mallory.event_type))
    allow(mallory, "odd", "n % 2 = 1")
    deliver(mallory, 1, 2)
    seen = rows(mallory.admin, f"select origin, origin_event_id from {queue(mallory.event_type, 'in')} order by n")
    hops = "select count(*) from pgps.trace(%s, %s)"
    assert [value(mallory.admin, hops, list(event)) for event in seen] == [1, 1]
    assert [value(mallory.connection, hops, list(event)) for event in seen] == [1, 0]


def test_a_policy_that_raises_suspends_its_role_and_nobody_else(mallory: Mallory, name: Callable[..., str]) -> None:
    found, other = mallory.subscribe(name("s")), name("s")
    filtered = mallory.subscribe(name("s"), filter="n > 0")
    call(mallory.admin, "subscribe", other, quoted(mallory.event_type))
    allow(mallory, "bad", "1 / n > 0")
    deliver(mallory, 0)
    deliver(mallory, 1)
    assert got(mallory.admin, other) == [0, 1]
    states = "select state from pgps.subscriptions where name = any (%s)"
    assert column(mallory.admin, states, [[found, filtered]]) == ["suspended", "suspended"]
    call(mallory.admin, "drop_policy", quoted(mallory.event_type), "bad")
    for one in (found, filtered):
        call(mallory.connection, "resume", one)
    rows(mallory.admin, "select pgps.dispatch()")
    assert got(mallory.connection, found) == [0, 1]
    assert got(mallory.connection, filtered) == [1]


def test_what_a_callback_says_of_its_owners_data_is_for_the_owner(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    other = connect(role("other"))
    mallory.subscribe(name("s"), execute=mallory.callback("f", "raise 'the secret';"), max_attempts=1)
    deliver(mallory, 1)
    rows(mallory.admin, "call pgps.run_subscribers()")
    exceptions = f"select error from {queue(mallory.event_type, 'exception')}"
    assert column(mallory.connection, exceptions) == ["the secret"]
    assert column(other, exceptions) == [None]
    assert column(other, "select error from pgps.exceptions") == []


def test_explain_tells_nothing_of_a_hidden_event(mallory: Mallory, name: Callable[..., str]) -> None:
    found = mallory.subscribe(name("s"))
    allow(mallory, "none", "n < 0")
    deliver(mallory, 1)
    log = value(mallory.admin, "select log::text from pgps_internal.event_type where name = %s", [mallory.event_type])
    event = value(mallory.admin, f"select max(event_id) from {log}")
    steps: dict[str, str] = dict(rows(mallory.connection, "select * from pgps.explain(%s, %s)", [found, event]))
    assert "postgres" not in steps["published"]
    assert "no row-level policy" in steps["rights"]
    full: dict[str, str] = dict(rows(mallory.admin, "select * from pgps.explain(%s, %s)", [found, event]))
    assert "postgres" in full["published"]


def test_a_notification_carries_no_data(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    found, other = mallory.subscribe(name("s")), connect(role("other"))
    channel = value(mallory.connection, "select channel from pgps.subscriptions where name = %s", [found])
    rows(other, f"listen {channel}; listen pgps_dispatch; listen pgps_internal")
    deliver(mallory, 1)
    notes = notifications(other)
    assert {note.payload for note in notes} == {""}


@pytest.mark.parametrize("statement", ["select pgps.advertise('{t}')", "insert into {e} (n) values (1)"])
def test_publishing_needs_the_right_and_the_advertisement(
    mallory: Mallory, connect: Connect, role: Callable[..., str], statement: str
) -> None:
    other = connect(role("other"))
    rows(mallory.admin, f"revoke insert on {endpoint(mallory.event_type)} from public")
    with refused("42501"):
        rows(other, statement.format(t=mallory.event_type, e=endpoint(mallory.event_type)))
    rows(mallory.admin, f"grant insert on {endpoint(mallory.event_type)} to public")
    if statement.startswith("insert"):
        with refused("55000", mallory.event_type):
            rows(other, statement.format(t=mallory.event_type, e=endpoint(mallory.event_type)))
    else:
        rows(other, statement.format(t=mallory.event_type))
        call(other, "unadvertise", mallory.event_type)


def test_every_view_asks_for_rights_before_a_condition_of_its_reader(admin: psycopg.Connection) -> None:
    open_views = column(
        admin,
        "select c.oid::regclass::text from pg_class c where c.relkind = 'v' and c.relnamespace::regnamespace::text ~ "
        "'^pgps(_internal|_queue|_link)?$' and has_table_privilege('public', c.oid, 'select') "
        "and not coalesce(c.reloptions && '{security_barrier=true,security_invoker=true}', false)",
    )
    assert open_views == []
    assert value(admin, "select has_table_privilege('public', 'pgps.subscriptions', 'select')")


def test_a_condition_of_a_reader_sees_no_row_that_a_view_hides(
    mallory: Mallory, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    secret = name("secret")
    rows(mallory.admin, f"select pgps.create_event_type('{secret}', 'n integer')")
    call(mallory.admin, "advertise", secret)
    rows(mallory.admin, f"revoke all on {endpoint(secret)} from public")
    call(mallory.admin, "subscribe", name("s"), secret, "n > 4711")
    reads = f"{mallory.schema}.reads"
    # The planner asks first what costs least.
    rows(
        mallory.connection,
        f"create function {reads}(text) returns boolean language plpgsql cost 0.0000001 as "
        "$$ begin raise notice '%', $1; return true; end $$",
    )
    seen: list[str | None] = []
    mallory.connection.add_notice_handler(lambda diagnostic: seen.append(diagnostic.message_primary))
    for view, attribute in (
        ("subscriptions", "filter"),
        ("subscriptions", "event_type"),
        ("event_types", "name"),
        ("queues", "event_type"),
        ("advertisements", "event_type"),
        ("activity", "event_type"),
    ):
        rows(mallory.connection, f"select count(*) from pgps.{view} v where {reads}(v.{attribute})")
    assert seen
    assert not [line for line in seen if "4711" in str(line) or secret in str(line)]
