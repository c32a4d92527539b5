"""The long haul by workers, while they and the servers at both ends are killed: everything arrives once, in order."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgps.embedded import EmbeddedCluster
from tests.fix_broker import call, rows
from tests.fix_db import wait_until
from tests.fix_server import TEMPLATE
from tests.fix_worker import WorkerProcess, Workers, workers

__all__ = ["workers"]

_PART = 40


def spool(dsn: str, first: int) -> None:
    """Spool one part of the messages, one transaction each."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for n in range(first, first + _PART):
            call(connection, "spool", "checker", 1, Jsonb(n), network="sweden")


def arrived(dsn: str) -> list[int]:
    """Return what a contact point has, after a dispatch there; nothing while its server is away."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            rows(connection, "select pgps.dispatch()")
            found = rows(connection, "select seqn, message from pgps.spooled_messages where spool = 'checker'")
    except psycopg.OperationalError:
        return []
    assert [seqn for seqn, _ in found] == list(range(1, len(found) + 1))
    return [message for _, message in found]


def managers(dsn: str) -> set[str]:
    """Return the names of the workers that manage a connection."""
    query = """
        select split_part(a.application_name, '/', 2) from pgps.network_contacts c join pg_stat_activity a
            on a.pid = c.manager
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        return {name for (name,) in rows(connection, query)}


@pytest.mark.timeout(300)
def test_everything_arrives_once_although_both_ends_and_all_workers_are_killed(
    own_cluster: EmbeddedCluster, own_database: str, workers: Workers
) -> None:
    # Norway and sif die together; sigyn, the other contact point of sweden, is on another server and lives.
    norway = own_cluster.dsn()
    with psycopg.connect(own_cluster.dsn("template1"), autocommit=True) as connection:
        connection.execute(f"create database sif template {TEMPLATE}".encode())
    sif, sigyn = own_cluster.dsn("sif"), own_database
    with psycopg.connect(norway, autocommit=True) as connection:
        call(connection, "create_network", "sweden", [sif, sigyn])
    running: dict[str, WorkerProcess] = {}

    def start() -> None:
        worker = workers(norway)
        running[worker.name] = worker

    start()
    start()
    spool(norway, 0)
    wait_until(lambda: len(arrived(sif)) > 0 and len(managers(norway)) > 0, what="the first messages arrive")
    # The manager dies with what it is carrying, and the standby goes on.
    spool(norway, _PART)
    victim = next(iter(managers(norway)))
    running.pop(victim).kill9()
    (standby,) = running
    wait_until(lambda: managers(norway) == {standby}, what="the standby manages the connections")
    wait_until(lambda: len(arrived(sigyn)) == 2 * _PART, what="what the first had is carried by the second")
    # Both ends die; the other contact point has what was carried, and the rest follows when the sender is back.
    spool(norway, 2 * _PART)
    own_cluster.kill9()
    assert arrived(sigyn) == list(range(len(arrived(sigyn))))
    own_cluster.start()
    spool(norway, 3 * _PART)
    # All workers die.
    running.pop(standby).kill9()
    spool(norway, 4 * _PART)
    start()
    wait_until(lambda: len(arrived(sif)) >= 5 * _PART and len(arrived(sigyn)) >= 5 * _PART, what="all is there")
    assert arrived(sif) == arrived(sigyn) == list(range(5 * _PART))
    with psycopg.connect(norway, autocommit=True) as connection:
        wait_until(lambda: rows(connection, "select state, up, waiting from pgps.networks") == [("up", 2, 0)])
