"""Kill -9 of the worker and of the server, between any two steps: nothing is lost, nothing is repeated."""

from __future__ import annotations

import random
import threading
from functools import partial

import psycopg
import pytest

from pgps.embedded import EmbeddedCluster
from tests.fix_db import Connect, lock_waiters, wait_until
from tests.fix_worker import Ticks, Workers, ticks, workers

__all__ = ["ticks", "workers"]

_GATE = 77


def test_killed_in_the_middle_of_a_dispatch(own_database: str, ticks: Ticks, workers: Workers) -> None:
    """Kill the worker while a filter function keeps the dispatch waiting."""
    ticks.connection.execute(
        f"""
        create function public.gate(n integer) returns boolean language plpgsql as
        $$ begin perform pg_advisory_xact_lock_shared({_GATE}); return true; end $$
        """.encode()
    )
    ticks.subscribe("gated", more=", filter => 'public.gate(n)'")
    ticks.subscribe("all")
    worker = workers(own_database)
    ticks.connection.execute("select pg_advisory_lock(%s)", [_GATE])
    ticks.publish(1, 2, 3)
    wait_until(lambda: lock_waiters(ticks.connection, _GATE))
    worker.kill9()
    ticks.connection.execute("select pg_advisory_unlock(%s)", [_GATE])
    workers(own_database)
    for name in ("gated", "all"):
        ticks.wait_for(name, 3)
        assert ticks.seen(name) == [1, 2, 3]


def test_killed_in_the_middle_of_a_callback(own_database: str, ticks: Ticks, workers: Workers) -> None:
    """Its session and the locks of the callback are released at once, and not only when the callback ends."""
    ticks.subscribe("gated", f"perform pg_advisory_xact_lock_shared({_GATE})")
    worker = workers(own_database)
    ticks.connection.execute("select pg_advisory_lock(%s)", [_GATE])
    ticks.publish(1, 2, 3)
    wait_until(lambda: lock_waiters(ticks.connection, _GATE))
    worker.kill9()
    wait_until(lambda: not lock_waiters(ticks.connection, _GATE))
    second = workers(own_database, ready=False)
    wait_until(lambda: lock_waiters(ticks.connection, _GATE), what=second.messages)
    assert ticks.seen("gated") == []
    ticks.connection.execute("select pg_advisory_unlock(%s)", [_GATE])
    ticks.wait_for("gated", 3)
    assert ticks.seen("gated") == [1, 2, 3]
    assert ticks.failed("gated") == [], "the killing was not the events' doing"


def test_killed_between_dispatch_and_delivery(own_database: str, ticks: Ticks, workers: Workers) -> None:
    ticks.subscribe("all")
    ticks.publish(1, 2, 3)
    ticks.connection.execute("select pgps.dispatch()")
    workers(own_database, ready=False).kill9()
    workers(own_database)
    ticks.wait_for("all", 3)
    assert ticks.seen("all") == [1, 2, 3]


def test_killed_again_and_again_under_load(own_database: str, ticks: Ticks, connect: Connect, workers: Workers) -> None:
    ticks.subscribe("all")
    ticks.subscribe("some", "if e.n % 7 = 0 then raise exception 'sevens fail'; end if")
    total, chance = 1500, random.Random(11)
    publisher = connect(dsn=own_database)

    def publish() -> None:
        for number in range(total):
            publisher.execute("insert into pgps_event.tick (n) values (%s)", [number])

    def has_come_to(goal: int) -> bool:
        return len(ticks.seen("all")) >= min(goal, total)

    thread = threading.Thread(target=publish)
    thread.start()
    goal = 0
    while goal < total:
        worker = workers(own_database, ready=False)
        goal += chance.randint(50, 250)
        wait_until(partial(has_come_to, goal))
        worker.kill9()
    thread.join()
    workers(own_database)
    wait_until(lambda: len(ticks.seen("all")) == total)
    assert ticks.seen("all") == list(range(total)), "each once, in order"
    failing = range(0, total, 7)
    wait_until(lambda: len(ticks.failed("some")) == len(failing))
    assert ticks.seen("some") == [n for n in range(total) if n % 7]
    assert [n for n, _ in ticks.failed("some")] == list(failing)


@pytest.mark.parametrize("step", ["dispatch", "callback"])
def test_the_server_is_killed_in_the_middle_of_a_step(
    own_cluster: EmbeddedCluster, workers: Workers, step: str
) -> None:
    dsn = own_cluster.dsn()
    with psycopg.connect(dsn, autocommit=True) as connection:
        broker = Ticks(connection)
        gate = f"pg_advisory_xact_lock_shared({_GATE})"
        connection.execute(
            f"""
            create function public.gate(n integer) returns boolean language plpgsql as
            $$ begin perform {gate if step == "dispatch" else "1"}; return true; end $$
            """.encode()
        )
        broker.subscribe("gated", f"perform {gate if step == 'callback' else '1'}", more=", filter => 'public.gate(n)'")
        worker = workers(dsn)
        connection.execute("select pg_advisory_lock(%s)", [_GATE])
        broker.publish(1, 2, 3)
        wait_until(lambda: lock_waiters(connection, _GATE))
        own_cluster.kill9()
    own_cluster.start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        broker.connection = connection
        broker.wait_for("gated", 3)
        broker.publish(4)
        broker.wait_for("gated", 4)
        assert broker.seen("gated") == [1, 2, 3, 4]
        assert broker.failed("gated") == [], "one death is no proof"
    assert worker.stop() == 0
