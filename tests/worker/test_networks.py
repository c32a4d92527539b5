"""The long haul by workers, while they and the servers at both ends are killed: everything arrives once, in order."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

from pgps.embedded import EmbeddedCluster, find_binaries, process
from tests.fix_broker import call, rows, value
from tests.fix_db import wait_until
from tests.fix_server import TEMPLATE
from tests.fix_spools import Member, Spool
from tests.fix_worker import WorkerProcess, Workers
from tests.links.conftest import brokers, workers
from tests.links.rig import Broker

__all__ = ["brokers", "workers"]

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
    received = arrived(sigyn)
    assert received == list(range(len(received)))
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


def test_numbers_arrive_with_all_their_digits(
    own_cluster: EmbeddedCluster, own_database: str, workers: Workers
) -> None:
    # As Python reads JSON the first would be rounded; it has no float for the second, and no int for the third.
    numbers = ["0.1234567890123456789012345", "1e400", "7" * 5000, "1.50"]
    with psycopg.connect(own_database, autocommit=True) as connection:
        call(connection, "create_network", "sweden", [own_cluster.dsn()])
        for number in numbers:
            keys = None if len(number) > 2000 else f'{{"N": {number}}}'
            call(connection, "spool", "checker", 1, number, keys=keys, network="sweden")
    workers(own_database)
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:

        def arrived() -> int:
            rows(connection, "select pgps.dispatch()")
            return len(rows(connection, "select seqn from pgps.spooled_messages"))

        wait_until(lambda: arrived() == len(numbers), what="all messages arrive")
        query = """
            select array_agg(m.message::text order by m.seqn) = array(select n::jsonb::text from unnest(%s::text[]) n),
                array_agg(m.keys ->> 'N' order by m.seqn)
                    = array(select case when length(n) < 2000 then n::jsonb::text end from unnest(%s::text[]) n)
            from pgps.spooled_messages m
        """
        assert rows(connection, query, [numbers, numbers]) == [(True, True)]


@pytest.fixture
def standby(own_cluster: EmbeddedCluster, embedded_home: Path) -> Iterator[EmbeddedCluster]:
    """A synchronous standby of `own_cluster`."""
    with EmbeddedCluster(f"{own_cluster.name}-standby", fast=True, home=embedded_home, keep=False).create() as made:
        made.stop()
        data = made.directory / "data"
        shutil.rmtree(data)
        data.mkdir(mode=0o700)
        user = process.server_user()
        user.own(data)
        command = [find_binaries().program("pg_basebackup"), "--pgdata", str(data), "--dbname", own_cluster.dsn()]
        done = process.run_as(user, [*command, "--checkpoint=fast", "--write-recovery-conf"])
        assert done.returncode == 0, done.stdout
        made.start()
        with own_cluster.connect() as connection:
            connection.execute("alter system set synchronous_standby_names = '*'")
            connection.execute("select pg_reload_conf()")
            query = "select sync_state from pg_stat_replication"
            wait_until(lambda: rows(connection, query) == [("sync",)], what="the standby is synchronous")
        yield made


@pytest.mark.timeout(300)
def test_what_a_contact_point_holds_its_standby_takes_over(
    own_cluster: EmbeddedCluster, standby: EmbeddedCluster, own_database: str, workers: Workers
) -> None:
    """Messages, pointers, checkpoints, and how far members are; what is under way arrives once."""
    sif, sigyn = (conninfo_to_dict(one.dsn()) for one in (own_cluster, standby))
    both = {key: f"{sif[key]},{sigyn[key]}" for key in ("host", "port")}
    with psycopg.connect(own_database, autocommit=True) as connection:
        hosts = make_conninfo(user=sif["user"], dbname=sif["dbname"], target_session_attrs="read-write", **both)
        call(connection, "create_network", "sweden", [hosts])
    workers(own_database)
    spool(own_database, 0)
    wait_until(lambda: len(arrived(own_cluster.dsn())) == _PART, what="the first messages arrive")
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as there:
        checker = Spool(there, "checker")
        member = Member(there, checker, "m", replay=True)
        assert member.take(1 + 20) == ["|", *range(20)]
        checker.pointer(15)
        checker.checkpoint('"as of 15"')
    spool(own_database, _PART)
    own_cluster.kill9()
    spool(own_database, 2 * _PART)
    with psycopg.connect(standby.dsn(), autocommit=True) as there:
        rows(there, "select pg_promote()")
        checker = Spool(there, "checker")

        def held() -> list[int]:
            checker.dispatch()
            return [message for message in checker.contents().values() if message != "as of 15"]

        wait_until(lambda: len(held()) == 3 * _PART - 15, what="what was under way arrives at the standby")
        assert held() == list(range(15, 3 * _PART))
        assert checker.standing("replay_pointer", "checkpoint_pointer") == (15, _PART + 1)
        member = Member(there, checker, "m", replay=True)
        assert member.take(1000) == [["as of 15"], "|", *range(20, 3 * _PART)]
        # The next checkpoint notes in which timeline the server is.
        rows(there, "checkpoint")
    with psycopg.connect(own_database, autocommit=True) as connection:
        # The manager begins anew.
        rows(connection, "select pg_terminate_backend(manager) from pgps.network_contacts where manager is not null")
    spool(own_database, 3 * _PART)
    with psycopg.connect(standby.dsn(), autocommit=True) as there:
        checker = Spool(there, "checker")
        wait_until(lambda: len(held()) == 4 * _PART - 15, what="it goes on after a checkpoint")
        assert value(there, "select pgps.link_identity() ->> 'state'") == "active"


def test_a_contact_point_of_an_older_release_says_no_more_than_a_number(
    own_cluster: EmbeddedCluster, own_database: str, workers: Workers
) -> None:
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as there:
        rows(there, "drop function pgps.network_reached(jsonb)")
    with psycopg.connect(own_database, autocommit=True) as connection:
        call(connection, "create_network", "sweden", [own_cluster.dsn()])
    workers(own_database)
    spool(own_database, 0)
    wait_until(lambda: arrived(own_cluster.dsn()) == list(range(_PART)), what="the messages arrive")


@pytest.fixture
def norway(brokers: Callable[[int], list[Broker]]) -> psycopg.Connection:
    """A broker that knows another one as network "sweden"."""
    here, there = brokers(2)
    call(here.admin, "create_network", "sweden", [there.dsn])
    return here.admin


def test_a_standby_whose_session_ends_says_nothing_of_the_connection(
    norway: psycopg.Connection, workers: Workers
) -> None:
    dsn = norway.info.dsn
    for _ in range(2):
        workers(dsn)
    state = "select state, last_error from pgps.networks"
    wait_until(lambda: rows(norway, state) == [("up", None)], what="the network is up")
    query = """
        select a.pid from pg_stat_activity a, pgps.network_contacts c
        where a.datname = current_database() and a.application_name like '%%/network-sweden' and a.pid <> c.manager
            and a.state = 'idle' and a.query like 'select pgps.network_open%%'
    """
    wait_until(lambda: len(rows(norway, query)) == 1, what="the other one stands by")
    for _ in range(2):
        # The second time it has said what it had to say of the first.
        ((standby,),) = rows(norway, query)
        call_ended = "select pg_terminate_backend(%s, 10000)"
        assert rows(norway, call_ended, [standby]) == [(True,)]
        wait_until(lambda: len(rows(norway, query)) == 1, what="it stands by again")
        assert rows(norway, state) == [("up", None)]


def test_a_host_that_has_no_possible_name_is_told_of(norway: psycopg.Connection, workers: Workers) -> None:
    call(norway, "create_network", "nowhere", ["host=a..b dbname=x"])
    workers(norway.info.dsn)
    query = "select state, last_error, hint from pgps.networks where name = 'nowhere'"
    wait_until(lambda: rows(norway, query)[0][0] == "waiting", what="the network says why it waits")
    ((_, error, hint),) = rows(norway, query)
    assert "no host has such a name" in error
    assert hint
