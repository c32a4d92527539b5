"""What a lane shares out to very many competing consumers: in portions, and no filter is blamed for the time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fix_broker import call, column, make_type, meanwhile, publish, rows, value
from tests.fix_db import Connect
from tests.sql.match.lane_steps import cut, make_filter, run_lanes, take_only

_PORTION = "select pgps._share_left(0)"


@pytest.fixture
def admin(connect: Connect, own_database: str) -> psycopg.Connection:
    """A broker whose dispatcher shares out to one subscription of a role, and its lane to the others."""
    session = connect(dsn=own_database)
    make_type(session, "tick")
    make_filter(session)
    call(session, "configure", "dispatch_shares", "1")
    return session


@pytest.fixture
def alice(connect: Connect, own_database: str, role: Callable[..., str]) -> psycopg.Connection:
    return connect(role("alice"), dsn=own_database)


def compete(session: psycopg.Connection, count: int) -> None:
    for place in range(count):
        call(session, "subscribe", f"w{place}", "tick", handler="any")


def publish_many(admin: psycopg.Connection, count: int) -> None:
    rows(admin, f"insert into pgps_event.tick (n) select generate_series(1, {count})")
    cut(admin)


def match_lanes(admin: psycopg.Connection) -> None:
    """Have all lanes matched, and nothing shared out afterwards."""
    while value(admin, "select (pgps._run_lanes((pgps._lanes(0, null)).lanes, null, null, null)).next") is not None:
        pass


def shared(admin: psycopg.Connection) -> int:
    return int(value(admin, "select count(*) from pgps_internal.share"))


@pytest.mark.parametrize("has_other", [False, True], ids=["alone", "before another filter"])
def test_no_filter_is_blamed_for_what_takes_longer_than_the_time_of_its_lane(
    admin: psycopg.Connection,
    alice: psycopg.Connection,
    connect: Connect,
    own_database: str,
    has_other: bool,
) -> None:
    compete(alice, 25)
    if has_other:
        call(alice, "subscribe", "x", "tick", "public.good(n)")
    publish_many(admin, 5000)
    hurried = connect(dsn=make_conninfo(own_database, options="-c statement_timeout=400ms"))
    for _ in range(12):
        with suppress(psycopg.errors.QueryCanceled):
            run_lanes(hurried)
    run_lanes(admin)
    assert column(admin, "select distinct state from pgps_internal.subscription") == ["active"]
    assert value(admin, "select coalesce(sum(failures), 0) from pgps_internal.class") == 0
    assert shared(admin) == 25 * 5000
    assert take_only(alice, "w24", 6000) == list(range(1, 5001))
    assert not has_other or take_only(alice, "x", 6000) == list(range(1, 5001))


def test_it_is_done_in_portions_and_each_event_comes_once(admin: psycopg.Connection, alice: psycopg.Connection) -> None:
    compete(alice, 2)
    publish_many(admin, 9000)
    match_lanes(admin)
    assert shared(admin) == 9000, "what the dispatcher has shared out"
    rows(admin, _PORTION)
    assert 9000 < shared(admin) < 18000
    found = take_only(alice, "w1", 4000)
    rows(admin, "select pgps.reclaim()")
    while rows(admin, "select * from pgps_internal.unshared"):
        rows(admin, _PORTION)
    assert found + take_only(alice, "w1", 6000) == list(range(1, 9001))


def test_no_role_waits_for_what_another_one_has_brought_in(
    admin: psycopg.Connection, alice: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    bob = connect(role("bob"), dsn=own_database)
    compete(alice, 21)
    for name in ("b0", "b1"):
        call(bob, "subscribe", name, "tick", handler="any")
    publish_many(admin, 6000)
    match_lanes(admin)
    rows(admin, "select setseed(0.5)")
    for _ in range(12):
        rows(admin, _PORTION)
    assert take_only(bob, "b1", 7000) == list(range(1, 6001))
    assert shared(admin) < 21 * 6000
    run_lanes(admin)
    assert shared(admin) == 21 * 6000 + 6000


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("change", ["filter", "owner"])
def test_what_waits_to_be_shared_out_goes_with_a_subscription_that_is_changed(
    admin: psycopg.Connection,
    alice: psycopg.Connection,
    connect: Connect,
    own_database: str,
    role: Callable[..., str],
    change: str,
    end: str,
) -> None:
    compete(alice, 2)
    publish_many(admin, 6000)
    match_lanes(admin)
    rows(admin, _PORTION)
    found = take_only(alice, "w1", 100)
    changing = connect(dsn=own_database, autocommit=False)
    options = {"filter": "n % 2 = 0"} if change == "filter" else {"owner": role("heir")}
    call(changing, "alter_subscription", "w1", **options)
    # What is locked is passed over.
    rows(admin, _PORTION)
    (changing.commit if end == "commit" else changing.rollback)()
    run_lanes(admin)
    rows(admin, "select pgps.dispatch()")
    run_lanes(admin)
    later = take_only(admin, "w1", 7000)
    is_even = change == "filter" and end == "commit"
    assert sorted(later) == [n for n in range(1, 6001) if n not in found and not (is_even and n % 2)]
    assert rows(admin, "select * from pgps_internal.unshared") == []


def test_a_class_that_catches_up_in_a_lane_does_so_in_parts(
    admin: psycopg.Connection, alice: psycopg.Connection
) -> None:
    call(admin, "configure", "max_batch_events", "10")
    call(admin, "configure", "filter_failures", "1")
    make_filter(admin, "raise 'broken'")
    call(alice, "subscribe", "s", "tick", "public.good(n)", handler="any")
    publish(admin, "tick", 0)
    cut(admin)
    run_lanes(admin)
    assert column(admin, "select state from pgps_internal.subscription") == ["suspended"]
    for place in range(6):
        publish(admin, "tick", *range(10 * place + 1, 10 * place + 11))
        cut(admin)
        run_lanes(admin)
    make_filter(admin)
    call(admin, "resume", "s")
    pending = "select suspended_batch from pgps_internal.class where is_pending"
    rows(admin, "update pgps_internal.lane set is_slow = true, slow_until = 'infinity'")
    seen = []
    while before := column(admin, pending):
        seen += before
        rows(admin, "select pgps.run_slow_lane(lane_id) from pgps_internal.lane")
    assert len(seen) == 6
    assert seen == sorted(set(seen))
    assert column(admin, "select state from pgps_internal.subscription") == ["active"]
    run_lanes(admin)
    assert take_only(alice, "s") == list(range(1, 61))


@pytest.mark.parametrize("change", ["filter", "owner"])
def test_what_is_dispatched_while_a_change_waits_for_the_lane_is_not_lost(
    admin: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str], change: str
) -> None:
    call(admin, "subscribe", "s", "tick", handler="any")
    call(admin, "subscribe", "other", "tick", "public.good(n)")
    publish(admin, "tick", 1)
    rows(admin, "select pgps.dispatch()")
    holding, changing = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(holding, "select from pgps_internal.lane for update")
    options = {"filter": "n > 0"} if change == "filter" else {"owner": role("heir")}
    with meanwhile(admin, changing, lambda: call(changing, "alter_subscription", "s", **options)):
        publish(admin, "tick", 2)
        cut(admin)
        holding.rollback()
    publish(admin, "tick", 3)
    rows(admin, "select pgps.dispatch()")
    assert take_only(admin, "s") == [1, 2, 3]
    assert rows(admin, "select * from pgps_internal.unshared") == []
