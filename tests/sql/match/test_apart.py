"""What is made of a form of filter that is asked in a lane from now on: a composite event, or another subscription."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect, wait_until
from tests.sql.match.slow_filters import count_sleeps, dispatch, place, slow, taken


@pytest.fixture
def admin(connect: Connect, own_database: str) -> psycopg.Connection:
    session = connect(dsn=own_database)
    make_type(session, "tick")
    make_type(session, "tock")
    call(session, "configure", "dispatch_filter_timeout", "50 milliseconds")
    count_sleeps(session)
    return session


def detected(session: psycopg.Connection, name: str) -> list[list[int]]:
    rows(session, "call pgps.run_lanes()")
    rows(session, "select pgps.detect()")
    rows(session, "select pgps.dispatch_batch()")
    query = f"select constituents from pgps_queue.{name}_log order by event_id"
    return [[part["payload"]["n"] for part in parts] for parts in column(session, query)]


def unasked(session: psycopg.Connection) -> int:
    return int(value(session, "select count(*) from pgps_internal.unasked"))


def test_a_composite_event_and_who_has_the_same_filter_lose_nothing(admin: psycopg.Connection) -> None:
    call(admin, "create_composite_event", "rise", "tick (n > 5)")
    call(admin, "subscribe", "plain", "tick", filter="n > 5")
    slow(admin, "plain")
    dispatch(admin, 6)
    assert place(admin, "plain") == "lane"
    assert column(admin, "select distinct state from pgps_internal.subscription") == ["active"]
    assert detected(admin, "rise") == [[6]]
    dispatch(admin, 7)
    assert detected(admin, "rise") == [[6], [7]]
    assert taken(admin, "plain") == [6, 7]
    assert value(admin, "select state from pgps.composite_events") == "active"


def test_a_composite_event_waits_for_a_filter_that_somebody_has_locked(
    admin: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    call(admin, "create_composite_event", "rise", "tick (n > 5) x ; tock y")
    call(admin, "subscribe", "all", "tick")
    slow(admin, value(admin, "select name from pgps_internal.subscription where filter is not null"))
    holding = connect(None, False, dsn=own_database)
    call(holding, "drop_event_type", "rise", cascade=True)
    dispatch(admin, 6)
    assert unasked(admin) == 1, "the dispatcher asks it no more"
    dispatch(admin, 7)
    publish(admin, "tock", 70)
    rows(admin, "select pgps.dispatch_batch()")
    call(admin, "reclaim")
    assert unasked(admin) == 1
    assert taken(admin, "all") == [6, 7]
    holding.rollback()
    assert detected(admin, "rise") == [], "it is not known yet what comes before"
    call(admin, "reclaim")
    assert unasked(admin) == 0
    assert detected(admin, "rise") == [[7, 70]]


def test_nothing_new_is_made_of_a_filter_that_nobody_asks(
    admin: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    call(admin, "subscribe", "plain", "tick", filter="n > 5")
    slow(admin, "plain")
    holding = connect(None, False, dsn=own_database)
    call(holding, "unsubscribe", "plain")
    dispatch(admin, 6)
    holding.rollback()
    assert unasked(admin) == 1
    call(admin, "create_composite_event", "rise", "tick (n > 5)")
    call(admin, "subscribe", "new", "tick", filter="n > 5")
    assert place(admin, "new") == "lane"
    dispatch(admin, 7)
    assert detected(admin, "rise") == [[7]]
    call(admin, "reclaim")
    dispatch(admin, 8)
    assert detected(admin, "rise") == [[7], [8]]
    assert [taken(admin, name) for name in ("plain", "new")] == [[6, 7, 8], [7, 8]]


def test_reclaim_locks_the_dispatcher_out_only_where_there_is_something_to_move(
    admin: psycopg.Connection, connect: Connect, own_database: str, clock: Clock
) -> None:
    reclaiming, holding = (connect(None, False, dsn=own_database) for _ in range(2))
    # By process: other databases of the server have a table of the same number.
    has_locked = (
        "select exists (select from pg_locks where relation = 'pgps_internal.batch'::regclass"
        " and mode = 'ShareRowExclusiveLock' and pid = %s)"
    )

    def reclaim_has_locked() -> bool:
        call(reclaiming, "reclaim")
        locked = bool(value(admin, has_locked, [reclaiming.info.backend_pid]))
        reclaiming.commit()
        return locked

    call(admin, "subscribe", "plain", "tick", filter="n > 5")
    slow(admin, "plain")
    dispatch(admin, 6)
    assert place(admin, "plain") == "lane"
    assert not reclaim_has_locked()
    call(admin, "subscribe", "other", "tock", filter="n > 6")
    clock.advance("2 days")
    call(admin, "subscribe", "held", "tick", filter="n > 7")
    slow(admin, "held")
    call(holding, "unsubscribe", "held")
    dispatch(admin, 7)
    assert unasked(admin) == 1
    assert not reclaim_has_locked(), "somebody has it locked still"
    holding.rollback()
    assert reclaim_has_locked()
    assert [unasked(admin), place(admin, "held")] == [0, "lane"]


def test_what_a_policy_takes_is_not_the_fault_of_a_filter(
    connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    """Nor is a filter asked, as far as anybody sees, while the policy of the next role is.

    As measured: where the machine has halted meanwhile, it is tried with another type and others who read it.
    """
    admin = connect(dsn=own_database)
    call(admin, "configure", "dispatch_filter_timeout", "50 milliseconds")
    rows(admin, "create sequence public.marks minvalue 0 start 0")
    rows(
        admin,
        "create function public.looks() returns boolean language plpgsql security definer as $$ begin"
        " perform pg_sleep(0.3);"
        " perform setval('public.marks', greatest((select last_value from public.marks),"
        " (select last_value from pgps_internal.matching_seq))); return true; end $$",
    )
    attempts = itertools.count()

    def is_nobodys_fault() -> bool:
        event_type = f"tick_{next(attempts)}"
        make_type(admin, event_type)
        # In the order in which they are asked; who administers sees all.
        owners = [role("chief", "pgps_admin"), role("reader")]
        call(admin, "create_policy", event_type, "looks", owners[1], "public.looks()")
        for owner in owners:
            call(connect(owner, dsn=own_database), "subscribe", owner, event_type, filter="n > 1")
        publish(admin, event_type, 2)
        rows(admin, "select pgps.dispatch_batch()")
        return [place(admin, owner) for owner in owners] == ["dispatch", "dispatch"]

    wait_until(is_nobodys_fault, what="what a policy takes is nobody's fault")
    assert value(admin, "select last_value from public.marks") == 0
