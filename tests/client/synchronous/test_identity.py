# Made by tools/unasync_client.py from tests/client/asynchronous/test_identity.py: change that, then `make generate`.
"""Clients that are known by name: registrations in all four cells of the paper's figure 7, recovery, requests."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from pgps import errors
from pgps.client import Client, Identity, Occurrence
from tests.client.synchronous.rig import dispatch, until, until_away
from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import Connect

pytestmark = pytest.mark.anyio
Name = Callable[..., str]


def payloads(occurrence: Occurrence | None) -> list[int]:
    assert occurrence is not None
    return [payload["n"] for payload in occurrence]


def polled(identity: Identity, admin: psycopg.Connection, count: int) -> list[int]:
    """Poll until so many have come, which may take its time, and then for what else comes within a moment."""
    dispatch(admin)
    found: list[int] = []
    while (occurrence := identity.get_event(timeout=60.0 if len(found) < count else 0.2)) is not None:
        found += payloads(occurrence)
    return found


def serve(admin: psycopg.Connection) -> None:
    """Run the requests that wait, as a worker does."""
    while claimed := rows(admin, "select request_no from pgps.claim_request()"):
        rows(admin, "select pgps.run_request(%s)", claimed[0])


@pytest.mark.parametrize("mode", ["direct", "queued"])
@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
def test_what_a_poller_gets_on_commit_and_on_rollback(
    dsn: str, admin: psycopg.Connection, name: Name, mode: str, visibility: str
) -> None:
    kind = name()
    make_type(admin, kind, visibility=visibility)
    with Client(dsn, poll=0.1) as client, client.identify(name("c")) as me:
        me.register(kind, mode=mode)
        me.start()
        early, late = ([1, 2], []) if visibility == "immediate" else ([], [1, 2])
        with client.transaction() as connection:
            client.publish(kind, [{"n": 1}, {"n": 2}], connection=connection)
            assert polled(me, admin, len(early)) == early
        assert polled(me, admin, len(late)) == late
        with pytest.raises(ZeroDivisionError):
            with client.transaction() as connection:
                client.publish(kind, [{"n": 3}], connection=connection)
                raise ZeroDivisionError
        out = [3] if visibility == "immediate" else []
        assert polled(me, admin, len(out)) == out
        if mode == "queued":
            me.commit_event()
        me.disconnect()
    call(admin, "drop_client", me.name)


@pytest.mark.parametrize("mode", ["direct", "queued"])
@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
def test_what_a_handler_gets_and_what_is_left_of_it_by_a_crash_of_the_client(
    dsn: str, admin: psycopg.Connection, name: Name, mode: str, visibility: str
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind, visibility=visibility)
    seen: list[int] = []

    def handle(occurrence: Occurrence) -> None:
        seen.extend(payloads(occurrence))

    with Client(dsn, poll=0.1) as client, client.identify(who) as me:
        me.register(kind, mode=mode, handler=handle)
        me.start()
        publish(admin, kind, 1, 2)
        dispatch(admin)
        until(lambda: seen == [1, 2])
        until(lambda: value(admin, "select pending_events from pgps.clients where name = %s", [who]) == 0)
    # Not disconnected: as after a crash. What comes meanwhile is kept where it is queued.
    publish(admin, kind, 3)
    dispatch(admin)
    until_away(admin, who)
    with Client(dsn, poll=0.1) as client, client.identify(who) as me:
        assert me.state.disconnected is False
        me.register(kind, mode=mode, handler=handle)
        me.start()
        publish(admin, kind, 4)
        dispatch(admin)
        until(lambda: seen == ([1, 2, 3, 4] if mode == "queued" else [1, 2, 4]))
    call(admin, "drop_client", who)


def test_a_restarted_client_finds_its_event_and_its_checkpoint(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    with Client(dsn) as client, client.identify(who) as me:
        assert me.state.last_received_event is None
        me.register(kind)
        publish(admin, kind, 1)
        publish(admin, kind, 2)
        dispatch(admin)
        assert payloads(me.receive_event()) == [1]
        me.set_event_state(lambda: b"one is done")
        assert payloads(me.receive_event(kind)) == [2]  # completes the first, and stores where we are
        with pytest.raises(errors.WrongState):
            me.disconnect()
    until_away(admin, who)
    with Client(dsn) as client, client.identify(who) as me:
        assert me.state.event_checkpoint == b"one is done"
        assert me.state.last_received_event != me.state.last_committed_event
        again = me.re_receive_event()
        assert again is not None
        assert payloads(again) == [2]
        with client.transaction() as connection:
            assert me.commit_event(checkpoint=b"two", connection=connection) == again.event_id
            assert not again.is_completed(), "not yet: the application's transaction decides"
        assert again.is_completed()
        assert me.receive_event() is None
        me.disconnect()
    with Client(dsn) as client, client.identify(who) as me:
        assert me.state.disconnected
        assert me.state.event_checkpoint == b"two"
        assert me.state.last_received_event == me.state.last_committed_event
    call(admin, "drop_client", who)


def test_the_lost_answer_of_a_receive_is_asked_for_again_and_not_passed_over(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    with Client(dsn) as client, client.identify(who) as me:
        me.register(kind)
        for n in (1, 2, 3):
            publish(admin, kind, n)
        dispatch(admin)
        assert payloads(me.receive_event()) == [1]
        rows_of = client._core.session.rows

        def answered_and_lost(*args: Any, **named: Any) -> list[Any]:
            client._core.session.rows = rows_of  # type: ignore[method-assign]
            rows_of(*args, **named)
            raise errors.ConnectionLost("the answer was lost")

        client._core.session.rows = answered_and_lost  # type: ignore[method-assign]
        assert payloads(me.receive_event()) == [2]
        assert payloads(me.receive_event()) == [3]
    call(admin, "drop_client", who)


def test_a_large_set_is_walked_in_groups_in_either_mode(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    seen: list[tuple[str, int, int]] = []

    def handle(occurrence: Occurrence) -> None:
        sizes = [len(group) for group in occurrence.groups(700)]
        seen.append(("queued" if occurrence.is_queued else "direct", sum(sizes), max(sizes)))

    with Client(dsn) as client, client.identify(who) as me:
        me.register(kind, mode="direct", handler=handle)
        me.start()
        rows(admin, f"insert into pgps_event.{kind} select n from generate_series(1, 2500) n")
        publish(admin, kind, 1)
        until(lambda: len(seen) == 2)
        me.register(kind, handler=handle)
        rows(admin, f"insert into pgps_event.{kind} select n from generate_series(1, 2500) n")
        dispatch(admin)
        until(lambda: len(seen) == 3)
    assert seen == [("direct", 2500, 700), ("direct", 1, 1), ("queued", 2500, 700)]
    call(admin, "drop_client", who)


def test_a_prefix_and_the_clause_raiser(
    dsn: str, admin: psycopg.Connection, name: Name, role: Callable[..., str]
) -> None:
    prefix = name("p")
    kind, hidden = name(f"{prefix}_a"), name(f"{prefix}_b")
    alice, one, two = role("alice"), name("c"), name("c")
    make_type(admin, kind, handler="raiser")
    make_type(admin, hidden)
    rows(admin, f"revoke select on pgps_event.{hidden} from public")
    params = {"user": alice, "password": "test"}
    with (
        Client(dsn, **params) as first,  # type: ignore[arg-type]
        Client(dsn, **params) as second,  # type: ignore[arg-type]
        first.identify(one) as me,
        second.identify(two) as other,
    ):
        first.advertise(kind)
        for identity in (me, other):
            identity.register(f"{prefix}*", mode="direct")
            identity.start()
        with pytest.raises(errors.NotPermitted):
            me.register(hidden)
        publish(admin, hidden, 1)
        first.publish(kind, {"n": 2})
        found = me.get_event(timeout=60.0)
        assert payloads(found) == [2]
        assert found is not None
        assert (found.event_name, found.raiser) == (f"{prefix}*", one)
        assert other.get_event(timeout=0.1) is None
        later = name(f"{prefix}_c")
        with admin.transaction():  # with its rights: who hears of it looks at once
            make_type(admin, later)
        until(lambda: len(me._seat._channels) == 4)
        publish(admin, later, 3)
        assert payloads(me.get_event(timeout=60.0)) == [3]
    for who in (one, two):
        call(admin, "drop_client", who)


@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
def test_a_direct_event_is_the_same_whether_it_was_fetched_or_came_with_its_note(
    dsn: str, admin: psycopg.Connection, name: Name, visibility: str
) -> None:
    kind = name()
    call(admin, "create_event_type", kind, "n integer, price numeric, at timestamptz, note text", visibility=visibility)
    call(admin, "advertise", kind)
    at = dt.datetime(2024, 5, 17, 12, 30, tzinfo=dt.UTC)
    sent = [{"n": n, "price": Decimal("0.10"), "at": at, "note": "naïve ☃"} for n in (1, 2)]
    with Client(dsn) as client, client.identify(name("c")) as me:
        me.register(kind.upper(), mode="direct")
        me.register(f"{kind[:-1]}*", mode="direct")
        me.start()
        client.publish(kind, sent)
        event = me.get_event(kind.upper(), timeout=60)
        assert event is not None
        assert [payload for payload in event] == sent
        ((publisher, now),) = rows(admin, "select current_user, clock_timestamp()")
        assert (event.event_type, event.publisher, event.raiser) == (kind, publisher, me.name)
        assert (event.count, event.last_event_id, event.is_queued) == (2, event.event_id + 1, False)
        assert now - dt.timedelta(minutes=1) < event.published_at < now
        assert event.xid == rows(admin, f"select max(xid)::text::bigint from pgps_queue.{kind}_in")[0][0]


def test_two_programs_cannot_be_the_same_client(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    who, kind = name("c"), name()
    make_type(admin, kind)
    with Client(dsn) as first, first.identify(who) as mine:
        mine.register(kind)
        with Client(dsn) as second:
            with pytest.raises(errors.WrongState) as told:
                second.identify(who).connect()
            assert told.value.sqlstate == "55006"
        with Client(dsn) as third, third.identify(who, take_over=True) as theirs:
            assert theirs.state.session > mine.state.session
            with pytest.raises(errors.SessionTaken):
                mine.receive_event()
            assert (mine.is_connected, theirs.is_connected) == (False, True)
            assert theirs.receive_event() is None
    with pytest.raises(errors.BadArgument):
        mine.get_event("nothing")
    call(admin, "drop_client", who)


def test_a_handler_that_raises_keeps_its_event_and_is_called_no_more_in_the_end(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, who, table = name(), name("c"), name("t")
    make_type(admin, kind)
    rows(admin, f"create table {table} (n integer)")

    def handle(occurrence: Occurrence, connection: psycopg.Connection) -> None:
        for n in payloads(occurrence):
            connection.execute(f"insert into {table} values (%s)".encode(), [n])
            if n == 2:
                raise ValueError("no")

    with Client(dsn) as client, client.identify(who) as me:
        registration = me.register(kind, handler=handle, transactional=True)
        registration.retry_in, registration.max_attempts = 0.01, 3
        me.start()
        for n in (1, 2, 3):
            publish(admin, kind, n)
        dispatch(admin)
        until(lambda: registration.error is not None)
        assert registration.failed == 3
        assert rows(admin, f"select n from {table}") == [(1,)]
        me.unset_handler(kind)
        assert payloads(me.re_receive_event()) == [2]
        assert payloads(me.get_event(timeout=60.0)) == [3]
        with pytest.raises(errors.BadArgument, match="has a handler"):
            me.set_handler(kind, handle)
            me.get_event(kind)
    rows(admin, f"drop table {table}")
    call(admin, "drop_client", who)


def test_requests_are_answered_while_the_client_is_away_and_replies_are_walked(
    own_database: str, connect: Connect
) -> None:
    admin = connect(dsn=own_database)
    rows(admin, "create table done (n integer)")
    with Client(own_database, poll=0.2) as client, client.identify("c") as me:
        me.send("insert into done select n from generate_series(1, 3) n", request_id=5)
        assert me.send("insert into done values (9)", request_id=5) == 5  # sent again: changes nothing
    serve(admin)
    until_away(admin, "c")
    with Client(own_database, poll=0.2) as client, client.identify("c") as me:
        assert (me.state.last_sent_request, me.state.last_received_request) == (5, None)
        reply = me.receive_reply(timeout=60.0)
        assert reply is not None
        assert (reply.request_id, reply.status, reply.row_count) == (5, "done", 3)
        assert not reply.is_completed()
        me.commit_receive(checkpoint=b"x" * 10_000)
        assert reply.is_completed()
        first = me.send("select n, 'x' as x from generate_series(1, 2500) n")
        me.send("select 1 / 0")
        serve(admin)
        reply = me.receive_reply(timeout=60.0)
        assert reply is not None
        assert (reply.request_id, reply.columns) == (first, ["n", "x"])
        sizes = [len(group) for group in reply.groups(1000)]
        assert sizes == [1000, 1000, 500]
        failed = me.receive_reply(timeout=60.0)
        assert failed is not None
        with pytest.raises(errors.RequestFailed) as told:
            failed.raise_error()
        assert (told.value.sqlstate, told.value.request_id) == ("22012", first + 1)
        assert (me.re_receive_reply() or failed).request_id == first + 1
        me.commit_receive()
        me.disconnect()
    with Client(own_database) as client, client.identify("c") as me:
        assert me.state.reply_checkpoint == b"x" * 10_000
    assert rows(admin, "select n from done order by n") == [(1,), (2,), (3,)]
