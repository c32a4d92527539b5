from __future__ import annotations

import threading

import psycopg
import pytest

from tests.fix_broker import make_type, value
from tests.fix_db import Connect, wait_until
from tests.fix_worker import RoleFactory, Ticks, Workers, leaders
from tests.worker.test_wakeup import WAITING, believe_it


def test_what_is_committed_is_delivered_without_anybody_asking(
    own_database: str, ticks: Ticks, workers: Workers
) -> None:
    ticks.subscribe("all")
    workers(own_database, safety=600)
    wait_until(lambda: ticks.connection.execute(WAITING.encode()).fetchone(), what="the dispatcher sleeps")
    for number in range(5):
        # With so rare a look it does not say again and again that it sleeps.
        believe_it(ticks.connection)
        ticks.publish(number)
        ticks.wait_for("all", number)


def test_what_was_committed_before_the_worker_came_is_delivered(
    own_database: str, ticks: Ticks, workers: Workers
) -> None:
    ticks.subscribe("all")
    ticks.publish(1, 2, 3)
    workers(own_database)
    wait_until(lambda: ticks.seen("all") == [1, 2, 3])


def test_its_batches_are_as_large_as_the_setting_says(own_database: str, ticks: Ticks, workers: Workers) -> None:
    ticks.connection.execute("select pgps.configure('max_batch_events', '50')")
    ticks.subscribe("all")
    for first in range(0, 400, 10):
        ticks.publish(*range(first, first + 10))
    workers(own_database)
    ticks.wait_for("all", 399)
    events = ticks.connection.execute("select events from pgps_internal.batch_type").fetchall()
    assert sum(number for (number,) in events) == 400
    assert max(number for (number,) in events) <= 50


def test_what_rolls_back_is_not_delivered(own_database: str, ticks: Ticks, connect: Connect, workers: Workers) -> None:
    ticks.subscribe("all")
    workers(own_database)
    other = connect(dsn=own_database, autocommit=False)
    other.execute("insert into pgps_event.tick (n) values (1)")
    other.rollback()
    ticks.publish(2)
    wait_until(lambda: ticks.seen("all") == [2])


def test_a_transaction_that_commits_late_delays_only_itself(
    own_database: str, ticks: Ticks, connect: Connect, workers: Workers
) -> None:
    ticks.subscribe("all")
    workers(own_database)
    late = connect(dsn=own_database, autocommit=False)
    late.execute("insert into pgps_event.tick (n) values (1)")
    ticks.publish(2)
    wait_until(lambda: ticks.seen("all") == [2])
    late.commit()
    wait_until(lambda: ticks.seen("all") == [2, 1])


