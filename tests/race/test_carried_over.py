"""What reclaim writes again outlives its segment, and counts for less than what an open transaction has written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, make_type, meanwhile, numbers, publish, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect
from tests.fix_spools import Member, Spool
from tests.fix_units import Party, make_service

SERVICE = "shop/orders/book"


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    return connection


def go_on(broker: psycopg.Connection, sequence: str, size: int) -> None:
    """Let a ledger be in a segment far ahead."""
    last = value(broker, f"select last_value from pgps_internal.{sequence}")
    rows(broker, f"select setval('pgps_internal.{sequence}', {(last // size + 2) * size})")


def at_the_end(broker: psycopg.Connection, sequence: str, size: int) -> None:
    """Let the next number of a ledger lie in the slot of its first segment again."""
    rows(broker, f"select setval('pgps_internal.{sequence}', {4 * size - 1})")


def filled(broker: psycopg.Connection, ledger: str) -> bool:
    """Whether the first segment of a ledger has something."""
    found: bool = value(broker, f"select exists (select from pgps_internal.{ledger}_0)")
    return found


def test_what_an_open_transaction_has_taken_is_not_given_again(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    taker, reclaimer = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    call(broker, "subscribe", "s", "tick")
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch()")
    one = "select (payload->>'n')::integer from pgps.take('s', 1)"
    assert value(broker, one) == 1
    go_on(broker, "position_id_seq", 262144)
    assert value(taker, one) == 2
    rows(reclaimer, "select pgps.reclaim(100)")
    taker.commit()
    assert rows(broker, one) == []
    assert value(broker, "select depth from pgps.subscriptions") == 0


def test_the_position_of_a_callback_is_not_set_back(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    runner, reclaimer = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(broker, "create table public.got (n integer)")
    rows(
        broker,
        "create function public.note(e pgps_event.tick) returns void language sql as "
        "'insert into public.got select e.n'",
    )
    call(broker, "subscribe", "s", "tick", execute="public.note")
    for number in (1, 2):
        publish(broker, "tick", number)
        rows(broker, "select pgps.dispatch_batch()")
        if number == 1:
            call(broker, "run_subscriber", "s")
            go_on(broker, "position_id_seq", 262144)
    call(runner, "run_subscriber", "s")
    rows(reclaimer, "select pgps.reclaim(100)")
    runner.commit()
    call(broker, "run_subscriber", "s")
    assert [n for (n,) in rows(broker, "select n from public.got order by n")] == [1, 2]


def test_a_checkpoint_of_an_open_transaction_is_the_newest(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    session, reclaimer = connect(dsn=own_database), connect(dsn=own_database)
    client = Client(session, "c")
    client.call("commit_event", b"old")
    go_on(broker, "client_checkpoint_id_seq", 16384)
    session.autocommit = False
    client.call("commit_event", b"new")
    rows(reclaimer, "select pgps.reclaim()")
    session.commit()
    session.close()
    again = Client(connect(dsn=own_database), "c", take_over=True)
    assert again.before is not None
    assert again.before["event_checkpoint"] == b"new"


def test_a_reply_that_was_completed_in_an_open_transaction_does_not_come_again(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    session, reclaimer = connect(dsn=own_database), connect(dsn=own_database)
    client = Client(session, "c")
    for number in (1, 2):
        client.call("send_request", f"select {number}")
        call(broker, "run_request", value(broker, "select request_no from pgps.claim_request()"))
    assert client.reply() is not None
    client.call("commit_receive")
    go_on(broker, "reply_mark_id_seq", 16384)
    session.autocommit = False
    assert client.reply() is not None
    client.call("commit_receive")
    go_on(broker, "request_no_seq", 4096)
    rows(reclaimer, "select pgps.reclaim()")
    session.commit()
    assert client.reply() is None


def test_an_occurrence_that_was_completed_in_an_open_transaction_does_not_come_again(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    session, reclaimer = connect(dsn=own_database), connect(dsn=own_database)
    client = Client(session, "c")
    client.register("tick")
    for number in (1, 2, 3):
        publish(broker, "tick", number)
    rows(broker, "select pgps.dispatch()")
    assert client.receive()["numbers"] == [1]  # type: ignore[index]
    client.call("commit_event")
    go_on(broker, "client_mark_id_seq", 16384)
    session.autocommit = False
    assert client.receive()["numbers"] == [2]  # type: ignore[index]
    client.call("commit_event")
    rows(reclaimer, "select pgps.reclaim()")
    session.commit()
    session.autocommit = True
    assert client.taken() == [[3]]
    rows(reclaimer, "select pgps.reclaim()")
    assert not filled(broker, "client_mark"), "when nobody is at work"


def test_a_member_goes_on_where_an_open_transaction_has_acknowledged(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    session, reclaimer = connect(dsn=own_database), connect(dsn=own_database)
    call(broker, "create_spool", "s")
    spool = Spool(broker, "s")
    member = Member(session, spool, "m")
    spool.spool(1, 2, 3)
    assert member.take(1) == [1]
    go_on(broker, "spool_mark_id_seq", 16384)
    session.autocommit = False
    assert member.take(1) == [2]
    rows(reclaimer, "select pgps.reclaim()")
    session.commit()
    assert member.take() == [3]


def test_a_lane_that_is_run_in_an_open_transaction_matches_nothing_twice(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    runner, reclaimer = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(broker, "create function public.good(n integer) returns boolean language sql as 'select true'")
    call(broker, "subscribe", "s", "tick", "public.good(n)")
    run = "select pgps_internal.run_lane(l.lane_id, null, 100, 1.0, null) from pgps_internal.lane l"
    publish(broker, "tick", 1)
    rows(broker, "select pgps.dispatch_batch()")
    rows(broker, run)
    go_on(broker, "lane_step_seq", 65536)
    publish(broker, "tick", 2)
    rows(broker, "select pgps.dispatch_batch()")
    rows(runner, run)
    rows(reclaimer, "select pgps.reclaim(100)")
    runner.commit()
    rows(broker, run)
    assert [n for (n,) in rows(broker, "select (payload->>'n')::integer from pgps.take('s')")] == [1, 2]


Story = Callable[[psycopg.Connection, Connect, str], Callable[[], object]]


def _position(broker: psycopg.Connection, connect: Connect, dsn: str) -> Callable[[], object]:
    call(broker, "subscribe", "s", "tick")
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "select pgps.take('s', 1)")
    at_the_end(broker, "position_id_seq", 262144)
    return lambda: [n for (n,) in rows(broker, "select (payload->>'n')::integer from pgps.take('s')")] == [2]


def _shared(broker: psycopg.Connection, connect: Connect, dsn: str) -> Callable[[], object]:
    call(broker, "subscribe", "s", "tick", handler="any")
    publish(broker, "tick", 1)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "select pgps.take('s', 1)")
    at_the_end(broker, "position_id_seq", 262144)
    return lambda: value(broker, "select sum(acked_total) from pgps_internal.position") == 1


def _mark(broker: psycopg.Connection, connect: Connect, dsn: str) -> Callable[[], object]:
    client = Client(connect(dsn=dsn), "c")
    client.register("tick")
    for number in (1, 2):
        publish(broker, "tick", number)
    rows(broker, "select pgps.dispatch()")
    client.receive()
    client.call("commit_event", b"here")
    at_the_end(broker, "client_mark_id_seq", 16384)
    at_the_end(broker, "client_checkpoint_id_seq", 16384)

    def goes_on() -> bool:
        connected = client.one("select * from pgps.connect_client(%s, %s, %s)", {"take_over": True})
        return connected is not None and connected["event_checkpoint"] == b"here" and client.taken() == [[2]]

    return goes_on


def _member(broker: psycopg.Connection, connect: Connect, dsn: str) -> Callable[[], object]:
    call(broker, "create_spool", "s")
    spool = Spool(broker, "s")
    member = Member(connect(dsn=dsn), spool, "m")
    spool.spool(1, 2)
    assert member.take(1) == [1]
    at_the_end(broker, "spool_mark_id_seq", 16384)
    return lambda: member.take() == [2]


def _request(broker: psycopg.Connection, connect: Connect, dsn: str) -> Callable[[], object]:
    client = Client(connect(dsn=dsn), "c")
    client.call("send_request", "select 1")
    call(broker, "run_request", value(broker, "select request_no from pgps.claim_request()"))
    client.reply()
    client.call("commit_receive")
    at_the_end(broker, "request_no_seq", 4096)
    return lambda: client.call("send_request", "select 2") == 2


def _unit(broker: psycopg.Connection, connect: Connect, dsn: str) -> Callable[[], object]:
    make_service(broker, SERVICE, deferred=True)
    client, server = Party(connect(dsn=dsn), "c"), Party(connect(dsn=dsn), "s").serve(SERVICE)
    client.request(SERVICE, "kept", lifetime="1 year")
    at_the_end(broker, "uow_no_seq", 65536)
    return lambda: server.text("new") == "kept"


@pytest.mark.parametrize("story", [_position, _shared, _mark, _member, _request, _unit])
def test_nothing_is_carried_over_into_the_segment_that_is_truncated(
    broker: psycopg.Connection, own_database: str, connect: Connect, story: Story
) -> None:
    goes_on = story(broker, connect, own_database)
    for _ in range(3):
        rows(broker, "select pgps.reclaim(100)")
    assert goes_on()


def test_the_last_request_of_an_idle_client_takes_nobody_elses_number(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    idle, busy = (Client(connect(dsn=own_database), name) for name in ("idle", "busy"))

    def execute() -> Any:
        return call(broker, "run_request", value(broker, "select request_no from pgps.claim_request()"))

    idle.call("send_request", "select 'mine' as whose")
    execute()
    assert idle.reply() is not None
    idle.call("commit_receive")
    go_on(broker, "request_no_seq", 4096)
    busy.call("send_request", "select 'secret' as whose")
    execute()
    busy.call("send_request", "select 'waits' as whose")
    rows(broker, "select pgps.reclaim()")
    assert not filled(broker, "request")
    assert rows(idle.connection, "select payload from pgps.fetch_reply('idle')") == []
    assert rows(broker, "select state, attempts from pgps.requests where client = 'busy' order by request_id") == [
        ("done", 1),
        ("waiting", 0),
    ]
    assert execute() == "done"
    assert [busy.reply()["rows"] for _ in range(2)] == [[{"whose": "secret"}], [{"whose": "waits"}]]  # type: ignore[index]


def test_what_came_back_from_the_archive_for_two_at_once_comes_to_each_once(
    broker: psycopg.Connection, own_database: str, connect: Connect
) -> None:
    first, second = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    call(broker, "alter_queue", "tick_in", auditable=True)
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch()")
    go_on(broker, "event_id_seq", 65536)
    publish(broker, "tick", 3)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "select pgps.reclaim(100)")
    assert value(broker, "select count(*) from pgps_internal.tick_log") == 1
    call(first, "subscribe", "x", "tick", start="earliest")
    with meanwhile(broker, second, lambda: call(second, "subscribe", "y", "tick", start="earliest")):
        first.commit()
    rows(broker, "select pgps.dispatch()")
    assert [numbers(broker, who) for who in ("x", "y")] == [[1, 2, 3], [1, 2, 3]]
