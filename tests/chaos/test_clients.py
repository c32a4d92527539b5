"""Kill -9 of the server in the middle of what clients do: nothing queued is lost, nothing is done twice."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import psycopg

from pgps.embedded import EmbeddedCluster
from tests.fix_broker import call, column, make_type, publish, rows
from tests.fix_clients import Client
from tests.fix_db import lock_waiters, wait_until

GATE = 98
GATED = f"select pg_advisory_xact_lock_shared({GATE})"


def killed(cluster: EmbeddedCluster, step: Callable[[psycopg.Connection], object]) -> None:
    """Run a step until it waits at the gate, kill the server, and start it again."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as holder, psycopg.connect(cluster.dsn()) as session:
        rows(holder, "select pg_advisory_lock(%s)", [GATE])

        def run() -> None:
            with contextlib.suppress(psycopg.Error):
                step(session)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: lock_waiters(holder, GATE))
        cluster.kill9()
        thread.join()
    cluster.start()


def connect(cluster: EmbeddedCluster) -> psycopg.Connection:
    return psycopg.connect(cluster.dsn(), autocommit=True)


def execute(connection: psycopg.Connection) -> list[str]:
    ended: list[str] = []
    while claimed := rows(connection, "select request_no from pgps.claim_request()"):
        ended.append(call(connection, "run_request", claimed[0][0]))
    return ended


def in_a_request(session: psycopg.Connection) -> None:
    session.autocommit = True
    ((number,),) = rows(session, "select request_no from pgps.claim_request()")
    call(session, "run_request", number)


def in_a_commit(session: psycopg.Connection) -> None:
    client = Client(session, "client")
    session.commit()
    assert client.receive("tick") is not None
    session.commit()
    rows(session, "insert into public.done values (10)")
    client.call("commit_event", b"not this")
    rows(session, GATED)


def after_raising_at_once(session: psycopg.Connection) -> None:
    publish(session, "attempt", 7)
    # Do what a worker does: the immediate event is committed already, although the raiser's transaction is open.
    with psycopg.connect(session.info.dsn, autocommit=True) as worker:
        rows(worker, "select pgps.dispatch()")
        rows(worker, "select pgps.raise_confirming()")
    rows(session, GATED)


def arrange(admin: psycopg.Connection) -> None:
    make_type(admin, "tick")
    make_type(admin, "attempt", visibility="immediate")
    make_type(admin, "outcome", "attempt_id bigint, committed boolean")
    call(admin, "link_confirm_event", "outcome", "attempt")
    rows(admin, "create table public.done (n integer)")
    client = Client(admin, "client")
    client.register("tick")
    client.register("outcome")
    client.register("attempt", "direct")
    for number in (1, 2):
        publish(admin, "tick", number)
    rows(admin, "select pgps.dispatch()")
    client.call("send_request", f"insert into public.done values (1); {GATED}")
    client.call("send_request", "insert into public.done values (2)")


def dispatch_and_confirm(admin: psycopg.Connection) -> None:
    for _ in range(2):
        rows(admin, "select pgps.dispatch()")
        rows(admin, "select pgps.raise_confirming()")


def test_the_server_is_killed_while_clients_are_at_work(own_cluster: EmbeddedCluster) -> None:
    """One cluster and one client through three crashes: in a request, in a commit, before a confirmation."""
    with connect(own_cluster) as admin:
        arrange(admin)

    killed(own_cluster, in_a_request)
    with connect(own_cluster) as admin:
        assert execute(admin) == ["done", "done"]
        assert column(admin, "select n from public.done order by n") == [1, 2], "each once"
        assert column(admin, "select attempts from pgps.requests order by request_id") == [2, 1]

    killed(own_cluster, in_a_commit)
    with connect(own_cluster) as admin:
        assert column(admin, "select n from public.done order by n") == [1, 2], "rolled back with the commit"
        client = Client(admin, "client")
        assert client.before is not None
        assert not client.before["disconnected"]
        assert client.before["event_checkpoint"] is None
        assert client.before["last_committed_event"] is None
        assert client.before["last_received_event"] is not None
        again = client.receive_again()
        assert again is not None, "the event comes again"
        assert (again["numbers"], again["attempt"]) == ([1], 2)
        client.call("commit_event", b"one")
        assert [client.reply() is not None for _ in range(3)] == [True, True, False]
        call(admin, "use_client", None)

    killed(own_cluster, after_raising_at_once)
    with connect(own_cluster) as admin:
        dispatch_and_confirm(admin)
        client = Client(admin, "client")
        assert client.before is not None
        assert client.before["event_checkpoint"] == b"one"
        second = client.receive("tick")
        assert second is not None
        assert second["numbers"] == [2]
        assert client.one("select * from pgps.receive_event('client', 'outcome')") is not None
        committed = column(admin, "select payload -> 'committed' from pgps.fetch_tuples('client')")
        assert committed == [False], "the raiser has aborted"
        assert client.receive() is None
        modes = rows(admin, "select mode, state from pgps.registrations order by mode")
        assert modes == [("direct", "valid"), ("queued", "valid"), ("queued", "valid")]
        client.register("attempt", "direct")
        publish(admin, "attempt", 8)
        assert client.pushed(waits=True) == [8], "and all goes on"
