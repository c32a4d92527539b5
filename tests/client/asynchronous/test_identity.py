"""Clients that are known by name: registrations in all four cells of the paper's figure 7, recovery, requests."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from pgps import errors
from pgps.client import AsyncClient, AsyncIdentity, AsyncOccurrence
from tests.client.asynchronous.rig import dispatch, until, until_away
from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import Connect

pytestmark = pytest.mark.anyio
Name = Callable[..., str]


async def payloads(occurrence: AsyncOccurrence | None) -> list[int]:
    assert occurrence is not None
    return [payload["n"] async for payload in occurrence]


async def polled(identity: AsyncIdentity, admin: psycopg.Connection, count: int) -> list[int]:
    """Poll until so many have come, which may take its time, and then for what else comes within a moment."""
    dispatch(admin)
    found: list[int] = []
    while (occurrence := await identity.get_event(timeout=60.0 if len(found) < count else 0.2)) is not None:
        found += await payloads(occurrence)
    return found


def serve(admin: psycopg.Connection) -> None:
    """Run the requests that wait, as a worker does."""
    while claimed := rows(admin, "select request_no from pgps.claim_request()"):
        rows(admin, "select pgps.run_request(%s)", claimed[0])


@pytest.mark.parametrize("mode", ["direct", "queued"])
@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
async def test_what_a_poller_gets_on_commit_and_on_rollback(
    dsn: str, admin: psycopg.Connection, name: Name, mode: str, visibility: str
) -> None:
    kind = name()
    make_type(admin, kind, visibility=visibility)
    async with AsyncClient(dsn, poll=0.1) as client, client.identify(name("c")) as me:
        await me.register(kind, mode=mode)
        await me.start()
        early, late = ([1, 2], []) if visibility == "immediate" else ([], [1, 2])
        async with client.transaction() as connection:
            await client.publish(kind, [{"n": 1}, {"n": 2}], connection=connection)
            assert await polled(me, admin, len(early)) == early
        assert await polled(me, admin, len(late)) == late
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                await client.publish(kind, [{"n": 3}], connection=connection)
                raise ZeroDivisionError
        out = [3] if visibility == "immediate" else []
        assert await polled(me, admin, len(out)) == out
        if mode == "queued":
            await me.commit_event()
        await me.disconnect()
    call(admin, "drop_client", me.name)


@pytest.mark.parametrize("mode", ["direct", "queued"])
@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
async def test_what_a_handler_gets_and_what_is_left_of_it_by_a_crash_of_the_client(
    dsn: str, admin: psycopg.Connection, name: Name, mode: str, visibility: str
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind, visibility=visibility)
    seen: list[int] = []

    async def handle(occurrence: AsyncOccurrence) -> None:
        seen.extend(await payloads(occurrence))

    async with AsyncClient(dsn, poll=0.1) as client, client.identify(who) as me:
        await me.register(kind, mode=mode, handler=handle)
        await me.start()
        publish(admin, kind, 1, 2)
        dispatch(admin)
        await until(lambda: seen == [1, 2])
        await until(lambda: value(admin, "select pending_events from pgps.clients where name = %s", [who]) == 0)
    # Not disconnected: as after a crash. What comes meanwhile is kept where it is queued.
    publish(admin, kind, 3)
    dispatch(admin)
    await until_away(admin, who)
    async with AsyncClient(dsn, poll=0.1) as client, client.identify(who) as me:
        assert me.state.disconnected is False
        await me.register(kind, mode=mode, handler=handle)
        await me.start()
        publish(admin, kind, 4)
        dispatch(admin)
        await until(lambda: seen == ([1, 2, 3, 4] if mode == "queued" else [1, 2, 4]))
    call(admin, "drop_client", who)


async def test_a_restarted_client_finds_its_event_and_its_checkpoint(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    async with AsyncClient(dsn) as client, client.identify(who) as me:
        assert me.state.last_received_event is None
        await me.register(kind)
        publish(admin, kind, 1)
        publish(admin, kind, 2)
        dispatch(admin)
        assert await payloads(await me.receive_event()) == [1]
        me.set_event_state(lambda: b"one is done")
        assert await payloads(await me.receive_event(kind)) == [2]  # completes the first, and stores where we are
        with pytest.raises(errors.WrongState):
            await me.disconnect()
    await until_away(admin, who)
    async with AsyncClient(dsn) as client, client.identify(who) as me:
        assert me.state.event_checkpoint == b"one is done"
        assert me.state.last_received_event != me.state.last_committed_event
        again = await me.re_receive_event()
        assert again is not None
        assert await payloads(again) == [2]
        async with client.transaction() as connection:
            assert await me.commit_event(checkpoint=b"two", connection=connection) == again.event_id
            assert not await again.is_completed(), "not yet: the application's transaction decides"
        assert await again.is_completed()
        assert await me.receive_event() is None
        await me.disconnect()
    async with AsyncClient(dsn) as client, client.identify(who) as me:
        assert me.state.disconnected
        assert me.state.event_checkpoint == b"two"
        assert me.state.last_received_event == me.state.last_committed_event
    call(admin, "drop_client", who)


async def test_the_lost_answer_of_a_receive_is_asked_for_again_and_not_passed_over(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    async with AsyncClient(dsn) as client, client.identify(who) as me:
        await me.register(kind)
        for n in (1, 2, 3):
            publish(admin, kind, n)
        dispatch(admin)
        assert await payloads(await me.receive_event()) == [1]
        rows_of = client._core.session.rows

        async def answered_and_lost(*args: Any, **named: Any) -> list[Any]:
            client._core.session.rows = rows_of  # type: ignore[method-assign]
            await rows_of(*args, **named)
            raise errors.ConnectionLost("the answer was lost")

        client._core.session.rows = answered_and_lost  # type: ignore[method-assign]
        assert await payloads(await me.receive_event()) == [2]
        assert await payloads(await me.receive_event()) == [3]
    call(admin, "drop_client", who)


async def test_a_large_set_is_walked_in_groups_in_either_mode(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    seen: list[tuple[str, int, int]] = []

    async def handle(occurrence: AsyncOccurrence) -> None:
        sizes = [len(group) async for group in occurrence.groups(700)]
        seen.append(("queued" if occurrence.is_queued else "direct", sum(sizes), max(sizes)))

    async with AsyncClient(dsn) as client, client.identify(who) as me:
        await me.register(kind, mode="direct", handler=handle)
        await me.start()
        rows(admin, f"insert into pgps_event.{kind} select n from generate_series(1, 2500) n")
        publish(admin, kind, 1)
        await until(lambda: len(seen) == 2)
        await me.register(kind, handler=handle)
        rows(admin, f"insert into pgps_event.{kind} select n from generate_series(1, 2500) n")
        dispatch(admin)
        await until(lambda: len(seen) == 3)
    assert seen == [("direct", 2500, 700), ("direct", 1, 1), ("queued", 2500, 700)]
    call(admin, "drop_client", who)


async def test_a_prefix_and_the_clause_raiser(
    dsn: str, admin: psycopg.Connection, name: Name, role: Callable[..., str]
) -> None:
    prefix = name("p")
    kind, hidden = name(f"{prefix}_a"), name(f"{prefix}_b")
    alice, one, two = role("alice"), name("c"), name("c")
    make_type(admin, kind, handler="raiser")
    make_type(admin, hidden)
    rows(admin, f"revoke select on pgps_event.{hidden} from public")
    params = {"user": alice, "password": "test"}
    async with (
        AsyncClient(dsn, **params) as first,  # type: ignore[arg-type]
        AsyncClient(dsn, **params) as second,  # type: ignore[arg-type]
        first.identify(one) as me,
        second.identify(two) as other,
    ):
        await first.advertise(kind)
        for identity in (me, other):
            await identity.register(f"{prefix}*", mode="direct")
            await identity.start()
        with pytest.raises(errors.NotPermitted):
            await me.register(hidden)
        publish(admin, hidden, 1)
        await first.publish(kind, {"n": 2})
        found = await me.get_event(timeout=60.0)
        assert await payloads(found) == [2]
        assert found is not None
        assert (found.event_name, found.raiser) == (f"{prefix}*", one)
        assert await other.get_event(timeout=0.1) is None
        later = name(f"{prefix}_c")
        with admin.transaction():  # with its rights: who hears of it looks at once
            make_type(admin, later)
        await until(lambda: len(me._seat._channels) == 4)
        publish(admin, later, 3)
        assert await payloads(await me.get_event(timeout=60.0)) == [3]
    for who in (one, two):
        call(admin, "drop_client", who)


@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
async def test_a_direct_event_is_the_same_whether_it_was_fetched_or_came_with_its_note(
    dsn: str, admin: psycopg.Connection, name: Name, visibility: str
) -> None:
    kind = name()
    call(admin, "create_event_type", kind, "n integer, price numeric, at timestamptz, note text", visibility=visibility)
    call(admin, "advertise", kind)
    at = dt.datetime(2024, 5, 17, 12, 30, tzinfo=dt.UTC)
    sent = [{"n": n, "price": Decimal("0.10"), "at": at, "note": "naïve ☃"} for n in (1, 2)]
    async with AsyncClient(dsn) as client, client.identify(name("c")) as me:
        await me.register(kind.upper(), mode="direct")
        await me.register(f"{kind[:-1]}*", mode="direct")
        await me.start()
        await client.publish(kind, sent)
        event = await me.get_event(kind.upper(), timeout=60)
        assert event is not None
        assert [payload async for payload in event] == sent
        ((publisher, now),) = rows(admin, "select current_user, clock_timestamp()")
        assert (event.event_type, event.publisher, event.raiser) == (kind, publisher, me.name)
        assert (event.count, event.last_event_id, event.is_queued) == (2, event.event_id + 1, False)
        assert now - dt.timedelta(minutes=1) < event.published_at < now
        assert event.xid == rows(admin, f"select max(xid)::text::bigint from pgps_queue.{kind}_in")[0][0]


async def test_two_programs_cannot_be_the_same_client(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    who, kind = name("c"), name()
    make_type(admin, kind)
    async with AsyncClient(dsn) as first, first.identify(who) as mine:
        await mine.register(kind)
        async with AsyncClient(dsn) as second:
            with pytest.raises(errors.WrongState) as told:
                await second.identify(who).connect()
            assert told.value.sqlstate == "55006"
        async with AsyncClient(dsn) as third, third.identify(who, take_over=True) as theirs:
            assert theirs.state.session > mine.state.session
            with pytest.raises(errors.SessionTaken):
                await mine.receive_event()
            assert (mine.is_connected, theirs.is_connected) == (False, True)
            assert await theirs.receive_event() is None
    with pytest.raises(errors.BadArgument):
        await mine.get_event("nothing")
    call(admin, "drop_client", who)


async def test_a_handler_that_raises_keeps_its_event_and_is_called_no_more_in_the_end(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, who, table = name(), name("c"), name("t")
    make_type(admin, kind)
    rows(admin, f"create table {table} (n integer)")

    async def handle(occurrence: AsyncOccurrence, connection: psycopg.AsyncConnection) -> None:
        for n in await payloads(occurrence):
            await connection.execute(f"insert into {table} values (%s)".encode(), [n])
            if n == 2:
                raise ValueError("no")

    async with AsyncClient(dsn) as client, client.identify(who) as me:
        registration = await me.register(kind, handler=handle, transactional=True)
        registration.retry_in, registration.max_attempts = 0.01, 3
        await me.start()
        for n in (1, 2, 3):
            publish(admin, kind, n)
        dispatch(admin)
        await until(lambda: registration.error is not None)
        assert registration.failed == 3
        assert rows(admin, f"select n from {table}") == [(1,)]
        me.unset_handler(kind)
        assert await payloads(await me.re_receive_event()) == [2]
        assert await payloads(await me.get_event(timeout=60.0)) == [3]
        with pytest.raises(errors.BadArgument, match="has a handler"):
            me.set_handler(kind, handle)
            await me.get_event(kind)
    rows(admin, f"drop table {table}")
    call(admin, "drop_client", who)


async def test_requests_are_answered_while_the_client_is_away_and_replies_are_walked(
    own_database: str, connect: Connect
) -> None:
    admin = connect(dsn=own_database)
    rows(admin, "create table done (n integer)")
    async with AsyncClient(own_database, poll=0.2) as client, client.identify("c") as me:
        await me.send("insert into done select n from generate_series(1, 3) n", request_id=5)
        assert await me.send("insert into done values (9)", request_id=5) == 5  # sent again: changes nothing
    serve(admin)
    await until_away(admin, "c")
    async with AsyncClient(own_database, poll=0.2) as client, client.identify("c") as me:
        assert (me.state.last_sent_request, me.state.last_received_request) == (5, None)
        reply = await me.receive_reply(timeout=60.0)
        assert reply is not None
        assert (reply.request_id, reply.status, reply.row_count) == (5, "done", 3)
        assert not await reply.is_completed()
        await me.commit_receive(checkpoint=b"x" * 10_000)
        assert await reply.is_completed()
        first = await me.send("select n, 'x' as x from generate_series(1, 2500) n")
        await me.send("select 1 / 0")
        serve(admin)
        reply = await me.receive_reply(timeout=60.0)
        assert reply is not None
        assert (reply.request_id, reply.columns) == (first, ["n", "x"])
        sizes = [len(group) async for group in reply.groups(1000)]
        assert sizes == [1000, 1000, 500]
        failed = await me.receive_reply(timeout=60.0)
        assert failed is not None
        with pytest.raises(errors.RequestFailed) as told:
            failed.raise_error()
        assert (told.value.sqlstate, told.value.request_id) == ("22012", first + 1)
        assert (await me.re_receive_reply() or failed).request_id == first + 1
        await me.commit_receive()
        await me.disconnect()
    async with AsyncClient(own_database) as client, client.identify("c") as me:
        assert me.state.reply_checkpoint == b"x" * 10_000
    assert rows(admin, "select n from done order by n") == [(1,), (2,), (3,)]
