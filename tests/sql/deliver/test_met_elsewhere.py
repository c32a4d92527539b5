"""What goes wrong only where two things meet: late commits and cut windows, exceptions and what is matched again."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, numbers, publish, rows
from tests.fix_db import Connect


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    """One with an event type."""
    connection = connect(dsn=own_database)
    make_type(connection, "pa")
    return connection


@pytest.mark.parametrize("how", ["subscribe", "seek"])
def test_now_skips_what_committed_late_while_a_window_is_dispatched_in_parts(
    broker: psycopg.Connection, connect: Connect, own_database: str, how: str
) -> None:
    late = connect(dsn=own_database, autocommit=False)
    if how == "seek":
        call(broker, "subscribe", "now", "pa")
    publish(late, "pa", 1)
    publish(broker, "pa", 0)
    call(broker, "dispatch")
    publish(broker, "pa", 2)
    publish(broker, "pa", 3)
    call(broker, "dispatch", 1)
    late.commit()
    call(broker, *(("seek", "now", "now") if how == "seek" else ("subscribe", "now", "pa")))
    publish(broker, "pa", 4)
    call(broker, "dispatch")
    assert numbers(broker, "now") == [4]


AGAIN = {
    "resume": "select pgps.resume('any')",
    "alter": "select pgps.alter_subscription('any', filter => 'public.works(n) and n > 0')",
    "seek": "select pgps.resume('any'), pgps.seek('any', 'earliest')",
}


@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
def test_a_failed_event_is_handed_to_one_competing_consumer_though_it_was_matched_again(
    broker: psycopg.Connection, again: str
) -> None:
    rows(broker, "create table public.broken as select 1 as n")
    rows(
        broker,
        "create function public.works(n integer) returns boolean language plpgsql stable as"
        " $$ begin if exists (select from public.broken) then raise exception 'broken'; end if; return true; end $$",
    )
    rows(broker, "select pgps.configure('filter_failures', '2')")
    call(broker, "subscribe", "any", "pa", "public.works(n)", handler="any")
    publish(broker, "pa", 1, 2)
    call(broker, "dispatch")
    rows(broker, "delete from public.broken")
    rows(broker, again)
    publish(broker, "pa", 3)
    call(broker, "dispatch")
    query = "select (payload->>'n')::integer from pgps.receive('any', consumer => %s)"
    assert column(broker, query, ["one"]) == [3]
    assert call(broker, "retry_exception", "pa") == 2
    assert sorted(column(broker, query, ["one"]) + column(broker, query, ["two"])) == [1, 2, 3]


@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("handler", ["all", "any"])
def test_what_a_consumer_does_not_get_is_not_counted_as_received(
    broker: psycopg.Connection,
    connect: Connect,
    own_database: str,
    role: Callable[..., str],
    takes: bool,
    handler: str,
) -> None:
    """Between dispatch and receiving some of it has become invisible to the consumer."""
    reader = role("reader")
    rows(broker, f"grant select on pgps_event.pa to {reader}")
    session = connect(reader, dsn=own_database)
    call(session, "subscribe", "s", "pa", handler=handler)
    publish(broker, "pa", 1, 2, 3)
    call(broker, "dispatch")
    call(broker, "create_policy", "pa", "odd", reader, "n % 2 = 1")
    if takes:
        assert column(session, "select (payload ->> 'n')::integer from pgps.take('s')") == [1, 3]
    else:
        assert numbers(session, "s") == [1, 3]
        assert call(session, "ack", "s") == 2
    assert column(session, "select delivered from pgps.subscriptions") == [2]
    assert numbers(session, "s") == []


@pytest.mark.parametrize("handler", ["all", "any"])
@pytest.mark.parametrize(
    "change", ["revoke select on pgps_event.pb from public, {}", "select pgps.drop_event_type('pb', true)"]
)
def test_what_is_acknowledged_up_to_an_event_is_what_the_consumer_has_got(
    broker: psycopg.Connection,
    connect: Connect,
    own_database: str,
    role: Callable[..., str],
    handler: str,
    change: str,
) -> None:
    reader = role("reader")
    make_type(broker, "pb")
    rows(broker, f"grant select on pgps_event.pa, pgps_event.pb to {reader}")
    session = connect(reader, dsn=own_database)
    call(session, "subscribe", "s", "p*", handler=handler)
    for n in range(4):
        publish(broker, "pa", n)
        publish(broker, "pb", n)
    call(broker, "dispatch")
    rows(broker, change.format(reader))
    found = rows(session, "select event_id, payload -> 'n' from pgps.receive('s', 6)")
    assert [n for _, n in found] in ([0, 1, 2], [0, 1, 2, 3])
    assert call(session, "ack", "s", found[1][0]) == 2
    assert column(session, "select delivered from pgps.subscriptions") == [2]
    rest = column(session, "select payload -> 'n' from pgps.receive('s')")
    assert rest == [2, 3]
    assert call(session, "ack", "s") == 2
    assert column(session, "select delivered from pgps.subscriptions") == [4]
    assert column(session, "select depth from pgps.subscriptions") == [0]
