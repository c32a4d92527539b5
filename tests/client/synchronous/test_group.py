# Made by tools/unasync_client.py from tests/client/asynchronous/test_group.py: change that, then `make generate`.
"""Spools and members of process groups from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from pgps import errors
from pgps.client import Client, Group
from pgps.client._spools import CONNECT, JOIN
from pgps.client._sync import group as members
from pgps.client._sync.session import AnyConnection, fetch
from tests.client.synchronous.rig import dispatch, until
from tests.fix_broker import call, rows, value

pytestmark = pytest.mark.anyio
Name = Callable[..., str]


@pytest.fixture
def spool(admin: psycopg.Connection, name: Name) -> Iterator[str]:
    made = name("spool")
    call(admin, "create_spool", made)
    yield made
    call(admin, "drop_spool", made)
    rows(admin, "delete from pgps_internal.client where name ~ %s", [f"^{made}"])


def texts(group: Group, count: int) -> list[object]:
    """Iterate over so many messages: [message] when replayed, "|" for the marker."""
    found: list[object] = []
    for message in group:
        found.append("|" if message.is_marker else [message.message] if message.in_replay else message.message)
        if len(found) == count:
            break
    return found


def test_a_member_replays_and_goes_on_with_what_is_new(dsn: str, admin: psycopg.Connection, spool: str) -> None:
    with Client(dsn, poll=0.1) as client:
        client.spool(spool, 1, {"n": 1}, keys={"N": 1}, keywords=["add"])
        client.spool_many(spool, [{"entry": 1, "message": n} for n in (2, 3)])
        dispatch(admin)
        call(admin, "spool_set_replay_pointer", spool, 2)
        dispatch(admin)
        with client.group(spool, f"{spool}_m", replay=True) as group:
            assert texts(group, 4) == [[{"n": 1}], [2], "|", 3]
            client.spool(spool, 1, 4)
            dispatch(admin)
            assert texts(group, 1) == [4]
        # All of it was acknowledged when the block ended.
        with client.group(spool, f"{spool}_m", replay=True) as group:
            assert texts(group, 3) == [[{"n": 1}], [2], "|"]
            assert [message for message in group.messages(timeout=0.0)] == []


def test_a_member_whose_connection_was_lost_goes_on_where_it_was(
    dsn: str, admin: psycopg.Connection, spool: str
) -> None:
    with Client(dsn, poll=0.1) as client, client.group(spool, f"{spool}_m") as group:
        for n in (1, 2):
            client.spool(spool, 1, n)
        dispatch(admin)
        assert texts(group, 1) == [1]
        find = "select pid from pgps.clients where name = %s"
        pid = value(admin, find, [group.member])
        rows(admin, "select pg_terminate_backend(%s)", [pid])
        until(lambda: not rows(admin, "select 1 from pg_stat_activity where pid = %s", [pid]))
        client.spool(spool, 1, 3)
        dispatch(admin)
        assert texts(group, 2) == [2, 3]
        assert value(admin, "select operational from pgps.spools where name = %s", [spool])


def test_a_member_whose_new_session_was_not_told_to_it_goes_on_where_it_was(
    dsn: str, admin: psycopg.Connection, spool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    find = "select pid from pgps.clients where name = %s"

    def answered_and_lost(connection: AnyConnection, query: str, params: Any) -> list[Any]:
        answer = fetch(connection, query, params)
        if query == CONNECT and not lost:
            lost.append(answer[0][0])
            rows(admin, "select pg_terminate_backend(%s)", [value(admin, find, [params["member"]])])
            raise errors.ConnectionLost("the answer was lost")
        return answer

    with Client(dsn, poll=0.1) as client, client.group(spool, f"{spool}_m") as group:
        for n in (1, 2):
            client.spool(spool, 1, n)
        dispatch(admin)
        assert texts(group, 1) == [1]
        monkeypatch.setattr(members, "fetch", answered_and_lost)
        rows(admin, "select pg_terminate_backend(%s)", [value(admin, find, [group.member])])
        client.spool(spool, 1, 3)
        dispatch(admin)
        assert texts(group, 2) == [2, 3]
        assert group.session is not None
        assert group.session > lost[0]


@pytest.mark.parametrize("is_done", [False, True])
def test_a_member_whose_connection_is_lost_while_it_joins_gets_its_replay(
    dsn: str, admin: psycopg.Connection, spool: str, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    lost: list[str] = []

    def lost_at_join(connection: AnyConnection, query: str, params: Any) -> list[Any]:
        if query == JOIN and not lost:
            lost.append(query)
            if is_done:
                fetch(connection, query, params)
            rows(admin, "select pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
        return fetch(connection, query, params)

    monkeypatch.setattr(members, "fetch", lost_at_join)
    with Client(dsn, poll=0.1) as client:
        client.spool_many(spool, [{"entry": 1, "message": n} for n in (1, 2, 3)])
        dispatch(admin)
        call(admin, "spool_set_replay_pointer", spool, 2)
        dispatch(admin)
        with client.group(spool, f"{spool}_m", replay=True) as group:
            assert texts(group, 4) == [[1], [2], "|", 3]
            # Once more, as the same object: it joins anew.
            lost.clear()
            group.leave()
            group.join()
            assert texts(group, 3) == [[1], [2], "|"]


def test_messages_are_waited_for_and_their_requests_too(dsn: str, admin: psycopg.Connection, spool: str) -> None:
    with Client(dsn, poll=0.1) as client, client.group(spool, f"{spool}_m") as group:
        request = client.spool(spool, 1, "hello")
        assert client.spool_wait(request, timeout=0.0) == 0
        dispatch(admin)
        (message,) = group.receive(timeout=60.0)
        assert (message.seqn, message.entry, message.message, message.id) == (1, 1, "hello", request)
        assert client.spool_wait(request, timeout=0.0) == 0
        assert group.ack(message) == 1
        assert client.spool_wait(request) == 1
        assert client.spool_wait(-1) is None


def test_received_and_acknowledged_in_one_transaction(dsn: str, admin: psycopg.Connection, spool: str) -> None:
    with Client(dsn, poll=0.1) as client, client.group(spool, f"{spool}_m") as group:
        client.spool(spool, 1, 1)
        dispatch(admin)
        with pytest.raises(ZeroDivisionError):
            with client.transaction() as connection:
                (message,) = group.receive(connection=connection)
                group.ack(message, connection=connection)
                raise ZeroDivisionError
        with client.transaction() as connection:
            (message,) = group.receive(connection=connection)
            group.ack(message, connection=connection)
        assert group.receive() == []


def test_what_is_new_waits_until_the_member_is_ready(dsn: str, admin: psycopg.Connection, spool: str) -> None:
    with Client(dsn, poll=0.1) as client, client.group(spool, f"{spool}_m", ready=False) as group:
        client.spool(spool, 1, 1)
        dispatch(admin)
        assert group.receive() == []
        group.ready()
        assert texts(group, 1) == [1]


def test_errors_are_those_of_the_library(dsn: str, spool: str) -> None:
    with Client(dsn, poll=0.1) as client:
        with pytest.raises(errors.UnknownName):
            client.spool("no_such_spool", 1, 1)
        with pytest.raises(errors.UnknownName):
            client.group("no_such_spool", f"{spool}_n").join()
        with pytest.raises(errors.BadArgument):
            client.spool(spool, -1, 1)
        with client.group(spool, f"{spool}_m"):
            with pytest.raises(errors.PgpsError, match="is connected by process"):
                client.group(spool, f"{spool}_m").join()


def test_a_number_with_more_digits_than_python_takes_stops_nobody(
    dsn: str, admin: psycopg.Connection, spool: str
) -> None:
    with Client(dsn, poll=0.1) as client, client.group(spool, f"{spool}_m") as group:
        rows(
            admin, "select pgps.spool(%s, 1, '1e5000', keys => '{\"N\": 1e5000}'), pgps.spool(%s, 1, '7')", [spool] * 2
        )
        dispatch(admin)
        first, second = group.receive()
    assert [first.message, *(first.keys or {}).values()] == [Decimal("1e5000")] * 2
    assert (type(second.message), second.message) == (int, 7)
