"""Who makes a filter over the event alone that takes long is late alone; the dispatcher waits for a short time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, meanwhile, publish, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect, wait_until
from tests.sql.match.slow_filters import count_sleeps, dispatch, place, slow, taken


@pytest.fixture
def admin(connect: Connect, own_database: str) -> psycopg.Connection:
    session = connect(dsn=own_database)
    make_type(session, "tick")
    call(session, "configure", "dispatch_filter_timeout", "50 milliseconds")
    count_sleeps(session)
    return session


class Alice:
    """Opens sessions of a role that may do no more than subscribe."""

    def __init__(self, connect: Connect, dsn: str, name: str) -> None:
        self.connect, self.dsn, self.name = connect, dsn, name

    def __call__(self, *, autocommit: bool = True) -> psycopg.Connection:
        return self.connect(self.name, autocommit, dsn=self.dsn)


@pytest.fixture
def alice(admin: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]) -> Alice:
    return Alice(connect, own_database, role("alice"))


def test_it_is_asked_in_the_lane_of_its_role_and_loses_nothing(admin: psycopg.Connection, alice: Alice) -> None:
    hers = alice()
    call(hers, "subscribe", "slow", "tick", filter="n > 1")
    call(hers, "subscribe", "quick", "tick", filter="n % 2 = 0")
    call(admin, "subscribe", "other", "tick", filter="n > 0")
    slow(admin, "slow")
    dispatch(admin, 1, 2)
    assert [place(admin, name) for name in ("slow", "quick", "other")] == ["lane", "dispatch", "dispatch"]
    assert taken(hers, "slow") == [2]
    dispatch(admin, 3, 4)
    assert [taken(hers, "quick"), taken(admin, "other")] == [[2, 4], [1, 2, 3, 4]]
    assert taken(hers, "slow") == [], "the dispatcher does not ask it any more"
    rows(admin, "call pgps.run_lanes()")
    assert taken(hers, "slow") == [3, 4]
    (told,) = rows(hers, "select state, last_error from pgps.subscriptions where name = 'slow'")
    assert told[0] == "active"
    assert "has held up the dispatcher for" in told[1]


def test_little_by_little_it_comes_to_the_same(admin: psycopg.Connection, alice: Alice, clock: Clock) -> None:
    call(admin, "configure", "dispatch_filter_timeout", "700 milliseconds")
    hers = alice()
    call(hers, "subscribe", "slow", "tick", filter="n > 0")
    slow(admin, "slow", seconds=0.3)
    clock.set(clock.now())
    for number in range(2):
        dispatch(admin, number)
        assert place(admin, "slow") == "dispatch"
    clock.advance("2 minutes")
    for number in range(2):
        dispatch(admin, number)
        assert place(admin, "slow") == "dispatch", "what was so long ago does not count"
    dispatch(admin, 1)
    assert place(admin, "slow") == "lane"


def test_a_role_that_does_it_again_has_all_its_filters_in_its_lane_for_some_time(
    admin: psycopg.Connection, alice: Alice, clock: Clock
) -> None:
    make_type(admin, "tock")
    hers = alice()
    for name, form in {"one": "n > 0", "two": "n < 9", "three": "n <> 5"}.items():
        call(hers, "subscribe", name, "tick", filter=form)
    call(hers, "subscribe", "there", "tock", filter="n > 0")
    call(admin, "subscribe", "other", "tick", filter="n < 9")
    slow(admin, "one")
    dispatch(admin, 1)
    call(hers, "subscribe", "new", "tick", filter="n + 1 > 0")
    assert place(admin, "new") == "lane", "no further form is tried"
    slow(admin, "two")
    dispatch(admin, 2)
    assert {place(admin, name) for name in ("one", "two", "three", "new")} == {"lane"}
    assert [place(admin, name) for name in ("there", "other")] == ["dispatch", "dispatch"]
    call(admin, "reclaim")
    assert place(admin, "there") == "lane"
    publish(admin, "tock", 3)
    dispatch(admin, 3)
    rows(admin, "call pgps.run_lanes()")
    found = {name: taken(hers, name) for name in ("one", "two", "three", "new", "there")}
    assert found == {"one": [1, 2, 3], "two": [1, 2, 3], "three": [1, 2, 3], "new": [2, 3], "there": [3]}
    clock.advance("90 minutes")
    call(hers, "subscribe", "newer", "tick", filter="n + 2 > 0")
    assert place(admin, "newer") == "lane", "twice as long, the second time"
    clock.advance("1 hour")
    call(hers, "subscribe", "newest", "tick", filter="n + 3 > 0")
    assert place(admin, "newest") == "dispatch"


def test_an_open_transaction_of_its_owner_keeps_nothing_in_the_dispatcher(
    admin: psycopg.Connection, alice: Alice
) -> None:
    rows(
        admin,
        "create table public.wanted as select generate_series(1, 9) as n; grant select on public.wanted to public",
    )
    hers, holding = alice(), alice(autocommit=False)
    call(hers, "subscribe", "slow", "tick", filter="n > 1")
    call(hers, "subscribe", "reads", "tick", filter="n in (select w.n from public.wanted w)")
    call(admin, "subscribe", "all", "tick")
    slow(admin, "slow")
    call(holding, "unsubscribe", "slow")
    dispatch(admin, 1, 2)
    for number in (3, 4):
        dispatch(admin, number)
        rows(admin, "call pgps.run_lanes()")
        call(admin, "reclaim")
    assert taken(admin, "all") == [1, 2, 3, 4]
    assert value(admin, "select count(*) from pgps_internal.unasked") == 1
    holding.rollback()
    assert taken(hers, "slow") == [2], "nobody asks it"
    call(admin, "reclaim")
    assert value(admin, "select count(*) from pgps_internal.unasked") == 0
    assert place(admin, "slow") == "lane"
    dispatch(admin, 5)
    rows(admin, "call pgps.run_lanes()")
    assert taken(hers, "slow") == [3, 4, 5]
    assert taken(hers, "reads") == [1, 2, 3, 4, 5]


def test_what_is_dropped_meanwhile_is_forgotten(admin: psycopg.Connection, alice: Alice) -> None:
    hers, holding = alice(), alice(autocommit=False)
    call(hers, "subscribe", "slow", "tick", filter="n > 1")
    slow(admin, "slow")
    call(holding, "unsubscribe", "slow")
    dispatch(admin, 2)
    assert value(admin, "select count(*) from pgps_internal.unasked") == 1
    holding.commit()
    call(admin, "reclaim")
    assert value(admin, "select count(*) from pgps_internal.unasked") == 0


def test_the_same_form_may_be_in_the_lane_already(admin: psycopg.Connection, alice: Alice) -> None:
    hers = alice()
    call(hers, "subscribe", "slow", "tick", filter="n > 1")
    slow(admin, "slow")
    call(hers, "subscribe", "every", "t*", filter="n > 1")
    dispatch(admin, 2)
    assert place(admin, "slow") == "lane"
    dispatch(admin, 3)
    rows(admin, "call pgps.run_lanes()")
    assert [taken(hers, "slow"), taken(hers, "every")] == [[2, 3], [2, 3]]
    call(hers, "subscribe", "again", "tick", filter="n > 1")
    assert place(admin, "again") == "lane"


def test_who_takes_what_is_usual_is_left_alone(connect: Connect, own_database: str, role: Callable[..., str]) -> None:
    """As measured: where the machine has halted for a second, somebody else begins anew with another type."""
    admin = connect(dsn=own_database)
    call(admin, "configure", "dispatch_filter_timeout", "1 second")
    attempts = itertools.count()

    def is_left_alone() -> bool:
        event_type, owner = f"tick_{next(attempts)}", role("alice")
        make_type(admin, event_type)
        hers = connect(owner, dsn=own_database)
        for number in range(70):
            call(hers, "subscribe", f"{event_type}_{number}", event_type, filter=f"n >= {number}")
        for number in range(3):
            publish(admin, event_type, *range(number, 70))
            rows(admin, "select pgps.dispatch_batch()")
        places = column(admin, "select asked_in from pgps.classes where event_type = %s", [event_type])
        offences = "select count(*) from pgps_internal.held_up where owner = %s::regrole and offences > 0"
        return places == ["dispatch"] * 70 and value(admin, offences, [owner]) == 0

    wait_until(is_left_alone, what="somebody who takes what is usual is left alone")


def test_whoever_dispatches_next_asks_no_more_what_was_cut_short(
    admin: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    """Also when it is not the session that was cancelled, which has not said yet whose fault it was."""
    call(admin, "subscribe", "slow", "tick", filter="n > 1")
    slow(admin, "slow", seconds=300)
    publish(admin, "tick", 2)
    cancelled, next_one = (connect(dsn=own_database) for _ in range(2))
    rows(next_one, "set statement_timeout = '2min'")
    raised: list[psycopg.Error] = []

    def dispatch_slowly() -> None:
        try:
            rows(cancelled, "select pgps.dispatch_batch()")
        except psycopg.errors.QueryCanceled as error:
            raised.append(error)

    asking = threading.Thread(target=dispatch_slowly)
    asking.start()
    wait_until(lambda: value(admin, "select last_value from pgps_internal.matching_seq") > 0)
    with meanwhile(admin, next_one, lambda: rows(next_one, "begin; select pgps.dispatch_batch()")):
        wait_until(lambda: bool(call(admin, "cut_filter")))
        asking.join()
    assert len(raised) == 1
    assert place(next_one, "slow") == "lane"
    rows(next_one, "commit")
    assert call(cancelled, "blame") is None, "it is done"


def test_who_was_cut_short_knows_whose_fault_it_was_while_another_one_dispatches(
    admin: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    call(admin, "subscribe", "slow", "tick", filter="n > 1")
    number = value(admin, "select signature_id from pgps_internal.signature")
    other = connect(None, False, dsn=own_database)
    rows(other, "lock table only pgps_internal.batch in share row exclusive mode")
    mark = "select setval('pgps_internal.matching_seq', (%s::bigint << 62) + (pg_backend_pid()::bigint << 40) + %s)"
    rows(admin, mark, [0, number])
    assert call(admin, "blame") is None, "nobody else knows of it"
    rows(admin, mark, [1, number])
    assert call(admin, "blame") == "slow"
    other.rollback()
    dispatch(admin, 2)
    assert place(admin, "slow") == "lane"
