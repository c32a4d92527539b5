"""Kill -9 of a backend, and of the whole server, in the middle of a step: nothing is lost, nothing is repeated."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pgps.embedded import EmbeddedCluster
from tests.fix_broker import call, make_type, numbers, publish, rows, sink, sunk, take, value
from tests.fix_clock import Clock
from tests.fix_db import lock_waiters, wait_until

GATE = 99
SEGMENT = 65536


class Broken:
    """A cluster with one type and a subscription of each kind; steps are killed while they wait at a gate."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.connection = psycopg.connect(cluster.dsn(), autocommit=True)
        c = self.connection
        rows(
            c,
            "create function public.gate(n integer) returns boolean language plpgsql as $$ begin "
            f"if n = 13 then perform pg_advisory_xact_lock_shared({GATE}); end if; return true; end $$",
        )
        make_type(c, "tick")
        self.table = sink(c, "tick", body="perform public.gate(($1).n);")
        call(c, "subscribe", "inside", "tick", execute=self.table)
        call(c, "subscribe", "every", "tick", filter="public.gate(n)")
        call(c, "subscribe", "shared", "tick", handler="any")
        call(c, "configure", "lease", "1 hour")

    def again(self) -> psycopg.Connection:
        """Connect again after the server was killed."""
        self.connection.close()
        self.connection = psycopg.connect(self.cluster.dsn(), autocommit=True)
        return self.connection


@pytest.fixture
def broken(own_cluster: EmbeddedCluster) -> Iterator[Broken]:
    broker = Broken(own_cluster)
    yield broker
    broker.connection.close()


def killed(broker: Broken, target: str, step: Callable[[psycopg.Connection], object]) -> None:
    """Run a step in a session of its own until it waits at the gate; kill its backend, or the server; start again."""
    holder = psycopg.connect(broker.cluster.dsn(), autocommit=True)
    rows(holder, "select pg_advisory_lock(%s)", [GATE])
    session = psycopg.connect(broker.cluster.dsn())

    def run() -> None:
        with contextlib.suppress(psycopg.Error):
            step(session)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: lock_waiters(holder, GATE))
    if target == "backend":
        # The postmaster restarts all backends when one is killed, because shared memory may be damaged.
        os.kill(session.info.backend_pid, signal.SIGKILL)
        wait_until(lambda: not answers(broker.connection))
    else:
        broker.cluster.kill9()
    thread.join()
    for connection in (session, holder):
        connection.close()
    if target == "server":
        broker.cluster.start()
    wait_until(lambda: is_up(broker))


def answers(connection: psycopg.Connection) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        rows(connection, "select 1")
        return True
    return False


def is_up(broker: Broken) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        broker.again()
        return True
    return False


def gated(connection: psycopg.Connection, statement: str) -> None:
    """Execute a step, and wait at the gate before the commit."""
    rows(connection, statement)
    rows(connection, "select public.gate(13)")
    connection.commit()


def committed(connection: psycopg.Connection, statement: str) -> None:
    rows(connection, statement)
    connection.commit()


def drained(broker: Broken, subscription: str) -> list[int]:
    found = numbers(broker.connection, subscription)
    call(broker.connection, "ack", subscription)
    return found


def expect(broker: Broken, expected: list[int]) -> None:
    c = broker.connection
    rows(c, "select pgps.dispatch()")
    rows(c, "call pgps.run_subscribers()")
    Clock(c).advance("2 hours")  # whoever was killed holds a lease of one
    assert sunk(c, broker.table) == expected
    for subscription in ("every", "shared"):
        assert drained(broker, subscription) == expected, subscription
    publish(c, "tick", 100)
    for subscription in ("every", "shared"):
        assert take(c, subscription) == [100]
    assert rows(c, "select * from pgps_queue.tick_exception") == []


TARGETS = pytest.mark.parametrize("target", ["backend", "server"])


@TARGETS
def test_killed_while_publishing(broken: Broken, target: str) -> None:
    publish(broken.connection, "tick", 1)
    killed(broken, target, lambda c: gated(c, "insert into pgps_event.tick values (2), (3)"))
    publish(broken.connection, "tick", 4)
    expect(broken, [1, 4])


@TARGETS
def test_killed_while_dispatching(broken: Broken, target: str) -> None:
    publish(broken.connection, "tick", 1, 13, 2)
    killed(broken, target, lambda c: committed(c, "select pgps.dispatch()"))
    expect(broken, [1, 13, 2])


@TARGETS
def test_killed_between_dispatch_and_commit(broken: Broken, target: str) -> None:
    publish(broken.connection, "tick", 1, 2)
    killed(broken, target, lambda c: gated(c, "select pgps.dispatch()"))
    expect(broken, [1, 2])