def test_no_wake_up_is_lost_among_many_publishers(
    own_database: str, ticks: Ticks, connect: Connect, workers: Workers
) -> None:
    """Every event arrives while others are still coming: none waits for the safety poll after the last."""
    ticks.subscribe("all")
    workers(own_database)
    publishers = [connect(dsn=own_database) for _ in range(8)]
    per_publisher = 60

    def publish(place: int, connection: psycopg.Connection) -> None:
        for number in range(per_publisher):
            connection.execute("insert into pgps_event.tick (n) values (%s)", [place * per_publisher + number])

    threads = [
        threading.Thread(target=publish, args=(place, connection)) for place, connection in enumerate(publishers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: len(ticks.seen("all")) == 8 * per_publisher)
    assert sorted(ticks.seen("all")) == list(range(8 * per_publisher))
    for place in range(8):
        mine = [n for n in ticks.seen("all") if n // per_publisher == place]
        assert mine == sorted(mine), "in the order of each publisher"


def test_another_worker_takes_over_when_the_leader_is_killed(own_database: str, ticks: Ticks, workers: Workers) -> None:
    ticks.subscribe("all")
    first = workers(own_database)
    wait_until(lambda: leaders(ticks.connection) == [first.name])
    second = workers(own_database)
    assert leaders(ticks.connection) == [first.name]
    first.kill9()
    wait_until(lambda: leaders(ticks.connection) == [second.name])
    ticks.publish(1)
    wait_until(lambda: ticks.seen("all") == [1])


def test_an_administrator_who_is_no_superuser_sees_who_leads(
    own_database: str, ticks: Ticks, workers: Workers, connect: Connect, role: RoleFactory
) -> None:
    worker = workers(own_database)
    wait_until(lambda: leaders(ticks.connection) == [worker.name])
    for member in ("pgps_admin", "pgps_worker"):
        watcher = connect(role("watcher", member), dsn=own_database)
        seen = watcher.execute("select worker from pgps.workers where leader").fetchall()
        assert seen == [(worker.name,)], member


def test_another_worker_takes_over_when_the_leader_leaves(own_database: str, ticks: Ticks, workers: Workers) -> None:
    first = workers(own_database)
    wait_until(lambda: leaders(ticks.connection) == [first.name])
    second = workers(own_database)
    assert first.stop() == 0
    wait_until(lambda: leaders(ticks.connection) == [second.name])


def test_it_takes_the_lead_again_when_a_filter_has_released_the_lock(
    own_database: str, ticks: Ticks, workers: Workers
) -> None:
    ticks.connection.execute(
        """
        create function public.release(n integer) returns boolean language sql as
        'select pg_advisory_unlock_all() is not null'
        """
    )
    ticks.connection.execute("select pgps.subscribe('mean', 'tick', filter => 'public.release(n)')")
    ticks.subscribe("all")
    worker = workers(own_database)
    wait_until(lambda: leaders(ticks.connection) == [worker.name])
    ticks.publish(1)
    wait_until(lambda: ticks.seen("all") == [1])
    wait_until(lambda: leaders(ticks.connection) == [worker.name])
    ticks.publish(2)
    wait_until(lambda: ticks.seen("all") == [1, 2])
    wait_until(lambda: leaders(ticks.connection) == [worker.name])


def test_a_filter_that_never_ends_is_suspended_and_stops_nobody_else(
    own_database: str, ticks: Ticks, connect: Connect, workers: Workers
) -> None:
    admin = connect(dsn=own_database)
    admin.execute(
        "create function dawdle(n integer) returns boolean language sql volatile as 'select pg_sleep(600) is null'"
    )
    ticks.subscribe("all")
    admin.execute("select pgps.subscribe('slow', 'tick', 'public.dawdle(n)')")
    admin.execute("select pgps.configure('lane_timeout', '1 second')")
    workers(own_database, "--dispatch-timeout", "1")
    ticks.publish(1)
    wait_until(lambda: ticks.seen("all") == [1])
    state = "select state, last_error from pgps.subscriptions where name = 'slow'"
    wait_until(lambda: admin.execute(state).fetchone() == ("suspended", "filter: takes longer than 1 s"))


def test_a_filter_over_the_event_alone_that_takes_long_is_cut_off_within_seconds(
    own_database: str, connect: Connect, workers: Workers
) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "note", "n integer, s text")
    admin.execute("select pgps.configure('dispatch_filter_timeout', '500 milliseconds')")
    admin.execute("select pgps.subscribe('all', 'note'), pgps.subscribe('quick', 'note', 'n > 1')")
    # Each of these looks at each place of the text for a thousand characters, and finds them nowhere.
    condition = " and ".join(f"s not like '%{'a' * 990}{n}'" for n in range(10))
    admin.execute("select pgps.subscribe('slow', 'note', %s)", [condition])
    worker = workers(own_database)
    admin.execute("insert into pgps_event.note select n, repeat('a', 40000) from generate_series(1, 40) n")
    taken = "select count(*) from pgps.take(%s)"
    found = dict.fromkeys(("all", "quick", "slow"), 0)

    def took(name: str, events: int) -> bool:
        found[name] += value(admin, taken, [name])
        return found[name] >= events

    wait_until(lambda: took("all", 40), what=worker.messages)
    wait_until(lambda: took("quick", 39), what=worker.messages)
    # Who cuts it short says so by itself, which may be a moment after the dispatcher has gone on.
    cut = "cut a dispatch short: a filter took longer in it than it may"
    wait_until(lambda: cut in worker.messages, what=worker.messages)
    assert "the filter of slow takes too long for the dispatcher, which asks it no more" in worker.messages
    assert value(admin, "select asked_in from pgps.classes where subscription = 'slow'") == "lane"
    assert value(admin, "select state from pgps.subscriptions where name = 'quick'") == "active"


@pytest.mark.timeout(300)
def test_a_transaction_that_takes_longer_than_the_dispatch_timeout_arrives_as_a_whole(
    own_database: str, ticks: Ticks, connect: Connect, workers: Workers
) -> None:
    """Each of its parts takes a small part of the time limit, all of it together several times as long."""
    admin = connect(dsn=own_database)
    admin.execute("select pgps.configure('max_part_events', '100')")
    admin.execute(
        "create function dawdle(n integer) returns boolean language sql volatile "
        "as 'select pg_sleep(0.0002) is not null'"
    )
    admin.execute("select pgps.subscribe('slow', 'tick', 'public.dawdle(n)')")
    admin.execute("select pgps.subscribe('all', 'tick')")
    worker = workers(own_database, "--dispatch-timeout", "1.5")
    admin.execute("insert into pgps_event.tick (n) select generate_series(1, 12000)")
    depths = "select name, depth from pgps.subscriptions order by name"
    seen = set()

    def arrived() -> bool:
        seen.add(tuple(admin.execute(depths).fetchall()))
        return (("all", 12000), ("slow", 12000)) in seen

    wait_until(arrived, timeout=240.0, what=worker.messages)
    assert {found[0] for found in seen} == {("all", 0), ("all", 12000)}, "all at once"
    assert admin.execute("select count(*) from pgps.subscriptions where state <> 'active'").fetchone() == (0,)


def test_a_dispatch_nobody_is_to_blame_for_gets_more_time(
    own_database: str, ticks: Ticks, connect: Connect, workers: Workers
) -> None:
    ticks.subscribe("all")
    worker = workers(own_database, "--dispatch-timeout", "0.8")
    wait_until(lambda: leaders(ticks.connection) == [worker.name])
    before = len(worker.log)
    with connect(dsn=own_database, autocommit=False) as other:
        other.execute("lock table pgps_internal.batch in share mode")
        ticks.publish(1)
        wait_until(lambda: "it may take 3.2 s now" in worker.messages, what=worker.messages)
        other.rollback()
    ticks.wait_for("all", 1)
    # Other services need not come into it: on a busy machine one of them may have failed meanwhile.
    told = [line["message"] for line in worker.log[before:] if line["message"].startswith("dispatcher: ")]
    assert not [one for one in told if "again in" in one], "it goes on leading"
