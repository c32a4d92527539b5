"""Direct events: each comes once, whole and in time, whatever notes are sent and whoever polls slowly."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from pgps import errors
from pgps.client import AsyncClient, AsyncIdentity, AsyncOccurrence, _names
from pgps.client._async import seat
from pgps.client._async.session import AnyConnection, fetch
from tests.client.asynchronous.rig import until
from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import Connect, lock_waiters, notifications, wait_until

pytestmark = pytest.mark.anyio
Name = Callable[..., str]


def secret_of(me: AsyncIdentity) -> str:
    """Return the channel that the broker alone can send on."""
    (channel,) = [one for one in me._seat._channels if one.startswith("pgps_carried_")]
    return channel


async def test_what_is_told_once_more_does_not_come_again(
    dsn: str, admin: psycopg.Connection, connect: Connect, name: Name, role: Callable[..., str]
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    going_on = connect()
    rows(going_on, "begin")
    rows(going_on, "select pg_current_xact_id()")
    with admin.transaction():
        publish(admin, kind, 0)
        before = value(admin, "select pg_current_xact_id()::text")
    seen: list[int] = []

    async def handle(occurrence: AsyncOccurrence) -> None:
        seen.extend([payload["n"] async for payload in occurrence])

    mallory = connect(role("mallory"))
    async with AsyncClient(dsn) as client, client.identify(who) as me:
        await me.register(kind, mode="direct", handler=handle)
        await me.start()
        rows(going_on, "commit")  # an old one, as any database of the server may have it
        (channel,) = [one for one in me._seat._channels if one.startswith("pgps_direct_")]
        number = channel.removeprefix("pgps_direct_")
        rows(mallory, f"listen {channel}")
        publish(admin, kind, 1)
        publish(admin, kind, 2, 3)
        await until(lambda: seen == [1, 2, 3])
        told = [one.payload for one in notifications(mallory)]
        assert len(told) == 2
        wide = [f"{number} 1 999999999{xid}" for xid in ("", f" {before}", *(f" {one.split()[3]}" for one in told))]
        for note in (*told, *wide):
            rows(mallory, "select pg_notify(c, %s) from unnest(%s::text[]) c", [note, [channel, me.state.channel]])
        publish(admin, kind, 4)
        await until(lambda: 4 in seen)
        assert seen == [1, 2, 3, 4]
    call(admin, "drop_client", who)


async def test_what_was_carried_does_not_come_again_by_a_plain_note(
    dsn: str, admin: psycopg.Connection, connect: Connect, name: Name
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind, visibility="immediate")
    seen: list[int] = []

    async def handle(occurrence: AsyncOccurrence) -> None:
        seen.extend([payload["n"] async for payload in occurrence])

    listener = connect()
    async with AsyncClient(dsn) as client, client.identify(who) as me:
        await me.register(kind, mode="direct", handler=handle)
        await me.start()
        rows(listener, f"listen {secret_of(me)}")
        publish(admin, kind, 1)
        await until(lambda: seen == [1])
        ((note, _),) = [one.payload.split(" [", 1) for one in notifications(listener)]
        rows(admin, "select pg_notify(%s, %s)", [f"pgps_direct_{note.split()[0]}", note])
        rows(admin, "select pg_notify(%s, %s)", [secret_of(me), note])
        publish(admin, kind, 2)
        await until(lambda: 2 in seen)
        assert seen == [1, 2]
    call(admin, "drop_client", who)


async def test_occurrences_that_lie_between_each_other_come_whole(
    dsn: str, admin: psycopg.Connection, connect: Connect, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, who, lock = name(), name("c"), 4711
    make_type(admin, kind)
    seen: list[list[int]] = []

    async def handle(occurrence: AsyncOccurrence) -> None:
        seen.append([payload["n"] async for payload in occurrence])

    monkeypatch.setattr(_names, "GROUP", 100)
    one, other = connect(), connect()

    def insert(session: psycopg.Connection, first: int) -> None:
        held = f"(select pg_advisory_xact_lock_shared({lock})) l"
        rows(session, f"insert into pgps_event.{kind} select n from {held}, generate_series({first}, {first + 4999}) n")

    def insert_together() -> bool:
        """Tell whether the events of two statements lie between each other, which the server decides."""
        rows(admin, f"select pg_advisory_lock({lock})")
        with ThreadPoolExecutor() as pool:
            both = [pool.submit(insert, one, 1), pool.submit(insert, other, 5001)]
            try:
                wait_until(lambda: len(lock_waiters(admin, lock)) == 2 or any(each.done() for each in both))
            finally:
                rows(admin, f"select pg_advisory_unlock({lock})")
            for each in both:
                each.result()
        return bool(value(admin, between))

    between = f"""
        select int8range(min(event_id) filter (where n <= 5000), max(event_id) filter (where n <= 5000))
            && int8range(min(event_id) filter (where n > 5000), max(event_id) filter (where n > 5000))
        from pgps_internal.{kind}_log
        where event_id > (select max(event_id) - 10000 from pgps_internal.{kind}_log)
        """
    async with AsyncClient(dsn) as client, client.identify(who) as me:
        before = 0
        while not insert_together():
            before = value(admin, f"select max(event_id) from pgps_internal.{kind}_log")
        publish(admin, kind, 0)
        await me.register(kind, mode="direct", handler=handle)
        await me.start()
        first, last = rows(
            admin, f"select min(event_id), max(event_id) from pgps_internal.{kind}_log where event_id > {before}"
        )[0]
        (channel,) = [one for one in me._seat._channels if one.startswith("pgps_direct_")]
        note = f"{channel.removeprefix('pgps_direct_')} {first} {last}"
        rows(admin, "select pg_notify(%s, %s)", [secret_of(me), note])
        await until(lambda: [0] in seen)
        assert sorted(map(len, seen)) == [1, 5000, 5000]
        assert sorted(seen) == [[0], [*range(1, 5001)], [*range(5001, 10001)]]
    call(admin, "drop_client", who)


async def test_who_polls_slowly_holds_up_no_handler(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    polled, handled, who = name(), name(), name("c")
    for kind in (polled, handled):
        make_type(admin, kind, visibility="immediate")
    seen: list[int] = []

    async def handle(occurrence: AsyncOccurrence) -> None:
        seen.extend([payload["n"] async for payload in occurrence])

    async with AsyncClient(dsn) as client, client.identify(who, max_local=6) as me:
        await me.register(polled, mode="direct")
        await me.register(handled, mode="direct", handler=handle)
        await me.start()
        for n in range(1, 9):
            publish(admin, polled, n)
            publish(admin, handled, n)
            await until(lambda n=n: seen[-1:] == [n])  # type: ignore[misc]
        found: list[int] = []
        while len(found) < 8 and (event := await me.get_event(polled, timeout=60.0)) is not None:
            found += [payload["n"] async for payload in event]
        assert (found, me.dropped) == ([*range(1, 9)], 0)
    call(admin, "drop_client", who)


async def test_a_session_whose_continuation_was_not_answered_is_not_over(
    dsn: str, admin: psycopg.Connection, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    lost = 0

    async def answered_and_lost(connection: AnyConnection, query: str, params: Any = None, **more: Any) -> list[Any]:
        nonlocal lost
        found = await fetch(connection, query, params, **more)
        if query == _names.CONNECT and lost < 3:
            lost += 1
            raise errors.ConnectionLost("the answer was lost", sqlstate="08006")
        return found

    async with AsyncClient(dsn) as client, client.identify(who) as me:
        await me.register(kind, mode="direct")
        await me.start()
        before = me._seat._session
        monkeypatch.setattr(seat, "fetch", answered_and_lost)
        rows(admin, "select pg_terminate_backend(pid) from pgps.clients where name = %s", [who])
        await until(lambda: me.error is not None or me._seat._session != before)
        assert (me.error, lost) == (None, 3)
        publish(admin, kind, 1)
        event = await me.get_event(timeout=60.0)
        assert event is not None
        assert await event.first() == {"n": 1}
    call(admin, "drop_client", who)
