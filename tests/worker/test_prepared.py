"""PREPARE TRANSACTION: a publisher's transaction can be prepared at any time, also while the dispatcher sleeps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgps.embedded import EmbeddedCluster
from tests.fix_broker import call, column, make_type, publish, rows, value
from tests.fix_db import wait_until
from tests.fix_server import TEMPLATE, copied_cluster
from tests.fix_worker import Workers, workers
from tests.worker.test_wakeup import WAITING, believe_it

__all__ = ["workers"]

SAYS_IT_SLEEPS = "select is_called and last_value > 0 from pgps_internal.wake_seq"


@pytest.fixture(scope="module")
def cluster(embedded_home: Path) -> Iterator[EmbeddedCluster]:
    """A server on which transactions can be prepared."""
    settings = {"max_prepared_transactions": "10"}
    name = f"prepared-{os.getpid()}"
    with copied_cluster(name, home=embedded_home, settings=settings) as running:
        yield running


@pytest.fixture
def broker(cluster: EmbeddedCluster) -> Iterator[psycopg.Connection]:
    """A broker with an event type and a subscription to all of it."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as maintenance:
        maintenance.execute(f"create database tried template {TEMPLATE}".encode())
        try:
            with psycopg.connect(cluster.dsn("tried"), autocommit=True) as connection:
                make_type(connection, "tick")
                call(connection, "subscribe", "all", "tick")
                yield connection
        finally:
            for gid in column(maintenance, "select gid from pg_prepared_xacts where database = 'tried'"):
                with psycopg.connect(cluster.dsn("tried"), autocommit=True) as connection:
                    connection.execute(f"rollback prepared '{gid}'".encode())
            maintenance.execute("drop database tried with (force)")


def received(broker: psycopg.Connection) -> list[int]:
    return [payload["n"] for payload in column(broker, "select payload from pgps.receive('all', 1000)")]


def until_asleep(broker: psycopg.Connection) -> None:
    wait_until(lambda: value(broker, SAYS_IT_SLEEPS), what="the dispatcher sleeps")


def prepare(broker: psycopg.Connection, gid: str, number: int) -> None:
    rows(broker, "begin")
    publish(broker, "tick", number)
    rows(broker, f"prepare transaction '{gid}'")


def test_what_was_prepared_while_the_dispatcher_slept_arrives_when_it_is_committed(
    broker: psycopg.Connection, workers: Workers
) -> None:
    workers(broker.info.dsn)
    until_asleep(broker)
    prepare(broker, "first", 1)
    until_asleep(broker)
    prepare(broker, "second", 2)
    publish(broker, "tick", 3)
    wait_until(lambda: received(broker) == [3])
    rows(broker, "rollback prepared 'second'")
    rows(broker, "commit prepared 'first'")
    wait_until(lambda: sorted(received(broker)) == [1, 3])
    publish(broker, "tick", 4)
    wait_until(lambda: sorted(received(broker)) == [1, 3, 4])


def test_a_prepared_publication_outlives_the_worker_and_the_server(
    broker: psycopg.Connection, workers: Workers
) -> None:
    first = workers(broker.info.dsn)
    until_asleep(broker)
    prepare(broker, "kept", 1)
    first.kill9()
    publish(broker, "tick", 2)
    workers(broker.info.dsn)
    wait_until(lambda: received(broker) == [2])
    rows(broker, "commit prepared 'kept'")
    wait_until(lambda: sorted(received(broker)) == [1, 2])


@pytest.mark.parametrize("lasts", ["no time", "a while"])
def test_a_publisher_that_commits_does_not_wait_for_the_safety_poll(
    broker: psycopg.Connection, workers: Workers, lasts: str
) -> None:
    workers(broker.info.dsn, safety=600)
    for number in range(5):
        wait_until(lambda: rows(broker, WAITING), what="the dispatcher sleeps")
        # With so rare a look it does not say again and again that it sleeps.
        believe_it(broker)
        with broker.transaction():
            publish(broker, "tick", number)
            if lasts == "a while":
                # It looks in vain meanwhile.
                rows(broker, "select pg_sleep(0.3)")
        wait_until(lambda: len(received(broker)) == number + 1)  # noqa: B023


def test_a_bell_that_is_gone_is_made_up_for_by_the_safety_poll(broker: psycopg.Connection, workers: Workers) -> None:
    """As if the session died between the counting of a ring and the interruption."""
    workers(broker.info.dsn)
    until_asleep(broker)
    rows(broker, "update pgps_internal.leader set bell_started_at = '-infinity'")
    publish(broker, "tick", 1)
    wait_until(lambda: received(broker) == [1])


def test_anybody_may_ring_and_nobody_is_put_to_sleep_by_it(broker: psycopg.Connection, workers: Workers) -> None:
    workers(broker.info.dsn)
    rows(broker, "create role ringer")
    try:
        for number in range(50):
            rows(broker, "set role ringer")
            rows(broker, "select pgps._ring()")
            rows(broker, "reset role")
            if number % 10 == 0:
                publish(broker, "tick", number)
        wait_until(lambda: received(broker) == [0, 10, 20, 30, 40])
        until_asleep(broker)
    finally:
        rows(broker, "drop role ringer")


def test_competing_and_single_consumers_may_be_prepared(broker: psycopg.Connection, workers: Workers) -> None:
    call(broker, "subscribe", "shared", "tick", handler="any")
    workers(broker.info.dsn)
    publish(broker, "tick", 1, 2)
    wait_until(lambda: received(broker) == [1, 2])
    rows(broker, "begin")
    assert received(broker) == [1, 2]
    assert call(broker, "ack", "all") == 2
    rows(broker, "prepare transaction 'acked'")
    rows(broker, "set lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        received(broker)
    rows(broker, "reset lock_timeout")
    rows(broker, "rollback prepared 'acked'")
    assert received(broker) == [1, 2]


def test_a_subscription_to_a_prefix_meets_a_type_that_was_made_while_it_was_prepared(
    broker: psycopg.Connection, cluster: EmbeddedCluster
) -> None:
    for statement in ("begin", "select pgps.subscribe('some', 'ti*')"):
        rows(broker, statement)
    with psycopg.connect(cluster.dsn("tried")) as maker:
        make_type(maker, "tide")
        publish(maker, "tide", 1)
        rows(broker, "prepare transaction 'subscribed'")
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select count(*) from pgps_internal.unmet") == 1
    rows(broker, "commit prepared 'subscribed'")
    publish(broker, "tide", 2)
    rows(broker, "select pgps.dispatch()")
    found = column(broker, "select payload from pgps.receive('some')")
    assert [payload["n"] for payload in found] == [1, 2]
    assert value(broker, "select count(*) from pgps_internal.unmet") == 0
