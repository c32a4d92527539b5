"""A lane that is behind: what joins, and what goes on after it, comes in order and whole."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, meanwhile, publish, rows, value
from tests.fix_db import Connect, wait_until
from tests.sql.match.lane_steps import cut, make_filter, run_lanes, take_only

Role = Callable[..., str]


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "pa")
    make_filter(connection)
    return connection


def test_nothing_is_lost_when_a_type_joins_a_lane_that_is_behind(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "pattern", "p*", "public.good(n)")
    publish(broker, "pa", 1)
    cut(broker)
    run_lanes(broker)
    assert take_only(broker, "pattern") == [1]
    make_type(broker, "pc")
    publish(broker, "pa", 2)
    cut(broker)
    publish(broker, "pc", 3)
    cut(broker)
    rows(broker, "update pgps_internal.lane set is_slow = true, slow_until = 'infinity'")
    got = []
    for _ in range(6):
        rows(broker, "select pgps.run_slow_lane(lane_id) from pgps_internal.lane")
        got += take_only(broker, "pattern")
    assert got == [2, 3]


def test_nothing_is_lost_when_a_pattern_that_is_to_join_a_type_has_no_filter_any_more(
    broker: psycopg.Connection,
) -> None:
    call(broker, "subscribe", "pattern", "p*", "public.good(n)")
    make_type(broker, "pc")
    publish(broker, "pa", 1)
    publish(broker, "pc", 2)
    cut(broker)
    publish(broker, "pa", 3)
    cut(broker)
    call(broker, "alter_subscription", "pattern", filter="")
    got = take_only(broker, "pattern")
    for _ in range(2):
        run_lanes(broker)
        cut(broker)
        got += take_only(broker, "pattern")
    assert got == [1, 2, 3]


def test_nothing_is_lost_when_a_pattern_that_is_to_join_a_type_gets_an_owner_who_is_ahead(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Role
) -> None:
    owner, heir = role("owner"), role("heir")
    rows(broker, f"grant select on pgps_event.pa to {owner}, {heir}")
    for session, name in ((connect(owner, dsn=own_database), "pattern"), (connect(heir, dsn=own_database), "other")):
        call(session, "subscribe", name, "p*", "public.good(n)")
    make_type(broker, "pc")
    rows(broker, f"grant select on pgps_event.pc to {owner}, {heir}")
    publish(broker, "pc", 2)
    cut(broker)
    publish(broker, "pa", 1)
    cut(broker)
    rows(broker, "update pgps_internal.lane set is_slow = true, slow_until = 'infinity'")
    for _ in range(4):
        rows(broker, f"select pgps.run_slow_lane(lane_id) from pgps_internal.lane where owner = '{heir}'::regrole")
    call(broker, "alter_subscription", "pattern", owner=heir)
    got = take_only(broker, "pattern")
    run_lanes(broker)
    got += take_only(broker, "pattern")
    assert got == [2, 1]


def test_a_type_made_in_a_transaction_that_is_open_for_long_suspends_nobody(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    call(broker, "subscribe", "pattern", "p*", "public.good(n)")
    maker = connect(dsn=own_database, autocommit=False)
    make_type(maker, "pc")
    publish(broker, "pa", 1)
    cut(broker)
    run_lanes(broker)
    publish(maker, "pc", 2)
    maker.commit()
    rows(broker, "update pgps_internal.lane set is_slow = true, slow_until = 'infinity'")
    rows(broker, "select pgps.run_slow_lane(lane_id) from pgps_internal.lane")
    assert value(broker, "select state from pgps.subscriptions") != "suspended"
    cut(broker)
    run_lanes(broker)
    assert take_only(broker, "pattern") == [1, 2]


def test_seek_now_skips_what_was_published_of_a_type_that_is_still_to_be_joined(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "pattern", "p*", "public.good(n)")
    make_type(broker, "pc")
    publish(broker, "pc", 1)
    call(broker, "seek", "pattern", "now")
    publish(broker, "pc", 2)
    cut(broker)
    run_lanes(broker)
    assert take_only(broker, "pattern") == [2]


def test_nothing_is_lost_of_a_type_that_is_being_made_when_a_pattern_has_no_filter_any_more(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    call(broker, "subscribe", "pattern", "p*", "public.good(n)")
    maker = connect(dsn=own_database, autocommit=False)
    make_type(maker, "pc")
    publish(maker, "pc", 1)
    call(broker, "alter_subscription", "pattern", filter="")
    maker.commit()
    cut(broker)
    publish(broker, "pa", 2)
    cut(broker)
    got = take_only(broker, "pattern")
    for _ in range(2):
        run_lanes(broker)
        cut(broker)
        got += take_only(broker, "pattern")
    assert got == [1, 2]


def test_nothing_is_lost_of_other_types_when_one_is_being_made_while_a_pattern_gets_a_filter(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    call(broker, "subscribe", "pattern", "p*")
    maker = connect(dsn=own_database, autocommit=False)
    make_type(maker, "pc")
    publish(maker, "pc", 3)
    call(broker, "alter_subscription", "pattern", filter="public.good(n) and n <> 4")
    publish(broker, "pa", 1)
    cut(broker)
    publish(maker, "pc", 4)
    maker.commit()
    cut(broker)
    got = take_only(broker, "pattern")
    for _ in range(2):
        run_lanes(broker)
        got += take_only(broker, "pattern")
    assert got == [1, 3]


def test_nobody_reads_past_a_lane_when_a_type_was_made_and_dispatched_while_a_filter_was_set(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    """The type was joined without the filter, at once; the others are asked about in a lane from the commit on."""
    call(broker, "subscribe", "pattern", "p*")
    publish(broker, "pa", 1)
    cut(broker)
    assert take_only(broker, "pattern") == [1]
    opened = connect(dsn=own_database, autocommit=False)
    call(opened, "alter_subscription", "pattern", filter="public.good(n)")
    make_type(broker, "pc")
    publish(broker, "pa", 2)
    cut(broker)
    publish(broker, "pc", 3)
    cut(broker)
    opened.commit()
    got = take_only(broker, "pattern")
    for _ in range(3):
        cut(broker)
        run_lanes(broker)
        got += take_only(broker, "pattern")
    assert got == [2, 3]


@pytest.mark.parametrize("is_made_first", [False, True])
def test_nobody_reads_past_types_that_catch_up_when_another_was_made_while_the_subscription_was_moved(
    broker: psycopg.Connection, connect: Connect, own_database: str, is_made_first: bool
) -> None:
    call(broker, "subscribe", "pattern", "p*")
    publish(broker, "pa", 1)
    cut(broker)
    assert take_only(broker, "pattern") == [1]
    moving, making = (connect(dsn=own_database, autocommit=False) for _ in range(2))
    if is_made_first:
        make_type(making, "pc")
    call(moving, "seek", "pattern", "earliest")
    if not is_made_first:
        make_type(making, "pc")
    making.commit()
    publish(broker, "pa", 2)
    publish(broker, "pc", 3)
    cut(broker)
    moving.commit()
    got = take_only(broker, "pattern")
    for _ in range(3):
        cut(broker)
        got += take_only(broker, "pattern")
    assert got == [1, 2, 3]


def test_a_limit_passes_nothing_that_is_still_to_be_joined(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    call(broker, "subscribe", "other", "p*")  # whose class has the events of pa meanwhile
    subscribing, making = (connect(dsn=own_database, autocommit=False) for _ in range(2))
    call(subscribing, "subscribe", "pattern", "p*")
    call(subscribing, "alter_subscription", "pattern", max_backlog=1, on_backlog="drop")
    make_type(making, "pc")
    making.commit()
    for name, n in (("pc", 1), ("pa", 2), ("pa", 3)):
        publish(broker, name, n)
        cut(broker)
    subscribing.commit()
    for _ in range(3):
        rows(broker, "select pgps.reclaim()")
        cut(broker)
    assert take_only(broker, "pattern") == [3]
    gaps = "select event_type, error from pgps.exceptions where state = 'gap' order by 1"
    assert [(name, error.split()[0]) for name, error in rows(broker, gaps)] == [("pa", "1"), ("pc", "1")]


def test_a_type_that_is_joined_while_a_filter_is_changed_is_shared_out_once(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    """Who changes the filter waits for the lane, which lets it join the type, before keeping others out."""
    call(broker, "subscribe", "pattern", "p*", "public.good(n)", handler="any")
    publish(broker, "pa", 0)
    cut(broker)
    making, lane, altering = (connect(dsn=own_database, autocommit=False) for _ in range(3))
    make_type(making, "pc")
    call(broker, "alter_subscription", "pattern", filter="")
    making.commit()
    rows(lane, "select pgps._run_lanes(array(select lane_id from pgps_internal.lane), 1, false, null)")
    make_filter(broker, "perform pg_advisory_xact_lock(5)")
    rows(broker, "select pg_advisory_lock(5)")
    with meanwhile(broker, altering, lambda: call(altering, "alter_subscription", "pattern", filter="public.good(n)")):
        lane.commit()
        waits = "select count(*) from pg_locks where not granted and locktype = 'advisory'"
        wait_until(lambda: value(broker, waits))
        publish(broker, "pc", 1)
        cut(broker)
        cut(broker)
        got = take_only(broker, "pattern")
        rows(broker, "select pg_advisory_unlock(5)")
    altering.commit()
    for _ in range(3):
        cut(broker)
        run_lanes(broker)
        got += take_only(broker, "pattern")
    assert sorted(got) == [0, 1]


def test_a_type_is_joined_once_when_its_lane_and_the_dispatcher_are_at_it(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    call(broker, "subscribe", "pattern", "p*", "public.good(n)")
    making, dispatcher, lanes = connect(dsn=own_database, autocommit=False), *(connect(dsn=own_database) for _ in "ab")
    make_type(making, "pc")
    call(broker, "alter_subscription", "pattern", filter="")
    making.commit()
    publish(broker, "pc", 1)
    rows(dispatcher, "begin")
    cut(dispatcher)
    with meanwhile(broker, lanes, lambda: run_lanes(lanes)):
        rows(dispatcher, "commit")
    publish(broker, "pc", 2)
    cut(broker)
    run_lanes(broker)
    assert take_only(broker, "pattern") == [1, 2]


@pytest.mark.parametrize("handler", ["all", "any"])
@pytest.mark.parametrize("condition", ["n > 0", "public.good(n)"])
def test_a_type_that_is_made_while_a_subscription_is_moved_is_joined_once(
    broker: psycopg.Connection, connect: Connect, own_database: str, handler: str, condition: str
) -> None:
    """Who moves it joins what its lane has not let it join, and then the lane comes to the type that was made."""
    rows(broker, "select pgps.drop_event_type('pa')")
    call(broker, "subscribe", "pattern", "p*", condition, handler=handler)
    make_type(broker, "pb")
    holding, moving = (connect(dsn=own_database, autocommit=False) for _ in range(2))
    rows(holding, "select from pgps_internal.joining for update")
    with meanwhile(broker, moving, lambda: call(moving, "seek", "pattern", "now")):
        make_type(broker, "pc")
        publish(broker, "pb", 1)
        publish(broker, "pc", 2)
        cut(broker)
        holding.commit()
    moving.commit()
    got = []
    for n in range(1, 4):
        publish(broker, "pb", 10 * n)
        publish(broker, "pc", 10 * n + 1)
        cut(broker)
        run_lanes(broker)
        got += sorted(take_only(broker, "pattern"))
    cut(broker)
    got += take_only(broker, "pattern")
    # What was published while it was being moved comes or not.
    assert [n for n in got if n > 2] == [10, 11, 20, 21, 30, 31]
    assert rows(broker, "select type_id from pgps_internal.member group by type_id having count(*) > 1") == []
