"""How much may wait for a subscription, for how long, and what happens beyond."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, numbers, publish, refused, rows, sink, sunk, take, value
from tests.fix_clock import Clock
from tests.fix_db import Connect, wait_until

_GAPS = "select event_type, event_id, error from pgps.exceptions where state = 'gap' order by 1, 2"
_LIMITS = "select dead_after::text, max_backlog, on_backlog from pgps.subscriptions"
_NONE = [(None, None, None)]


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    return connection


def alter(connection: psycopg.Connection, **changes: Any) -> None:
    call(connection, "alter_subscription", "s", **changes)


def reclaim(connection: psycopg.Connection) -> None:
    rows(connection, "select pgps.dispatch(), pgps.reclaim()")


def test_a_limit_is_set_changed_and_taken_away(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick")
    alter(broker, max_backlog=10)
    assert rows(broker, _LIMITS) == [(None, 10, "suspend")]
    alter(broker, on_backlog="drop", dead_after="1 hour")
    alter(broker, max_backlog=20, priority=3)
    assert rows(broker, _LIMITS) == [("01:00:00", 20, "drop_oldest")]
    alter(broker, on_backlog="keep")
    assert rows(broker, _LIMITS) == [("01:00:00", None, None)]
    alter(broker, dead_after="0")
    assert rows(broker, _LIMITS) == _NONE
    assert value(broker, "select count(*) from pgps_internal.backlog_limit") == 0, "nothing is left to be looked at"
    for limit in (0, -1):
        with refused("22023", f"max_backlog {limit}", "on_backlog"):
            alter(broker, max_backlog=limit)
    with refused("22023", 'on_backlog "forget"', "suspend, drop", "keep"):
        alter(broker, on_backlog="forget")
    with refused("22023", "dead_after -01:00:00"):
        alter(broker, dead_after="-1 hour")
    with refused("22023", "dead_after 10000 years"):
        alter(broker, dead_after="10000 years")
    with refused("22023", "max_backlog 5"):
        alter(broker, max_backlog=5, on_backlog="keep")


def test_whoever_owns_it_and_administrators_set_limits_others_do_not(
    broker: psycopg.Connection, connect: Connect, role: Any, own_database: str
) -> None:
    owner, admin, other = role("owner"), role("admin", "pgps_admin"), role("other")
    call(connect(owner, dsn=own_database), "subscribe", "s", "tick")
    alter(connect(owner, dsn=own_database), max_backlog=5)
    alter(connect(admin, dsn=own_database), dead_after="1 day")
    with refused("42501"):
        alter(connect(other, dsn=own_database), max_backlog=6)
    assert rows(broker, _LIMITS) == [("1 day", 5, "suspend")]


def test_beyond_its_limit_it_is_suspended_keeps_all_and_goes_on_when_resumed(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick")
    alter(broker, max_backlog=10)
    publish(broker, "tick", *range(10))
    reclaim(broker)
    assert value(broker, "select state from pgps.subscriptions") == "active", "as many as may wait"
    publish(broker, "tick", 10)
    reclaim(broker)
    state, error = rows(broker, "select state, last_error from pgps.subscriptions")[0]
    assert (state, error) == ("suspended", "backlog: 11 events wait, more than its max_backlog 10")
    hint = value(broker, "select hint from pgps.trouble_counts() where subscription = 's'")
    assert "start its consumer" in hint
    assert "pgps.resume('s')" in hint
    with refused("55000", "11 events wait"):
        numbers(broker, "s")
    publish(broker, "tick", 11)
    call(broker, "resume", "s")
    reclaim(broker)
    assert value(broker, "select state from pgps.subscriptions") == "active", "its consumer has to catch up first"
    assert take(broker, "s") == list(range(12)), "nothing was lost"
    reclaim(broker)
    publish(broker, "tick", *range(11))
    reclaim(broker)
    assert value(broker, "select state from pgps.subscriptions") == "suspended"
    assert rows(broker, _GAPS) == []


def test_the_oldest_beyond_the_limit_are_dropped_and_noted(broker: psycopg.Connection) -> None:
    call(broker, "alter_queue", "tick_out", auditable=True)
    call(broker, "subscribe", "s", "tick", "n % 2 = 0")
    alter(broker, max_backlog=3, on_backlog="drop")
    for first in range(0, 40, 4):
        publish(broker, "tick", *range(first, first + 4))
        rows(broker, "select pgps.dispatch()")
    assert numbers(broker, "s", 4) == [0, 2, 4, 6], "received, which holds nothing up"
    reclaim(broker)
    said = "17 events, from 1 to 33 in delivery order, were passed over: more than max_backlog 3 waited"
    assert rows(broker, _GAPS) == [("tick", 1, said)]
    assert value(broker, "select depth from pgps.subscriptions") == 3
    assert call(broker, "ack", "s") == 0, "what was in hand has been passed over, and is in the gap"
    publish(broker, "tick", 40, 41, 42)
    reclaim(broker)
    assert "19 events, from 1 to 37 " in rows(broker, _GAPS)[0][2], "nobody took anything: the gap goes on"
    states: dict[str, int] = dict(rows(broker, "select state, count(*) from pgps_queue.tick_out group by 1"))
    assert states == {"gap": 19, "waiting": 3}
    assert "passed over" in rows(broker, "select outcome from pgps.explain('s', 1)")[-1][0]
    assert take(broker, "s") == [38, 40, 42]
    assert value(broker, "select delivered from pgps.subscriptions") == 3
    publish(broker, "tick", *range(100, 110))
    reclaim(broker)
    assert [row[1] for row in rows(broker, _GAPS)] == [1, 44], "something came in between: another gap"
    call(broker, "unsubscribe", "s")
    states = dict(rows(broker, "select state, count(*) from pgps_queue.tick_out group by 1"))
    assert states == {"delivered": 3}


def test_a_gap_is_acknowledged_and_one_that_was_sought_back_is_none(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick")
    alter(broker, max_backlog=2, on_backlog="drop")
    publish(broker, "tick", *range(5))
    reclaim(broker)
    first = value(broker, "select event_id from pgps.exceptions")
    assert call(broker, "retry_exception", "tick") == 0, "it is no failure"
    assert call(broker, "discard_exception", "tick", event_id=first + 1) == 0
    assert call(broker, "discard_exception", "tick", event_id=first, subscription="s") == 1
    publish(broker, "tick", 5)
    reclaim(broker)
    assert len(rows(broker, _GAPS)) == 1
    alter(broker, on_backlog="keep")
    call(broker, "seek", "s", "earliest")
    assert rows(broker, _GAPS) == []
    assert take(broker, "s") == list(range(6))


def test_gaps_of_a_prefix_are_noted_by_event_type_and_failures_stay(broker: psycopg.Connection) -> None:
    make_type(broker, "tock")
    call(broker, "subscribe", "s", "t*")
    alter(broker, max_backlog=4, on_backlog="drop")
    with broker.transaction():
        for n in range(5):
            publish(broker, "tick", n)
            publish(broker, "tock", 10 + n)
    rows(broker, "select pgps.dispatch()")
    assert numbers(broker, "s", 2) == [0, 10]
    rows(broker, "select pgps.nack('s', 1, retry_in => '0')")
    reclaim(broker)
    gaps = [(kind, error.split(" in ")[0]) for kind, _, error in rows(broker, _GAPS)]
    assert gaps == [("tick", "2 events, from 3 to 5"), ("tock", "3 events, from 2 to 6")]
    assert sorted(take(broker, "s")) == [0, 3, 4, 13, 14], "and the one that was put back"


@pytest.mark.parametrize(("consumer", "first"), [(None, 8), ("c1", 8), (None, 3), ("c1", 3)])
def test_what_was_received_behind_the_gap_stays_received(
    broker: psycopg.Connection, consumer: str | None, first: int
) -> None:
    call(broker, "subscribe", "s", "tick")
    alter(broker, max_backlog=4, on_backlog="drop")
    publish(broker, "tick", *range(10))
    rows(broker, "select pgps.dispatch()")
    received = "select (payload ->> 'n')::int from pgps.receive('s', %s, consumer => %s)"
    assert column(broker, received, [first, consumer]) == list(range(first))
    reclaim(broker)
    assert "6 events" in rows(broker, _GAPS)[0][2]
    assert call(broker, "ack", "s", consumer=consumer) == max(first - 6, 0), "the others are in the gap"
    assert take(broker, "s") == list(range(max(first, 6), 10))


@pytest.mark.parametrize("in_hand", [0, 3])
def test_competing_consumers_keep_what_they_have_in_hand(broker: psycopg.Connection, in_hand: int) -> None:
    call(broker, "subscribe", "s", "tick", handler="any")
    alter(broker, max_backlog=4, on_backlog="drop")
    publish(broker, "tick", *range(10))
    rows(broker, "select pgps.dispatch()")
    if in_hand:
        assert numbers(broker, "s", in_hand) == [0, 1, 2]
    reclaim(broker)
    assert rows(broker, "select depth from pgps.subscriptions") == [(4,)]
    assert "6 events" in rows(broker, _GAPS)[0][2]
    if in_hand:
        assert call(broker, "ack", "s") == 3
    assert take(broker, "s") == ([9] if in_hand else [6, 7, 8, 9])


def test_callbacks_get_what_is_left(broker: psycopg.Connection) -> None:
    table = sink(broker, "tick")
    call(broker, "subscribe", "s", "tick", execute=table)
    alter(broker, max_backlog=4, on_backlog="drop")
    publish(broker, "tick", *range(10))
    reclaim(broker)
    broker.execute("call pgps.run_subscribers()")
    assert sunk(broker, table) == [6, 7, 8, 9]


def test_what_a_consumer_has_open_is_left_for_the_next_time(broker: psycopg.Connection, connect: Connect) -> None:
    call(broker, "subscribe", "s", "tick")
    alter(broker, max_backlog=4, on_backlog="drop")
    publish(broker, "tick", *range(10))
    rows(broker, "select pgps.dispatch()")
    consumer = connect(dsn=broker.info.dsn, autocommit=False)
    assert numbers(consumer, "s", 8) == list(range(8))
    reclaim(broker)
    assert rows(broker, _GAPS) == []
    assert call(consumer, "ack", "s") == 8
    consumer.commit()
    reclaim(broker)
    assert rows(broker, _GAPS) == []
    assert take(broker, "s") == [8, 9]


def test_what_was_dropped_no_longer_holds_space(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick")
    for _ in range(2):
        rows(broker, "insert into pgps_event.tick (n) select generate_series(1, 70000)")
        rows(broker, "select pgps.dispatch()")
    rows(broker, "select pgps.reclaim(100)")
    held = value(broker, "select count(*) from pgps_queue.tick_log")
    assert held == 140_000
    alter(broker, max_backlog=10, on_backlog="drop")

    def is_free() -> bool:
        # A segment that autovacuum has at this moment is left for the next time.
        rows(broker, "select pgps.reclaim(100)")
        return bool(value(broker, "select count(*) from pgps_queue.tick_log") < held - 65_000)

    wait_until(is_free, what="but for the batch that it is in, whole segments are free")
    assert take(broker, "s") == list(range(69_991, 70_001))


@pytest.mark.parametrize("handler", ["all", "any", "callback"])
def test_who_takes_nothing_though_events_wait_is_dead(broker: psycopg.Connection, handler: str, clock: Clock) -> None:
    if handler == "callback":
        call(broker, "subscribe", "s", "tick", execute=sink(broker, "tick"))
    else:
        call(broker, "subscribe", "s", "tick", handler=handler)
    alter(broker, dead_after="1 hour")
    is_dead = "select is_dead from pgps.subscriptions"
    clock.advance("2 hours")
    assert not value(broker, is_dead), "nothing waits"
    publish(broker, "tick", *range(4))
    rows(broker, "select pgps.dispatch()")
    assert not value(broker, is_dead), "not for long"
    clock.advance("2 hours")
    assert value(broker, is_dead)
    assert value(broker, "select state from pgps.subscriptions") == "dead"
    assert rows(broker, "select subscription, state, depth from pgps.trouble_counts()") == [("s", "dead", 4)]
    call(broker, "pause", "s")
    assert value(broker, "select state from pgps.subscriptions") == "paused", "somebody said so"
    call(broker, "resume", "s")
    alter(broker, dead_after="3 hours")
    assert not value(broker, is_dead)
    alter(broker, dead_after="1 hour")
    if handler == "callback":
        rows(broker, "call pgps.run_subscribers()")
    else:
        numbers(broker, "s", 2)
    assert not value(broker, is_dead), "it took some"
    clock.advance("2 hours")
    assert value(broker, is_dead) is (handler != "callback"), "and no more since"
    alter(broker, dead_after="0")
    assert not value(broker, is_dead)


def test_what_was_passed_over_is_among_the_troubles(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick")
    alter(broker, max_backlog=2, on_backlog="drop")
    publish(broker, "tick", *range(5))
    reclaim(broker)
    kind, first, hint = rows(broker, "select kind, event_id, hint from pgps.troubles('-infinity')")[0]
    assert kind == "gap"
    assert value(broker, "select passed_over from pgps.trouble_counts()") == 3
    seek, note = hint.split("select ")[1].split(";")[0], hint.split("take note of it: ")[1]
    rows(broker, f"select {seek}")
    assert take(broker, "s") == list(range(5)), "what the hint says brings them back"
    assert f"{first}," in note
    rows(broker, note)


def test_without_limits_nothing_is_looked_at(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick")
    alter(broker, dead_after="1 hour")
    rows(broker, "drop function pgps_internal.apply_backlog_limits()")
    publish(broker, "tick", 1)
    reclaim(broker)
    assert column(broker, "select state from pgps.subscriptions") == ["active"]


def test_who_gives_up_what_waits_goes_on(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "tick")
    alter(broker, max_backlog=3)
    publish(broker, "tick", *range(5))
    reclaim(broker)
    assert value(broker, "select state from pgps.subscriptions") == "suspended"
    call(broker, "seek", "s", "now")
    assert rows(broker, "select state, last_error from pgps.subscriptions") == [("active", None)]
    publish(broker, "tick", 7)
    assert take(broker, "s") == [7]
