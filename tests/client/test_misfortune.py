"""What goes wrong only once, and what takes long: a hanging handler, a killed client, large checkpoints and replies."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest

from pgps import errors
from pgps.client import AsyncClient, Client, Event, Handling
from tests.fix_broker import call, column, make_type, publish, rows, value
from tests.fix_db import Connect, wait_until
from tests.fix_worker import Workers

Name = Callable[..., str]

_KILLED = """
import sys, time
from pgps.client import Client, Handling

def handle(event, connection):
    connection.execute(f"insert into {sys.argv[2]} values (%s)", [event.payload["n"]])
    if event.payload["n"] == 3:
        print("in hand", flush=True)
        time.sleep(60)

with Client(sys.argv[1]) as client:
    client.subscribe(sys.argv[3], prefetch=2).run(handle, how=Handling(transactional=True))
"""


@pytest.mark.anyio
async def test_a_handler_that_hangs_is_interrupted_and_its_event_put_back(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    seen: list[tuple[int, int]] = []

    async def handle(event: Event[dict[str, int]]) -> None:
        if event.attempt == 1 and event.payload["n"] == 1:
            await asyncio.sleep(60)
        seen.append((event.payload["n"], event.attempt))

    async with AsyncClient(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        publish(admin, kind, 1, 2)
        rows(admin, "select pgps.dispatch()")
        await subscription.run(handle, how=Handling(timeout=1.0, retry_in=0.0), timeout=0.1)
    assert seen == [(2, 1), (1, 2)]


def test_a_client_killed_between_processing_and_commit_has_done_nothing_and_its_successor_does_it_once(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, table, mine = name(), name("t"), name("s")
    make_type(admin, kind)
    rows(admin, f"create table {table} (n integer)")
    call(admin, "subscribe", mine, kind)
    publish(admin, kind, *range(6))
    rows(admin, "select pgps.dispatch()")
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, dsn, table, mine], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    out = process.stdout
    assert out is not None
    assert out.readline() == "in hand\n"
    process.kill()
    process.communicate()
    left = "select count(*) from pg_stat_activity where application_name ~ '^pgps-client' and datname = %s"
    wait_until(lambda: value(admin, left, [admin.info.dbname]) == 0, what="the server notices")
    assert column(admin, f"select n from {table} order by n") == [0, 1]

    def handle(event: Event[dict[str, int]], connection: psycopg.Connection) -> None:
        connection.execute(f"insert into {table} values (%s)".encode(), [event.payload["n"]])

    with Client(dsn) as client:
        client.subscribe(mine).run(handle, how=Handling(transactional=True), timeout=0.1)
        client.unsubscribe(mine)
    assert column(admin, f"select n from {table} order by n") == list(range(6))
    rows(admin, f"drop table {table}")


@pytest.mark.slow
def test_a_checkpoint_of_100_mb_and_a_reply_of_a_million_rows(own_database: str, connect: Connect) -> None:
    admin = connect(dsn=own_database)
    state = bytes(range(256)) * (100 * 1024 * 1024 // 256)
    with Client(own_database) as client, client.identify("c") as me:
        me.send("select n from generate_series(1, 1000000) n")
        for (number,) in rows(admin, "select request_no from pgps.claim_request()"):
            rows(admin, "select pgps.run_request(%s)", [number])
        reply = me.receive_reply()
        assert reply is not None
        assert sum(len(group) for group in reply.groups(10_000)) == 1_000_000
        me.commit_receive(checkpoint=state)
        with pytest.raises(errors.LimitExceeded):
            me.commit_receive(checkpoint=state + b"!")
    connected = "select count(*) from pgps.clients where connected"
    wait_until(lambda: value(admin, connected) == 0, what="its server process has ended, too")
    with Client(own_database) as client, client.identify("c") as me:
        assert me.state.reply_checkpoint == state


def test_a_request_that_never_ends_is_ended_by_its_time_or_by_its_client_and_nobody_waits_for_it(
    own_database: str, connect: Connect, workers: Workers
) -> None:
    admin = connect(dsn=own_database)
    rows(admin, "create table done (n integer)")
    call(admin, "configure", "request_timeout", "0.5 seconds")
    workers(own_database)
    endless = "insert into done values (1); select pg_sleep(1000)"
    running = "select count(*) from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"
    with Client(own_database, reconnect_timeout=1) as client, client.identify("c") as me:
        me.send(endless)
        late = me.receive_reply(timeout=60)
        assert late is not None
        with pytest.raises(errors.RequestFailed, match=r"took longer than 0\.5 s") as failed:
            list(late)
        assert (failed.value.sqlstate, failed.value.request_id) == ("57014", 1)
        assert "request_timeout" in str(failed.value.hint)

        call(admin, "configure", "request_timeout", "1 hour")
        ids = [me.send(endless), me.send(endless), me.send("select 6 * 7 as answer")]
        wait_until(lambda: value(admin, running) == 1)
        assert me.receive_reply() is None, "not yet"
        with pytest.raises(errors.WrongState, match=f"request {ids[0]} is pending"):
            me.disconnect()
        assert [me.cancel(number) for number in ids[:2]] == [True, True], "one that runs, one that waits"
        for number in ids[:2]:
            cancelled = me.receive_reply(timeout=60)
            assert cancelled is not None
            assert (cancelled.request_id, cancelled.status, cancelled.sqlstate) == (number, "failed", "57014")
            assert cancelled.error == "the request was cancelled"
        answer = me.receive_reply(timeout=60)
        assert answer is not None
        assert list(answer) == [{"answer": 42}]
        assert not me.cancel(ids[2]), "it has its reply"
        with pytest.raises(errors.UnknownName, match="has sent no request 99"):
            me.cancel(99)
        me.commit_receive()
        me.disconnect()
    assert value(admin, "select count(*) from done") == 0, "what it had done is rolled back"


def test_a_subscription_of_a_dropped_type_says_so(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind = name()
    make_type(admin, kind)
    with Client(dsn) as client, client.subscribe(name("s"), kind) as subscription:
        assert subscription.receive() == []
        call(admin, "drop_event_type", kind, cascade=True)
        with pytest.raises(errors.UnknownName):
            subscription.receive()
    wait_until(lambda: value(admin, "select count(*) from pgps.event_types where name = %s", [kind]) == 0)


@pytest.mark.anyio
async def test_what_a_cancelled_call_has_asked_for_does_not_happen_with_what_others_ask_for(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    async with (
        AsyncClient(dsn) as client,
        client.subscribe(name("a"), kind, temporary=True) as one,
        client.subscribe(name("b"), kind, temporary=True) as other,
    ):
        publish(admin, kind, *range(10))
        rows(admin, "select pgps.dispatch()")
        for again in (True, False):  # the connection is busy with something else
            async with client._core.session.used():
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(one.receive() if again else one.ack(), 0.01)
            mine = await one.receive(3)
            await other.receive()
            await other.ack()
            if again:
                assert await one.ack() == 3
            else:
                assert [event.event_id for event in await one.receive(3)] == [event.event_id for event in mine]


@pytest.mark.anyio
async def test_one_that_is_refused_takes_no_acknowledgement_of_another_with_it(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    async with (
        AsyncClient(dsn) as client,
        client.subscribe(name("a"), kind, prefetch=1) as one,
        client.subscribe(name("b"), kind, prefetch=1, temporary=True) as other,
    ):
        publish(admin, kind, 1, 2)
        rows(admin, "select pgps.dispatch()")
        assert [(await anext(each)).payload["n"] for each in (one, other)] == [1, 1]
        async with client._core.session.used():
            both = [asyncio.ensure_future(anext(each)) for each in (one, other)]
            await asyncio.sleep(0.01)
            call(admin, "unsubscribe", one.name)
        with pytest.raises(errors.UnknownName):
            await both[0]
        assert (await both[1]).payload["n"] == 2


@pytest.mark.anyio
async def test_a_handler_whose_own_task_was_cancelled_has_failed_like_any_other(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind = name()
    make_type(admin, kind)
    seen: list[int] = []

    async def handle(event: Event[dict[str, int]], *_: object) -> None:
        if event.payload["n"] == 1:
            own = asyncio.ensure_future(asyncio.sleep(60))
            own.cancel()
            await own
        seen.append(event.payload["n"])

    async with AsyncClient(dsn) as client:
        for transactional in (False, True):
            watching = client.subscribe(name("s"), kind, temporary=True, max_attempts=1)
            async with watching:
                publish(admin, kind, 1, 2)
                rows(admin, "select pgps.dispatch()")
                await watching.run(handle, how=Handling(transactional=transactional), timeout=0.1)
                told = column(admin, "select error from pgps.exceptions where subscription = %s", [watching.name])
                assert told == ["RuntimeError: a task that the handler waited for was cancelled"]
    assert seen == [2, 2]


def test_what_is_sent_to_a_server_that_is_gone_is_given_up_within_some_ten_seconds(
    dsn: str, role: Callable[..., str]
) -> None:
    there = Client(dsn, host="127.0.0.1", user=role("alice"), password="test")
    with there as client, client.transaction() as connection:
        with socket.socket(fileno=os.dup(connection.fileno())) as own:
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 11_000
