"""A batch that is too much for a slow lane is asked about in parts, and comes whole, in order and once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, rows, value
from tests.fix_db import Connect
from tests.sql.match.lane_steps import cut, lane, make_filter, run_lanes, take_only

Role = Callable[..., str]

STATE = "select state from pgps.subscriptions where name = 'lane'"


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    """Types pa and pb, and a filter over a function."""
    connection = connect(dsn=own_database)
    make_type(connection, "pa")
    make_type(connection, "pb")
    make_filter(connection)
    return connection


def ask_about(broker: psycopg.Connection, events: int) -> None:
    """Make the lane one that is slow, and asks about so many events at once."""
    rows(broker, "update pgps_internal.lane set is_slow = true, slow_until = 'infinity'")
    rows(
        broker,
        "insert into pgps_internal.lane_part (lane_id, events) select lane_id, %s from pgps_internal.lane"
        " on conflict on constraint lane_part_pkey do update set events = excluded.events",
        [events],
    )


def step(broker: psycopg.Connection) -> Any:
    """Let the lane ask once; return what is told."""
    return column(broker, "select r.told from pgps_internal.lane l cross join lateral pgps.run_slow_lane(l.lane_id) r")[
        0
    ]


def test_a_filter_that_takes_long_for_each_event_is_not_suspended_by_a_large_batch(broker: psycopg.Connection) -> None:
    make_filter(broker, "perform pg_sleep(0.01)")
    call(broker, "subscribe", "lane", "pa", "public.good(n)")
    publish(broker, "pa", *range(500))
    cut(broker)
    rows(broker, "update pgps_internal.lane set is_slow = true, slow_until = 'infinity'")
    # 500 events take five seconds, a hundred of them one.
    rows(broker, "set statement_timeout = '3s'")
    told = step(broker)
    assert told is not None
    assert "asked about fewer events at once" in told
    got: list[int] = []
    for _ in range(8):
        assert got == []
        step(broker)
        got = take_only(broker, "lane")
        if got:
            break
    rows(broker, "reset statement_timeout")
    assert got == list(range(500))
    assert value(broker, STATE) != "suspended"


def test_parts_come_as_one_delivery_and_nothing_before_the_last(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "lane", "p*", "public.good(n) and n % 3 <> 0")
    for n in range(12):
        publish(broker, "pa" if n % 2 else "pb", n)
    cut(broker)
    wanted = [n for n in range(12) if n % 3]
    for _ in range(5):
        ask_about(broker, 2)
        step(broker)
        assert take_only(broker, "lane") == []
        assert lane(broker, "lag_events") == 12
    ask_about(broker, 2)
    step(broker)
    assert take_only(broker, "lane") == wanted
    assert rows(broker, "select * from pgps_internal.lane_found") == []
    assert lane(broker, "lag_events") == 0


def test_events_of_a_batch_that_was_cut_into_parts_go_to_one_of_those_who_share(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "lane", "pa", "public.good(n)", handler="any")
    publish(broker, "pa", *range(7))
    cut(broker)
    for _ in range(4):
        ask_about(broker, 2)
        step(broker)
    assert take_only(broker, "lane") == list(range(7))


@pytest.mark.parametrize("start", ["earliest", "now"])
def test_who_subscribes_in_the_middle_of_a_batch_gets_all_of_it_or_nothing(
    broker: psycopg.Connection, start: str
) -> None:
    call(broker, "subscribe", "lane", "p*", "public.good(n)")
    publish(broker, "pa", *range(6))
    cut(broker)
    ask_about(broker, 2)
    step(broker)
    call(broker, "subscribe", "late", "p*", "public.good(n)", start=start)
    for _ in range(8):
        ask_about(broker, 2)
        step(broker)
    assert take_only(broker, "lane") == list(range(6))
    assert take_only(broker, "late") == (list(range(6)) if start == "earliest" else [])
    publish(broker, "pa", 6)
    cut(broker)
    run_lanes(broker)
    assert take_only(broker, "late") == [6]


def test_a_filter_that_raises_in_one_part_goes_through_with_the_others(broker: psycopg.Connection) -> None:
    make_filter(broker, "if n = 3 then raise exception 'three'; end if")
    call(broker, "subscribe", "lane", "pa", "public.good(n)")
    publish(broker, "pa", *range(6))
    cut(broker)
    for _ in range(3):
        ask_about(broker, 2)
        step(broker)
    assert take_only(broker, "lane") == [0, 1, 2, 4, 5]
    assert rows(broker, "select n, error from pgps_queue.pa_exception") == [(3, "three")]


def test_what_is_resumed_catches_up_in_parts_too(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Role
) -> None:
    """Its subscription stays suspended until it is through, and gets everything once."""
    owner, boss = role("owner"), role("boss", "pgps_admin")
    make_filter(broker, "if n = 2 then raise undefined_table; end if")
    rows(broker, f"grant select on pgps_event.pa, pgps_event.pb to {owner}")
    session, admin = connect(owner, dsn=own_database), connect(boss, dsn=own_database)
    call(session, "subscribe", "lane", "p*", "public.good(n)")
    publish(broker, "pa", 1, 2)
    cut(broker)
    run_lanes(broker)
    assert value(broker, STATE) == "suspended"
    make_filter(broker)
    publish(broker, "pa", 3, 4, 5, 6, 7)
    publish(broker, "pb", 8)
    cut(broker)
    publish(broker, "pa", 9)
    cut(broker)
    run_lanes(broker)
    call(admin, "resume", "lane")
    for _ in range(3):
        ask_about(broker, 2)
        step(broker)
        assert value(broker, STATE) == "suspended"
    for _ in range(6):
        ask_about(broker, 2)
        step(broker)
    assert value(broker, STATE) != "suspended"
    assert take_only(session, "lane") == [1, 3, 4, 5, 6, 7, 8, 9], "2 is in the exception queue"


def test_what_somebody_has_locked_when_it_has_caught_up_goes_on(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Role
) -> None:
    """Nobody has to resume it a second time, and it says that it goes on by itself."""
    owner, boss = role("owner"), role("boss", "pgps_admin")
    make_filter(broker, "if n = 2 then raise undefined_table; end if")
    rows(broker, f"grant select on pgps_event.pa, pgps_event.pb to {owner}")
    session, admin = connect(owner, dsn=own_database), connect(boss, dsn=own_database)
    call(session, "subscribe", "lane", "p*", "public.good(n)")
    publish(broker, "pa", 1, 2)
    cut(broker)
    run_lanes(broker)
    make_filter(broker)
    call(admin, "resume", "lane")
    assert "goes on by itself" in value(broker, "select last_error from pgps.subscriptions where name = 'lane'")
    opened = connect(boss, dsn=own_database, autocommit=False)
    call(opened, "alter_subscription", "lane", priority=3)
    run_lanes(broker)
    rows(broker, "select pgps.reclaim()")
    assert value(broker, STATE) == "suspended"
    opened.commit()
    rows(broker, "select pgps.reclaim()")
    assert value(broker, STATE) != "suspended"
    publish(broker, "pa", 3)
    cut(broker)
    run_lanes(broker)
    assert take_only(session, "lane") == [1, 3], "2 is in the exception queue"


def test_a_lane_that_is_quick_for_a_whole_batch_asks_about_whole_batches_again(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "lane", "pa", "public.good(n)")
    publish(broker, "pa", 1)
    cut(broker)
    ask_about(broker, 2)
    rows(broker, "update pgps_internal.lane set slow_until = '-infinity'")
    step(broker)
    assert rows(broker, "select is_slow from pgps_internal.lane") == [(False,)]
    assert rows(broker, "select * from pgps_internal.lane_part") == []
