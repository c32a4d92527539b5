"""Workers and the server are killed while composite events are detected: the same is detected, each time once."""

from __future__ import annotations

import random

import psycopg
import pytest

from pgps.embedded import EmbeddedCluster
from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_db import Connect, wait_until
from tests.fix_worker import Workers

PAIRS = "select first, second from pgps_queue.pair_in order by second, first"


def prepare(connection: psycopg.Connection) -> None:
    make_type(connection, "reading", "patient integer not null, n integer not null")
    call(
        connection, "create_composite_event", "pair", "reading a ; reading b", context="chronicle", max_open=1000,
        partition_by="patient", filter="b.n % 7 <> 0", attributes="first integer = a.n, second integer = b.n",
        auditable=True,
    )  # fmt: skip


def publish(connection: psycopg.Connection, numbers: range) -> None:
    rows(
        connection,
        "insert into pgps_event.reading (patient, n) select mod(n, 5), n from unnest(%s::integer[]) n",
        [list(numbers)],
    )


def expected(count: int) -> list[tuple[int, int]]:
    """Each number but those of sevens with the oldest of its patient that has not been paired, itself behind them."""
    found: list[tuple[int, int]] = []
    waiting: dict[int, list[int]] = {}
    for n in range(1, count + 1):
        opened = waiting.setdefault(n % 5, [])
        if n % 7 and opened:
            found.append((opened.pop(0), n))
        opened.append(n)
    return sorted(found, key=lambda pair: pair[::-1])


def shown(connection: psycopg.Connection) -> list[tuple[int, ...]]:
    rows(connection, "select pgps.dispatch()")
    rows(connection, "select pgps.dispatch()")
    return rows(connection, PAIRS)


def test_workers_that_are_killed_repeat_nothing_and_lose_nothing(
    own_database: str, connect: Connect, workers: Workers
) -> None:
    admin = connect(dsn=own_database)
    prepare(admin)
    first, second = workers(own_database), workers(own_database)
    shares = "select count(*) from pgps_internal.composite_share"
    wait_until(lambda: value(admin, shares) == 2, what="a share of the keys for each worker")
    publish(admin, range(1, 101))
    wait_until(lambda: value(admin, "select count(*) from pgps_queue.pair_in") > 0, what="the first pairs")
    publish(admin, range(101, 201))
    first.kill9()
    publish(admin, range(201, 301))
    wait_until(lambda: len(rows(admin, PAIRS)) == len(expected(300)), what="all pairs")
    wait_until(lambda: value(admin, shares) == 1, what="all keys at the worker that is left")
    second.kill9()
    publish(admin, range(301, 401))
    workers(own_database)
    wait_until(lambda: len(rows(admin, PAIRS)) == len(expected(400)), what="all pairs of the third worker")
    assert rows(admin, PAIRS) == expected(400)


def test_a_worker_lets_timers_fire(own_database: str, connect: Connect, workers: Workers) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "reading", "n integer")
    rows(admin, "create table public.told (n integer)")
    rows(
        admin,
        "create function public.tell(n integer) returns void language sql as $$ insert into public.told values (n) $$",
    )
    call(
        admin, "create_composite_event", "silence", "not(reading)[reading r, + '200 ms']", attributes="n integer = r.n"
    )
    call(admin, "subscribe", "tells", "silence", execute="public.tell(n)")
    workers(own_database)
    rows(admin, "insert into pgps_event.reading values (1)")
    wait_until(lambda: column(admin, "select n from public.told") == [1], what="the alert")


@pytest.mark.parametrize("seed", range(2))
def test_a_server_that_is_killed_detects_the_same(own_cluster: EmbeddedCluster, seed: int) -> None:
    chance = random.Random(seed)
    last = 0

    def opened() -> psycopg.Connection:
        return psycopg.connect(own_cluster.dsn(), autocommit=True)

    with opened() as connection:
        prepare(connection)
    for _ in range(3):
        with opened() as connection:
            for _ in range(4):
                following = last + chance.randint(1, 20)
                publish(connection, range(last + 1, following + 1))
                last = following
                if chance.random() < 0.7:
                    rows(connection, "select pgps.dispatch()")
            # A dispatch whose transaction is lost.
            connection.autocommit = False
            rows(connection, "select pgps.dispatch()")
            own_cluster.kill9()
            connection.close()
        own_cluster.start()
    with opened() as connection:
        assert shown(connection) == expected(last)
