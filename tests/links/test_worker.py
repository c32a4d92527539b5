"""Links served by workers, as people run them: what is carried survives what can happen to a worker or a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps_worker.connection import Connection
from pgps_worker.links import calls
from tests.fix_broker import Rows, call, make_type, publish, rows, value
from tests.fix_db import table_waiters, wait_until
from tests.fix_worker import Workers
from tests.links.rig import Broker, received
from tests.links.serving import served

Brokers = Callable[[int], list[Broker]]


def state(broker: Broker, link: str) -> str:
    """Return the state of a link; "gone" when there is none."""
    found = rows(broker.admin, "select state from pgps.links where name = %s", [link])
    return str(found[0][0]) if found else "gone"


def is_wanted(broker: Broker, count: int = 1) -> bool:
    """Return whether neighbours have sent so many filters."""
    return bool(value(broker.admin, "select count(*) from pgps_internal.wanted") == count)


def subscribed(a: Broker, b: Broker, name: str = "all") -> None:
    """Subscribe b to what a publishes, and wait until a knows."""
    wait_until(lambda: value(b.admin, "select count(*) from pgps.event_types") == 1)
    wait_until(lambda: value(b.admin, "select count(*) from pgps.advertisements") == 1)
    call(b.admin, "subscribe", name, "tick", scope="global")
    wait_until(lambda: is_wanted(a))
    wait_until(lambda: value(b.admin, "select count(*) from pgps_internal.activation") == 1)


def arrived(broker: Broker, subscription: str, count: int) -> list[int]:
    """Wait until so many events have come, and return them."""
    query = "select depth from pgps.subscriptions where name = %s"
    wait_until(lambda: value(broker.admin, query, [subscription]) >= count, what=f"{count} events")
    return [n for _, n in received(broker, subscription)]


def test_workers_carry_events_to_the_neighbour(brokers: Brokers, workers: Workers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    workers(a.dsn)
    workers(b.dsn)
    call(a.admin, "create_link", "to_b", b.dsn)
    subscribed(a, b)
    wait_until(lambda: state(a, "to_b") == "up", what="up")
    publish(a.admin, "tick", 1, 2)
    publish(a.admin, "tick", 3)
    assert arrived(b, "all", 3) == [1, 2, 3]


def test_what_comes_while_a_small_batch_is_received_is_asked_for_meanwhile(brokers: Brokers, workers: Workers) -> None:
    a, b = brokers(2)
    # Else totals, when they are due, would be what is asked for behind the first.
    call(a.admin, "configure", "link_report_interval", "1 hour")
    make_type(a.admin, "tick")
    workers(a.dsn)
    workers(b.dsn)
    call(a.admin, "create_link", "to_b", b.dsn)
    subscribed(a, b)
    packed = "select count(*) from pgps_internal.shipment where kind = 'data'"
    looked = """
        select count(*) from pg_stat_activity a where a.datname = current_database() and a.state = 'idle'
            and a.query like 'select pgps.link_next%' and a.query_start > (
                select max(s.created_at) from pgps_internal.shipment s where s.kind = 'data')
        """
    with psycopg.connect(b.dsn) as receiver:
        receiver.execute("lock table pgps_internal.turn in exclusive mode")
        publish(a.admin, "tick", 1)
        wait_until(lambda: table_waiters(b.admin, "pgps_internal.turn"), what="the first is being received")
        wait_until(lambda: value(a.admin, looked), what="nothing else was found")
        publish(a.admin, "tick", 2)
        wait_until(lambda: value(a.admin, packed) == 2, what="the second has been asked for")
    assert arrived(b, "all", 2) == [1, 2]


def test_events_that_wait_go_before_what_else_there_is_to_tell(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    call(a.admin, "create_link", "to_b", b.dsn)
    with served(a, b):
        subscribed(a, b)
    publish(a.admin, "tick", *range(5))
    a.settle()
    asked: list[tuple[bool, int]] = []
    next_batch = calls.next_batch

    async def noted(source: Connection, after: int, max_events: int, **options: Any) -> calls.Batch:
        batch = await next_batch(source, after, max_events, **options)
        if "with_rows" in options:  # else it only compares what both have
            asked.append((options["refresh"], batch.events))
        return batch

    monkeypatch.setattr(calls, "next_batch", noted)
    with served(a, b):
        assert arrived(b, "all", 5) == list(range(5))
        wait_until(lambda: [refresh for refresh, _ in asked].count(True) > 1, what="both ways have told the rest")
    assert [refresh for refresh, events in asked if events] == [False]


def test_a_link_that_both_sides_define_is_served_once(brokers: Brokers, workers: Workers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    call(a.admin, "create_link", "to_b", b.dsn)
    call(b.admin, "create_link", "to_a", a.dsn)
    workers(a.dsn)
    workers(b.dsn)
    subscribed(a, b)
    publish(a.admin, "tick", *range(100))
    assert arrived(b, "all", 100) == list(range(100))
    wait_until(lambda: value(a.admin, "select count(*) from pgps_internal.link_session") == 2, what="one serves it")


def test_a_worker_that_is_killed_leaves_nothing_behind_and_loses_nothing(brokers: Brokers, workers: Workers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    first = workers(a.dsn)
    workers(b.dsn)
    call(a.admin, "create_link", "to_b", b.dsn)
    subscribed(a, b)
    for n in range(0, 3000, 100):
        publish(a.admin, "tick", *range(n, n + 100))
        if n == 1000:
            first.kill9()
    workers(a.dsn)
    assert arrived(b, "all", 3000) == list(range(3000))


@pytest.mark.parametrize(
    ("conninfo", "expected", "said"),
    [
        ("host=/nonexistent dbname=x", "waiting", "/nonexistent"),
        ("{b} dbname=nowhere", "waiting", "nowhere"),
        ("{b} dbname=postgres", "waiting", "pgps"),
        ("{a}", "blocked", "itself"),
    ],
)
def test_a_link_that_cannot_work_says_why_and_hurts_no_other(
    brokers: Brokers, workers: Workers, conninfo: str, expected: str, said: str
) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    overrides = {"dbname": conninfo.rpartition("=")[2]} if conninfo.startswith("{b}") else {}
    target = make_conninfo({"{a}": a.dsn}.get(conninfo, b.dsn), **overrides) if "{" in conninfo else conninfo
    call(a.admin, "create_link", "broken", target)
    call(a.admin, "create_link", "good", b.dsn)
    workers(a.dsn)
    broken = "select state, last_error, hint from pgps.links where name = 'broken' and last_error is not null"
    found: Rows = []

    def has_said_why() -> bool:
        # Whoever could not connect in time says that, and tries again.
        found[:] = rows(a.admin, broken)
        return [row[0] for row in found] == [expected] and said in found[0][1]

    wait_until(has_said_why, what=f"{expected}: {said}")
    _, error, hint = found[0]
    assert said in error
    assert hint
    wait_until(lambda: state(a, "good") == "up")
