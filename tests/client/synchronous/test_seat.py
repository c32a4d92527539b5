# Made by tools/unasync_client.py from tests/client/asynchronous/test_seat.py: change that, then `make generate`.
"""Named clients among others: what anybody may send them, losing the name, and ends that go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgps import errors
from pgps.client import Client, Occurrence
from pgps.client._conninfo import Target
from pgps.client._sync import hub, runtime
from pgps.client._sync.session import AnyConnection, open_connection
from tests.client.synchronous.rig import dispatch, until
from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import Connect

pytestmark = pytest.mark.anyio
Name = Callable[..., str]

WAITS = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def lost(*_args: object, **_named: object) -> None:
    raise errors.ConnectionLost("the connection was lost", sqlstate="08006")


def is_gone(admin: psycopg.Connection, pid: int) -> Callable[[], bool]:
    return lambda: not rows(admin, "select 1 from pg_stat_activity where pid = %s", [pid])


def is_away(admin: psycopg.Connection, client: str) -> Callable[[], bool]:
    return lambda: value(admin, "select connected from pgps.clients where name = %s", [client]) is False


def test_what_others_send_is_no_event_and_ends_nobody(
    dsn: str, admin: psycopg.Connection, connect: Connect, name: Name, role: Callable[..., str]
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind, visibility="immediate")
    seen: list[tuple[int, str | None]] = []

    def handle(occurrence: Occurrence) -> None:
        seen.extend([(payload["n"], occurrence.raiser) for payload in occurrence])

    mallory = connect(role("mallory"))
    with Client(dsn) as client, client.identify(who) as me:
        me.register(kind, mode="direct", handler=handle)
        me.start()
        (channel,) = [one for one in me._seat._channels if one.startswith("pgps_direct_")]
        number = channel.removeprefix("pgps_direct_")
        event = f'["{kind}", "2026-01-01T00:00:00+00:00", "boss", 1, "main", "desk", [[1, {{"n": 0}}]]]'
        for note in (f"{number} 1 1 1 {event}", "hello", f"{number} [{{", f"{number} [1]", "", "٣ 1 1"):
            rows(mallory, "select pg_notify(c, %s) from unnest(%s::text[]) c", [note, [channel, me.state.channel]])
        (secret,) = [one for one in me._seat._channels if one.startswith("pgps_carried_")]
        for note in (f"{number} 1 1 1 [1]", f"{number} 1 1 1 [{{"):
            rows(admin, "select pg_notify(%s, %s)", [secret, note])
        publish(admin, kind, 7)  # comes with its note
        rows(admin, f"insert into pgps_event.{kind} select 8 from generate_series(1, 101)")  # is fetched
        until(lambda: len(seen) == 102)
        assert seen == [(7, None), *[(8, None)] * 101]
        assert me.is_connected
    call(admin, "drop_client", who)


def test_notifications_that_are_no_text_do_not_end_the_listening(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, mine = name(), name("s")
    make_type(admin, kind)
    with Client(dsn, poll=600.0) as client, client.subscribe(mine, kind, temporary=True) as subscription:
        assert subscription.receive() == []
        until(lambda: client._core.hub._connection is not None)
        connection = client._core.hub._connection
        assert connection is not None
        connection.execute("set client_encoding to sql_ascii")
        (channel,) = client._core.hub._listeners
        rows(admin, "select pg_notify(%s, 'naïve ☃')", [channel])
        publish(admin, kind, 1)
        dispatch(admin)
        assert [event.payload["n"] for event in subscription.receive(timeout=60.0)] == [1]


def test_who_has_lost_his_name_goes_on_without_it(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind, who, next_one = name(), name("c"), name("c")
    make_type(admin, kind)
    with Client(dsn, reconnect_timeout=2.0) as client:
        me = client.identify(who)
        me.connect()
        me.register(kind)
        me.start()
        with Client(dsn) as other, other.identify(who, take_over=True):
            with pytest.raises(errors.SessionTaken):
                me.receive_event()
            with pytest.raises(errors.SessionTaken):
                me.get_event()
            pid = (client.execute("select pg_backend_pid()"))[0][0]
            rows(admin, "select pg_terminate_backend(%s)", [pid])
            until(is_gone(admin, pid))
            client.shape(kind)  # on another connection
            client.publish(kind, {"n": 1})
            with client.transaction() as connection:
                client.publish(kind, {"n": 2}, connection=connection)
        me.close()
        with client.identify(next_one) as another:
            assert another.is_connected
    for one in (who, next_one):
        call(admin, "drop_client", one)


def test_one_client_is_many_one_after_the_other(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    everybody = [name("c") for _ in range(25)]
    with Client(dsn) as client:
        for one in everybody:
            with client.identify(one) as me:
                assert me.is_connected
    for one in everybody:
        call(admin, "drop_client", one)


def test_a_client_that_could_not_have_a_name_takes_another_one(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    who, next_one = name("c"), name("c")
    with Client(dsn) as first, first.identify(who) as mine, Client(dsn) as client:
        refused = client.identify(who)
        with pytest.raises(errors.WrongState) as told:
            refused.connect()
        assert told.value.sqlstate == "55006"
        for wrong in (None, 7):
            with pytest.raises(errors.BadArgument, match="is a string"):
                client.identify(wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.BrokerError):
            client.identify("x" * 64).connect()
        with client.identify(next_one) as another:
            assert another.is_connected
            with pytest.raises(errors.WrongState, match=next_one):
                refused.connect()
        client._core.hub._say = lost  # type: ignore[method-assign]
        broken = client.identify(next_one)
        with pytest.raises(errors.ConnectionLost):
            broken.connect()
        del client._core.hub._say
        until(is_away(admin, next_one))
        assert mine.is_connected
        with client.identify(who, take_over=True) as theirs:
            assert theirs.is_connected
    for one in (who, next_one):
        call(admin, "drop_client", one)


def test_who_has_left_or_lost_his_name_connects_again(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    seen: list[int] = []

    def handle(occurrence: Occurrence) -> None:
        seen.extend([payload["n"] for payload in occurrence])

    with Client(dsn) as client, Client(dsn) as another:
        me = client.identify(who)
        first = (me.connect()).session
        me.close()
        calls: tuple[Callable[[], Any], ...] = (me.receive_event, me.get_event, me.receive_reply, me.disconnect)
        for call_of in calls:
            with pytest.raises(errors.ClientClosed):
                call_of()
        with pytest.raises(errors.ClientClosed):
            me.send("select 1")
        with pytest.raises(errors.ClientClosed):
            me.register(kind)
        states = [me.is_connected]
        assert (me.connect()).session > first
        assert [*states, me.is_connected] == [False, True]
        assert me.receive_event() is None
        with another.identify(who, take_over=True) as theirs:
            with pytest.raises(errors.SessionTaken):
                me.receive_event()
            with pytest.raises(errors.WrongState) as told:
                me.connect()
            assert (told.value.sqlstate, me.is_connected, theirs.is_connected) == ("55006", False, True)
            with pytest.raises(errors.ClientClosed):
                me.receive_event()
        until(is_away(admin, who))
        with me:
            me.register(kind, handler=handle)
            me.start()
            publish(admin, kind, 1)
            dispatch(admin)
            until(lambda: seen == [1])
        with client.identify(who, take_over=True) as mine, another.identify(who, take_over=True) as theirs:
            with pytest.raises(errors.SessionTaken):
                mine.receive_event()
            mine.connect()
            assert mine.receive_event() is None
            with pytest.raises(errors.SessionTaken):
                theirs.receive_event()
    call(admin, "drop_client", who)


def test_a_name_is_taken_while_the_connection_that_listens_cannot_be_made(
    dsn: str, admin: psycopg.Connection, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, next_one = name("c"), name("c")
    with Client(dsn) as client:
        with client.identify(who):
            pass
        failures = iter(range(3))

        def fails_at_first(target: Target) -> AnyConnection:
            if next(failures, None) is not None:
                raise errors.ConnectionLost("the server is away", sqlstate="08006")
            return open_connection(target)

        monkeypatch.setattr(hub, "open_connection", fails_at_first)
        with client.identify(next_one) as another:
            assert another.is_connected
    for one in (who, next_one):
        call(admin, "drop_client", one)


def test_a_session_that_is_continued_while_a_handler_commits_is_not_over(
    dsn: str, admin: psycopg.Connection, connect: Connect, name: Name
) -> None:
    kind, who, table = name(), name("c"), name("t")
    make_type(admin, kind)
    rows(admin, f"create table {table} (n integer)")
    holder = connect(autocommit=False)
    calls = 0

    def handle(occurrence: Occurrence, connection: psycopg.Connection) -> None:
        nonlocal calls
        calls += 1
        connection.execute(f"insert into {table} values (1)".encode())
        if calls == 1:
            # The connection that listens is lost, and the new one waits for the turn of the client before the
            # completion does.
            rows(
                holder,
                "select from pgps_internal.client c, pgps_internal.hold_client(c.client_id) where name = %s",
                [who],
            )
            rows(admin, "select pg_terminate_backend(pid) from pgps.clients where name = %s", [who])
            until(lambda: value(admin, WAITS) == 1)
            task.append(runtime.Task(release, "release"))

    def release() -> None:
        until(lambda: value(admin, WAITS) == 2)
        holder.rollback()

    task: list[runtime.Task] = []
    with Client(dsn) as client, client.identify(who) as me:
        registration = me.register(kind, handler=handle, transactional=True)
        me.start()
        publish(admin, kind, 1)
        dispatch(admin)
        until(lambda: value(admin, f"select count(*) from {table}") == 1 or me.error is not None)
        assert me.error is None
        assert (me.is_connected, calls, registration.failed) == (True, 2, 0)
        task[0].join()
        assert me.receive_event() is None
    rows(admin, f"drop table {table}")
    call(admin, "drop_client", who)


def test_a_handler_that_raises_the_end_of_another_client_has_failed(
    dsn: str, admin: psycopg.Connection, name: Name
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)

    def handle(_occurrence: Occurrence) -> None:
        raise raised.pop(0)("of another client", sqlstate="08003")

    raised = [errors.SessionTaken, errors.ConnectionLost, errors.ClientClosed, errors.SessionTaken]
    with Client(dsn) as client, client.identify(who) as me:
        registration = me.register(kind, handler=handle)
        registration.retry_in, registration.max_attempts = 0.01, 4
        me.start()
        publish(admin, kind, 1)
        dispatch(admin)
        until(lambda: registration.error is not None or me.error is not None)
        assert (me.error, registration.failed) == (None, 4)
    call(admin, "drop_client", who)


def test_a_client_whose_end_goes_wrong_is_closed(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    client = Client(dsn)
    client.connect()
    me = client.identify(who)
    me.connect()
    with client.subscribe(name("s"), kind, temporary=True) as subscription:
        subscription.receive()
        client._core.hub._say = lost  # type: ignore[method-assign]
    assert client._core.hub._listeners.keys() == {me.state.channel}, "whose connection was lost listens no more"
    client._core.use_no_name = lambda: 1 // 0  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        client.close()
    assert (client.is_closed, client._core.session._connection) == (True, None)
    call(admin, "drop_client", who)


def test_what_cannot_be_listened_to_is_left_as_it_was(dsn: str, admin: psycopg.Connection, name: Name) -> None:
    kind, spool = name(), name("spool")
    make_type(admin, kind)
    call(admin, "create_spool", spool)
    with Client(dsn) as client, client.subscribe(name("s"), kind, temporary=True) as subscription:
        subscription.receive()
        say, client._core.hub._say = client._core.hub._say, lost  # type: ignore[method-assign]
        group = client.group(spool, f"{spool}_m")
        for _ in range(2):
            with pytest.raises(errors.ConnectionLost):
                group.join()
        assert len(client._core.hub._listeners) == 1
        assert value(admin, "select connected from pgps.clients where name = %s", [group.member]) is False
        client._core.hub._say = say  # type: ignore[method-assign]
        with group:
            assert group.receive() == []
    call(admin, "drop_spool", spool)
    call(admin, "drop_client", f"{spool}_m")


def test_who_waits_for_an_event_waits_for_a_server_that_is_away_as_long_as_the_client(
    dsn: str, admin: psycopg.Connection, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, who = name(), name("c")
    make_type(admin, kind)
    with Client(dsn, poll=0.05) as client, client.identify(who) as me:
        me.register(kind)
        assert me.get_event() is None
        listening = client._core.hub._connection
        assert listening is not None
        monkeypatch.setattr(hub, "open_connection", lost)
        rows(admin, "select pg_terminate_backend(%s, 60000)", [listening.info.backend_pid])
        assert me.get_event(timeout=0.1) is None
        client._core.reconnect_timeout = 0.5
        for timeout in (60.0, None):
            with pytest.raises(errors.ConnectionLost):
                me.get_event(timeout=timeout)
        monkeypatch.undo()
        publish(admin, kind, 1)
        dispatch(admin)
        assert me.get_event(timeout=60.0) is not None
    call(admin, "drop_client", who)
