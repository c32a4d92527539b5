"""Restarts: every start of the server, and every recovery from a crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg import errors

from pgps.embedded import EmbeddedCluster
from tests.fix_broker import call, value
from tests.fix_clock import Clock
from tests.fix_db import wait_until
from tests.fix_units import Party, make_service

SERVICE = "a/b/c"


class Board:
    """A cluster of its own that is restarted and crashed; parties are made anew afterwards."""

    def __init__(self, cluster: EmbeddedCluster, stack: ExitStack) -> None:
        self.cluster, self._stack = cluster, stack
        self._open: list[psycopg.Connection] = []

    def connect(self) -> psycopg.Connection:
        connection = self._stack.enter_context(psycopg.connect(self.cluster.dsn(), autocommit=True))
        self._open.append(connection)
        return connection

    def party(self, token: str | None = None) -> Party:
        return Party(self.connect(), token)

    def restart(self) -> None:
        self._close()
        self.cluster.stop()
        self.cluster.start()

    def kill9(self) -> None:
        self.cluster.kill9()
        self._close()
        self.cluster.start()

    def crash_a_backend(self) -> None:
        """Let one backend die, so that the server recovers without being started."""
        victim = psycopg.connect(self.cluster.dsn(), autocommit=True)
        pid = victim.info.backend_pid
        before = value(victim, "select pgps_internal.note_life()")
        os.kill(pid, signal.SIGKILL)
        self._close()
        victim.close()

        def is_back() -> bool:
            try:
                with psycopg.connect(self.cluster.dsn(), autocommit=True) as connection:
                    return bool(value(connection, "select (pgps._this_life()).life_id") > before)
            except psycopg.OperationalError:
                return False

        wait_until(is_back)

    def _close(self) -> None:
        for connection in self._open:
            connection.close()
        self._open.clear()


@pytest.fixture
def board(own_cluster: EmbeddedCluster) -> Iterator[Board]:
    with ExitStack() as stack:
        board = Board(own_cluster, stack)
        make_service(board.connect(), SERVICE, deferred=True)
        yield board


RESTARTS: list[Callable[[Board], None]] = [Board.restart, Board.kill9, Board.crash_a_backend]


@pytest.mark.parametrize("restart", RESTARTS, ids=lambda restart: restart.__name__)
def test_what_a_restart_does(board: Board, restart: Callable[[Board], None]) -> None:
    client, one, two = board.party("c"), board.party("one").serve(SERVICE), board.party("two").serve(SERVICE)
    bound = client.request(SERVICE, "bound 1", store="broker", status_lifetime=9)
    assert one.text("new") == "bound 1"
    one.sync("commit")
    later = client.send("bound 2", bound["conversation"], option="commit", store="broker")["uow_id"]
    assert one.text("old") == "bound 2"
    first = client.request(SERVICE, "first", store="broker")["uow_id"]
    assert two.text("new") == "first"
    lost = client.request(SERVICE, "lost", store="no", status_lifetime=9)["uow_id"]
    gone = client.request(SERVICE, "gone", store="no", status_lifetime=255)["uow_id"]
    half = client.send("half", to_service=SERVICE, store="broker", status_lifetime=9)["uow_id"]
    message = client.send("message", to_service=SERVICE, option="msg", store="broker")["conversation"]
    client.send("lost message", to_service=SERVICE, option="msg")
    restart(board)
    client = board.party("c")
    # A crash leaves no trace of what a session held: the statuses say what became of it.
    assert [client.status(uow_id) for uow_id in (bound["uow_id"], later, first, lost, gone, half)] == [
        "PROCESSED", "ACCEPTED", "ACCEPTED", "DISCARDED", None, "BACKEDOUT",
    ]  # fmt: skip
    two = board.party("two").serve(SERVICE)
    row = two.receive("new", option="sync")
    assert row is not None
    assert (bytes(row["message"]), row["attempts"]) == (b"first", 1)
    assert two.receive("any", option="sync") is None
    row = two.receive("new", option="msg")
    assert row is not None
    assert (row["conversation"], bytes(row["message"])) == (message, b"message")
    assert two.receive("any") is None
    one = board.party("one").serve(SERVICE)
    assert one.receive("new") is None
    row = one.receive("any")
    assert row is not None
    assert (bytes(row["message"]), row["attempts"]) == (b"bound 2", 1)


def test_cold_empties_the_store_once(board: Board) -> None:
    client = board.party("c")
    before = client.request(SERVICE, "before", store="broker", status_lifetime=9)
    call(client.connection, "configure", "uow_persistent_store", "cold")
    assert client.status(before["uow_id"]) == "ACCEPTED"
    board.restart()
    client = board.party("c")
    assert client.sync("last")["code"] == "00780305"
    with pytest.raises(errors.UndefinedObject):
        client.send("x", before["conversation"])
    assert value(client.connection, "select value from pgps.settings where name = 'uow_persistent_store'") == "hot"
    after = client.request(SERVICE, "after", store="broker")["uow_id"]
    board.kill9()
    client = board.party("s").serve(SERVICE)
    assert client.text("new") == "after"
    assert client.receive("any") is None
    assert board.party("c").status(after) == "DELIVERED"


def test_warm_holds_back_until_hot_is_set(board: Board) -> None:
    client = board.party("c")
    call(client.connection, "configure", "uow_persistent_store", "warm")
    before = client.request(SERVICE, "before", store="broker")
    board.restart()
    client, server = board.party("c"), board.party("s").serve(SERVICE)
    client.request(SERVICE, "after", store="broker")
    assert client.status(before["uow_id"]) == "ACCEPTED"
    assert server.text("new") == "after"
    assert server.receive("any") is None
    assert server.receive(before["conversation"]) is None
    call(client.connection, "configure", "uow_persistent_store", "hot")
    assert server.text("new") == "before"


def test_no_refuses_persistent_units(board: Board) -> None:
    client = board.party("c")
    call(client.connection, "configure", "uow_persistent_store", "no")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="no persistent store"):
        client.request(SERVICE, "x", store="broker")
    assert client.request(SERVICE, "x", store="no")["store"] == "no"
    call(client.connection, "configure", "uow_persistent_store", "hot")
    nameless = board.party()
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="need a token"):
        nameless.request(SERVICE, "x", store="broker")
    call(client.connection, "configure", "uow_store", "broker")
    assert client.request(SERVICE, "x")["store"] == "broker"
    assert client.request(SERVICE, "x", store="no")["store"] == "no"


def test_what_a_restart_discarded_does_not_time_out_later(board: Board) -> None:
    """Who looks first, be it in a view, decides: whoever looks when the lifetime is over sees the same."""
    client = board.party("c")
    client.request(SERVICE, "lost", store="no", lifetime="1 hour", status_lifetime=9)
    client.send("half", to_service=SERVICE, store="broker", lifetime="1 hour", status_lifetime=9)
    late = client.request(SERVICE, "late", store="no", lifetime="1 minute", status_lifetime=254)["uow_id"]
    statuses = "select array_agg(status order by uow_id) from pgps.units_of_work"
    clock = Clock(board.connect())
    clock.advance("2 minutes")
    for restart in (Board.restart, Board.kill9, Board.restart):
        restart(board)
        assert value(board.connect(), statuses) == ["DISCARDED", "BACKEDOUT", "TIMEOUT"]
        Clock(board.connect()).advance("40 minutes")
        assert value(board.connect(), statuses) == ["DISCARDED", "BACKEDOUT", "TIMEOUT"]
    assert board.party("c").status(late) == "TIMEOUT"


@pytest.mark.parametrize("end", ["logoff", "close", "nothing"])
@pytest.mark.parametrize("restart", [Board.restart, Board.kill9], ids=lambda restart: restart.__name__)
def test_what_timed_out_while_it_was_delivered_was_not_given_back(
    board: Board, restart: Callable[[Board], None], end: str
) -> None:
    """Neither a restart nor the end of its receiver's session is an attempt then; both are before that."""
    client, server, earlier = board.party("c"), board.party("s").serve(SERVICE), board.party("e").serve(SERVICE)
    sent = client.request(SERVICE, "1", store="broker", lifetime="1 hour", status_lifetime=9)["uow_id"]
    back = client.request(SERVICE, "2", store="broker", lifetime="1 hour", status_lifetime=9)["uow_id"]
    assert (server.text("new"), server.sync("backout")["attempts"], server.text("new")) == ("1", 1, "1")
    assert earlier.text("new") == "2"
    earlier.call("logoff")
    clock = Clock(board.connect())
    clock.advance("2 hours")

    def attempts(party: Party) -> list[tuple[str, int]]:
        return [(row["status"], row["attempts"]) for row in (party.sync("query", uow) for uow in (sent, back))]

    assert attempts(client) == [("TIMEOUT", 1), ("TIMEOUT", 1)]
    if end == "logoff":
        server.call("logoff")
    elif end == "close":
        pid = server.connection.info.backend_pid
        server.connection.close()
        wait_until(lambda: value(client.connection, "select count(*) from pg_stat_activity where pid = %s", [pid]) == 0)
    assert attempts(client) == [("TIMEOUT", 1), ("TIMEOUT", 1)]
    for _ in range(2):
        restart(board)
        assert attempts(board.party("c")) == [("TIMEOUT", 1), ("TIMEOUT", 1)]
        Clock(board.connect()).advance("1 hour")


def test_what_a_dropped_service_held_is_no_attempt(board: Board) -> None:
    client, server = board.party("c"), board.party("s").serve(SERVICE)
    sent = client.request(SERVICE, "1", lifetime="1 hour", status_lifetime=9)["uow_id"]
    assert server.text("new") == "1"
    call(client.connection, "drop_service", *SERVICE.split("/"))
    assert [(row["status"], row["attempts"]) for row in [client.sync("query", sent)]] == [("DISCARDED", 0)]
    server.call("logoff")
    Clock(board.connect()).advance("2 hours")
    assert [(row["status"], row["attempts"]) for row in [client.sync("query", sent)]] == [("DISCARDED", 0)]