@TARGETS
def test_killed_in_a_callback(broken: Broken, target: str) -> None:
    publish(broken.connection, "tick", 1, 13, 2)
    call(broken.connection, "dispatch")
    killed(broken, target, lambda c: committed(c, "select pgps.run_subscriber('inside')"))
    assert sunk(broken.connection, broken.table) == []
    expect(broken, [1, 13, 2])


@TARGETS
@pytest.mark.parametrize("subscription", ["every", "shared"])
def test_killed_while_receiving_and_acknowledging(broken: Broken, target: str, subscription: str) -> None:
    publish(broken.connection, "tick", 1, 2)
    call(broken.connection, "dispatch")
    statement = f"select count(*) from pgps.receive('{subscription}')"
    killed(broken, target, lambda c: gated(c, f"{statement}; select pgps.ack('{subscription}')"))
    expect(broken, [1, 2])


@TARGETS
def test_killed_while_reclaiming(broken: Broken, target: str) -> None:
    c = broken.connection
    for number in (1, 2):
        publish(c, "tick", number)
        if number == 1:
            call(c, "dispatch")
            rows(c, "call pgps.run_subscribers()")
            assert drained(broken, "every") == drained(broken, "shared") == [1]
        at = value(c, "select last_value from pgps_internal.event_id_seq")
        rows(c, f"select setval('pgps_internal.event_id_seq', {(at // SEGMENT + 1) * SEGMENT})")
    killed(broken, target, lambda c: gated(c, "select pgps.reclaim(100)"))
    c = broken.connection
    rows(c, "select pgps.reclaim(100)")
    assert [n for (n,) in rows(c, "select n from pgps_internal.tick_log")] == [2]
    call(c, "dispatch")
    rows(c, "call pgps.run_subscribers()")
    assert sunk(c, broken.table) == [1, 2]
    assert drained(broken, "every") == drained(broken, "shared") == [2]


def test_unlogged_types_come_back_empty_and_work(own_cluster: EmbeddedCluster) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "durable": {},
        "passing": {"persistent": False},
        "loose": {"reliability": "non-guaranteed"},
    }
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as c:
        for name, options in kinds.items():
            make_type(c, name, **options)
            call(c, "subscribe", name, name, handler="any" if name == "loose" else "all")
            call(c, "subscribe", f"in_{name}", name, execute=sink(c, name))
            publish(c, name, 1, 2, 3)
        call(c, "dispatch")
        for name in kinds:
            publish(c, name, 4)
            assert numbers(c, name, 1) == [1]
        own_cluster.kill9()
    own_cluster.start()
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as c:
        Clock(c).advance("2 minutes")  # the lease of whoever was killed is over
        for name in kinds:
            publish(c, name, 5)
        call(c, "dispatch")
        rows(c, "call pgps.run_subscribers()")
        for name in kinds:
            expected = [1, 2, 3, 4, 5] if name == "durable" else [5]
            assert numbers(c, name, 2) == expected[:2], name
            if name != "loose":
                assert numbers(c, name) == expected, name
            call(c, "ack", name)
            assert sunk(c, f"public.{name}_sink") == expected
            assert value(c, "select depth from pgps.subscriptions where name = %s", [name]) == 0


def test_killed_again_and_again_under_load(own_cluster: EmbeddedCluster) -> None:
    broker, chance = Broken(own_cluster), random.Random(3)
    published: list[int] = []
    processed: list[int] = []
    rows(broker.connection, "create table public.done (n integer)")

    def life(first: int) -> None:
        with psycopg.connect(own_cluster.dsn()) as c:
            for number in range(first, first + 10_000):
                rows(c, "insert into pgps_event.tick values (%s)", [number])
                rows(c, "select 1")
                c.commit()
                published.append(number)
                if number % 3 == 0:
                    rows(c, "select pgps.dispatch(2)")
                    c.commit()
                if number % 5 == 0:
                    statement = "insert into public.done select (payload ->> 'n')::integer from pgps.receive('every')"
                    rows(c, f"{statement}; select pgps.ack('every')")
                    c.commit()

    for turn in range(3):

        def run(first: int = (turn + 1) * 100_000) -> None:
            with contextlib.suppress(psycopg.Error):
                life(first)

        thread = threading.Thread(target=run)
        known = len(published)
        thread.start()
        target = known + chance.randint(20, 60)
        wait_until(lambda at=target: len(published) >= at, timeout=60)  # type: ignore[misc]
        own_cluster.kill9()
        thread.join()
        own_cluster.start()
    c = broker.again()
    call(c, "dispatch")
    processed = [n for (n,) in rows(c, "select n from public.done")] + drained(broker, "every")
    broker.connection.close()
    assert len(processed) == len(set(processed)), "nothing is repeated"
    assert set(published) <= set(processed), "nothing is lost"
    assert len(set(processed) - set(published)) <= 3, "what was committed as the server died"
    assert processed == sorted(processed)
