"""A dump restored elsewhere, a cloned database: what waited comes once, what was acknowledged does not return."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pgps.embedded import EmbeddedCluster, find_binaries
from tests.fix_broker import call, make_type, numbers, publish, rows, sink, sunk, take, value

SETUP = (
    "create role alice",
    "create role bob",
    "create table public.wanted (n integer)",
    "insert into public.wanted select generate_series(1, 100)",
    "grant select on public.wanted to public",
)


def dumped(dsn: str, program: str, *options: str) -> str:
    bin_dir = find_binaries().directory
    result = subprocess.run([bin_dir / program, *options, "-d", dsn], check=True, capture_output=True, text=True)
    return result.stdout


def fill(dsn: str) -> None:
    """Leave events in every state: acknowledged, received, dispatched, waiting, failed."""
    with psycopg.connect(dsn, autocommit=True) as c:
        for statement in SETUP:
            rows(c, statement)
        make_type(c, "tick", auditable=True)
        table = sink(c, "tick", body="if ($1).n = 3 then raise exception 'three'; end if;")
        call(c, "subscribe", "inside", "tick", execute=table, max_attempts=1)
        for owner in ("alice", "bob"):
            rows(c, f"set session authorization {owner}")
            call(c, "subscribe", owner, "tick", filter="n in (select n from public.wanted)")
            rows(c, "reset session authorization")
        call(c, "create_policy", "tick", "low", "alice", "n < 5")
        call(c, "create_policy", "tick", "high", "bob", "n >= 5")
        call(c, "subscribe", "all", "tick")
        rows(
            c, "insert into pgps_event.tick (n, _producer, _producer_seq) values (1, 'p', 1), (2, 'p', 2), (7, 'p', 7)"
        )
        assert take(c, "all") == [1, 2, 7]
        publish(c, "tick", 3, 8)
        rows(c, "select pgps.dispatch()")
        rows(c, "call pgps.run_subscribers()")
        assert numbers(c, "all") == [3, 8]
        publish(c, "tick", 4, 9)


def check(dsn: str) -> None:
    """Check that waiting events come once, acknowledged ones and repeats never, and that each role gets its own."""
    with psycopg.connect(dsn, autocommit=True) as c:
        rows(
            c, "insert into pgps_event.tick (n, _producer, _producer_seq) values (1, 'p', 1), (5, 'p', 5), (7, 'p', 7)"
        )
        assert take(c, "all") == [3, 8, 4, 9, 5]
        rows(c, "call pgps.run_subscribers()")
        assert sunk(c, "public.tick_sink") == [1, 2, 7, 8, 4, 9, 5]
        assert rows(c, "select n, subscription from pgps_queue.tick_exception") == [(3, "inside")]
        for owner, expected in (("alice", [1, 2, 3, 4]), ("bob", [7, 8, 9, 5])):
            rows(c, f"set session authorization {owner}")
            assert take_as(c, owner) == expected
            seen = rows(c, "select distinct n from pgps_queue.tick_in order by n")
            assert [n for (n,) in seen] == sorted(expected)
            rows(c, "reset session authorization")
        publish(c, "tick", 6)
        assert take(c, "all") == [6]
        assert take(c, "all") == []
        call(c, "alter_event_type", "tick", "b text")
        call(c, "drop_event_type", "tick", True)


def take_as(connection: psycopg.Connection, subscription: str) -> list[int]:
    found = numbers(connection, subscription)
    call(connection, "ack", subscription)
    return found


@pytest.fixture
def other_cluster(embedded_home: Path) -> Iterator[Callable[[str], EmbeddedCluster]]:
    made: list[EmbeddedCluster] = []

    def other(name: str) -> EmbeddedCluster:
        made.append(EmbeddedCluster(name, fast=True, home=embedded_home, keep=False))
        made[-1].__enter__()
        return made[-1]

    yield other
    for cluster in made:
        cluster.__exit__(None, None, None)


@pytest.mark.parametrize("ahead", ["source", "target"])
def test_a_dump_restored_into_another_cluster_goes_on(
    own_cluster: EmbeddedCluster, other_cluster: Callable[[str], EmbeddedCluster], ahead: str
) -> None:
    target = other_cluster(f"restored-{os.getpid()}-{ahead}")
    busy = own_cluster if ahead == "source" else target
    with psycopg.connect(busy.dsn(), autocommit=True) as c:
        rows(c, "do $$ begin for n in 1..5000 loop perform pg_current_xact_id(); commit; end loop; end $$")
        # Object ids differ in the restored database as well.
        for n in range(5):
            rows(c, f"create role filler_{n}_{ahead}")
    fill(own_cluster.dsn())
    with psycopg.connect(target.dsn(), autocommit=True) as c:
        for statement in dumped(own_cluster.dsn(), "pg_dumpall", "--globals-only").splitlines():
            if statement.startswith("CREATE ROLE") and "postgres" not in statement:
                rows(c, statement)
        dump = dumped(own_cluster.dsn(), "pg_dump")
    bin_dir = find_binaries().directory
    subprocess.run(
        [bin_dir / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", target.dsn()],
        input=dump,
        text=True,
        check=True,
        capture_output=True,
    )
    check(target.dsn())


def test_a_database_cloned_from_a_template_goes_on_and_so_does_the_original(own_cluster: EmbeddedCluster) -> None:
    fill(own_cluster.dsn())
    with psycopg.connect(own_cluster.dsn("template1"), autocommit=True) as c:
        rows(c, "create database clone template postgres")
    check(own_cluster.dsn("clone"))
    check(own_cluster.dsn())


def test_events_published_between_the_restore_and_the_first_dispatch_are_delivered(
    own_cluster: EmbeddedCluster,
) -> None:
    fill(own_cluster.dsn())
    with psycopg.connect(own_cluster.dsn("template1"), autocommit=True) as c:
        rows(c, "create database clone template postgres")
    with psycopg.connect(own_cluster.dsn("clone"), autocommit=True) as c:
        publish(c, "tick", 10)
        late = psycopg.connect(own_cluster.dsn("clone"))
        publish(late, "tick", 11)
        assert take(c, "all") == [3, 8, 4, 9, 10]
        publish(c, "tick", 12)
        assert take(c, "all") == [12]
        late.commit()
        late.close()
        assert take(c, "all") == [11]
        assert value(c, "select depth from pgps.subscriptions where name = 'all'") == 0
