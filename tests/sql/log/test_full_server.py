"""All connections of the server are in use: what needs one more says so, and nothing of it has happened."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps.embedded import EmbeddedCluster
from tests.fix_broker import call, make_type, numbers, publish, refused, rows, value


@pytest.fixture
def session(own_cluster: EmbeddedCluster) -> Iterator[psycopg.Connection]:
    """A session of a broker that has room for few."""
    with own_cluster.connect() as admin:
        rows(admin, "alter system set max_connections = 14")
    own_cluster.stop()
    own_cluster.start()
    with own_cluster.connect() as session:
        make_type(session, "alarm", visibility="immediate")
        make_type(session, "tick")
        for name in ("alarm", "tick"):
            call(session, "subscribe", name, name)
        yield session


@contextlib.contextmanager
def full(cluster: EmbeddedCluster) -> Iterator[None]:
    with contextlib.ExitStack() as taken:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                taken.enter_context(psycopg.connect(cluster.dsn()))
        yield


def test_what_needs_a_connection_says_that_all_are_in_use(
    own_cluster: EmbeddedCluster, session: psycopg.Connection
) -> None:
    with full(own_cluster):
        with refused("53300", "loopback connection", "max_connections", "14"):
            publish(session, "alarm", 1)
        with refused("53300", "loopback connection", "max_connections", "14"):
            call(session, "logon", "front desk")
        publish(session, "tick", 2)
        rows(session, "select pgps.dispatch()")
        assert numbers(session, "tick") == [2]
    publish(session, "alarm", 3)
    rows(session, "select pgps.dispatch()")
    assert numbers(session, "alarm") == [3]
    call(session, "logon", "front desk")


def test_another_reason_is_told_with_the_server_s_words(session: psycopg.Connection) -> None:
    info = session.info
    elsewhere = make_conninfo(host=info.host, port=info.port, user=info.user, dbname="nosuch")
    call(session, "configure", "loopback", elsewhere)
    with refused("08001", 'database "nosuch" does not exist', "pgps.configure('loopback'"):
        publish(session, "alarm", 1)
    assert value(session, "select count(*) from pgps_queue.alarm_in") == 0
