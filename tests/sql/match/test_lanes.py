"""Lanes: filters that read more than the event are matched beside the dispatcher, in order and exactly once."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, meanwhile, numbers, publish, rows, value
from tests.fix_db import Connect
from tests.sql.match.lane_steps import cut, lane, make_filter, run_lanes, take_only

Role = Callable[..., str]


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    """Types pa and pb, and a function that no filter may call in the dispatcher."""
    connection = connect(dsn=own_database)
    make_type(connection, "pa")
    make_type(connection, "pb")
    make_filter(connection)
    return connection


def test_the_dispatcher_asks_no_filter_that_reads_more_than_the_event(broker: psycopg.Connection) -> None:
    make_filter(broker, "raise exception 'asked'")
    call(broker, "subscribe", "lane", "pa", "public.good(n)")
    call(broker, "subscribe", "safe", "pa", "n > 1")
    publish(broker, "pa", 1, 2, 3)
    cut(broker)
    assert numbers(broker, "safe") == [2, 3]
    assert numbers(broker, "lane") == []
    assert rows(broker, "select lag_batches, lag_events, state, filters from pgps.lanes") == [(1, 3, "behind", 1)]
    assert rows(broker, "select n from pgps_queue.pa_exception") == []
    make_filter(broker)
    run_lanes(broker)
    assert numbers(broker, "lane") == [1, 2, 3]
    assert rows(broker, "select lag_batches, lag_events, state from pgps.lanes") == [(0, 0, "idle")]


def test_dispatch_alone_does_everything(broker: psycopg.Connection) -> None:
    rows(broker, "create table public.wanted as select 2 as n")
    call(broker, "subscribe", "lane", "pa", "n in (select n from public.wanted)")
    publish(broker, "pa", 1, 2, 3)
    rows(broker, "select pgps.dispatch()")
    assert take_only(broker, "lane") == [2]


def test_a_lane_that_another_session_has_is_left_to_it(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    make_filter(broker, "perform pg_advisory_xact_lock(4711)")
    call(broker, "subscribe", "lane", "pa", "public.good(n)")
    publish(broker, "pa", 1)
    cut(broker)
    blocker, other = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(blocker, "select pg_advisory_xact_lock(4711)")
    with meanwhile(broker, other, lambda: rows(other, "call pgps.run_lanes()")):
        rows(broker, "set statement_timeout = '60s'")
        assert call(broker, "dispatch") == 0
        run_lanes(broker)
        assert numbers(broker, "lane") == []
        blocker.rollback()
    assert take_only(broker, "lane") == [1]


def test_a_pattern_subscription_is_in_one_place_whatever_its_filters_are(broker: psycopg.Connection) -> None:
    """Type pd has a domain for an attribute: there the filter is not one over the event alone."""
    rows(broker, "create domain public.small as integer check (value < 100)")
    call(broker, "subscribe", "pattern", "p*", "n > 0")
    call(broker, "subscribe", "plain", "pa", "n > 0")
    make_type(broker, "pd", "n public.small")
    for number in (1, 2):
        for name in ("pa", "pd", "pb"):
            publish(broker, name, number)
        cut(broker)
    assert numbers(broker, "plain") == [1, 2]
    assert numbers(broker, "pattern") == []
    run_lanes(broker)
    assert take_only(broker, "pattern") == [1, 1, 1, 2, 2, 2]
    assert column(
        broker,
        "select distinct in_lane from pgps_internal.signature g join pgps_internal.class c using (signature_id)"
        " join pgps_internal.member m using (class_id) join pgps_internal.subscription s using (subscription_id)"
        " where s.is_pattern",
    ) == [True]


def test_a_new_type_of_a_pattern_is_joined_by_the_lane_and_nothing_is_lost(broker: psycopg.Connection) -> None:
    make_filter(broker, "perform set_config('pgps.asked', 'yes', false)")
    call(broker, "subscribe", "pattern", "p*", "public.good(n)")
    call(broker, "subscribe", "all", "p*")
    make_type(broker, "pc")
    assert lane(broker, "joining") == 1
    publish(broker, "pa", 1)
    publish(broker, "pc", 2)
    cut(broker)
    assert take_only(broker, "all") == [1, 2]
    assert (
        value(
            broker, "select pgps_internal.low_batch((select type_id from pgps_internal.event_type where name = 'pc'))"
        )
        == 0
    )
    run_lanes(broker)
    assert lane(broker, "joining") == 0
    assert take_only(broker, "pattern") == [1, 2]


def test_a_filter_that_means_nothing_for_a_new_type_leaves_the_pattern_as_it_is(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "pattern", "p*", "public.good(n)")
    make_type(broker, "pc", "other integer")
    publish(broker, "pa", 1)
    rows(broker, "select pgps.dispatch()")
    assert take_only(broker, "pattern") == [1]
    error = value(broker, "select last_error from pgps.subscriptions where name = 'pattern'")
    assert 'event type "pc"' in error
    assert '"n"' in error


def test_the_lane_waits_for_an_open_transaction_of_its_owner_and_then_goes_on(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    call(broker, "subscribe", "pattern", "p*", "public.good(n)")
    session = connect(dsn=own_database, autocommit=False)
    call(session, "subscribe", "more", "pa", "public.good(n + 1)")
    rows(broker, "set statement_timeout = '60s'")
    make_type(broker, "pc")
    publish(broker, "pc", 1)
    publish(broker, "pa", 2)
    rows(broker, "select pgps.dispatch()")
    assert numbers(broker, "pattern") == [], "nothing passes what joins"
    session.commit()
    run_lanes(broker)
    assert take_only(broker, "pattern") == [1, 2]


@pytest.mark.parametrize("text", ["n > 1", "public.good(n)", ""], ids=["safe", "lane", "none"])
def test_a_start_in_the_past_holds_up_no_dispatch_and_misses_nothing(
    broker: psycopg.Connection, connect: Connect, own_database: str, text: str
) -> None:
    make_filter(broker, "return n > 1")
    call(broker, "subscribe", "keeps", "pa")
    publish(broker, "pa", 1, 2)
    rows(broker, "select pgps.dispatch()")
    session = connect(dsn=own_database, autocommit=False)
    call(session, "subscribe", "past", "pa", text or None, start="earliest")
    assert numbers(session, "past") == ([2] if text else [1, 2])
    rows(broker, "set statement_timeout = '60s'")
    publish(broker, "pa", 3)
    assert call(broker, "dispatch") == 1
    assert take_only(broker, "keeps") == [1, 2, 3]
    session.commit()
    publish(broker, "pa", 4)
    rows(broker, "select pgps.dispatch()")
    assert take_only(broker, "past") == ([2, 3, 4] if text else [1, 2, 3, 4])
    # And when nothing comes any more: the next dispatch catches up.
    call(session, "seek", "past", "earliest")
    publish(broker, "pa", 5)
    rows(broker, "select pgps.dispatch()")
    session.commit()
    rows(broker, "select pgps.dispatch()")
    assert take_only(broker, "past") == ([2, 3, 4, 5] if text else [1, 2, 3, 4, 5])


def test_resume_by_an_administrator_runs_no_filter_in_his_statement(
    broker: psycopg.Connection, connect: Connect, role: Role, own_database: str
) -> None:
    owner, boss = role("owner"), role("boss", "pgps_admin")
    rows(broker, f"grant select on pgps_event.pa to {owner}")
    make_filter(broker, "if n = 2 then raise undefined_table; end if; if n = 3 then perform pg_sleep(600); end if")
    session = connect(owner, dsn=own_database)
    call(session, "subscribe", "lane", "pa", "public.good(n)")
    publish(broker, "pa", 1)
    rows(broker, "select pgps.dispatch()")
    publish(broker, "pa", 2)
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select state from pgps.subscriptions where name = 'lane'") == "suspended"
    publish(broker, "pa", 3)
    rows(broker, "select pgps.dispatch()")
    admin = connect(boss, dsn=own_database)
    rows(admin, "set statement_timeout = '60s'")
    call(admin, "resume", "lane")
    assert value(broker, "select state from pgps.subscriptions where name = 'lane'") == "suspended", (
        "until its lane has caught up"
    )
    make_filter(broker)
    run_lanes(broker)
    assert value(broker, "select state from pgps.subscriptions where name = 'lane'") == "active"
    assert take_only(session, "lane") == [1, 3], "2 is in the exception queue"


def test_competing_consumers_get_each_event_of_a_lane_once(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "safe", "pa", "n > 0", handler="any")
    call(broker, "subscribe", "lane", "pa", "public.good(n)", handler="any")
    publish(broker, "pa", 1, 2)
    cut(broker)
    assert take_only(broker, "safe") == [1, 2]
    run_lanes(broker)
    assert take_only(broker, "lane") == [1, 2]
    assert numbers(broker, "safe") == [], "shared out once"


def test_what_a_lane_has_not_matched_is_kept_and_shown(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "safe", "pa", "n > 0")
    call(broker, "subscribe", "lane", "pa", "public.good(n)")
    publish(broker, "pa", 1)
    cut(broker)
    assert take_only(broker, "safe") == [1]
    # Segments of the log are 65,536 events: the one that has it is not the current one any more.
    rows(broker, "select setval('pgps_internal.event_id_seq', 70000)")
    assert call(broker, "reclaim") == 0
    assert rows(broker, "select n from pgps_queue.pa_in") == [(1,)]
    event = value(broker, "select event_id from pgps_queue.pa_in")
    steps: dict[str, str] = dict(rows(broker, "select * from pgps.explain('lane', %s)", [event]))
    assert "not asked yet" in steps["filter"]
    run_lanes(broker)
    assert take_only(broker, "lane") == [1]
    assert call(broker, "reclaim", 10) > 0
    assert rows(broker, "select n from pgps_queue.pa_in") == []


def test_positions_of_lanes_outlive_their_segment(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "lane", "pa", "public.good(n)")
    publish(broker, "pa", 1)
    rows(broker, "select pgps.dispatch()")
    at = lane(broker, "position")
    assert at > 0
    for _ in range(5):
        rows(broker, "select setval('pgps_internal.lane_step_seq', nextval('pgps_internal.lane_step_seq') + 65536)")
        rows(broker, "select pgps.reclaim(10)")
        assert lane(broker, "position") == at
    assert value(broker, "select count(*) from pgps_internal.lane_step") == 1
    publish(broker, "pa", 2)
    rows(broker, "select pgps.dispatch()")
    assert take_only(broker, "lane") == [1, 2]


@pytest.mark.parametrize("step", ["unsubscribe", "pause"])
def test_who_drops_or_pauses_a_subscription_in_an_open_transaction_holds_up_no_dispatch(
    broker: psycopg.Connection, connect: Connect, own_database: str, step: str
) -> None:
    call(broker, "configure", "filter_failures", "1")
    call(broker, "subscribe", "shared", "pa", handler="any")
    call(broker, "subscribe", "raises", "pa", "1 / (n - 1) > 0")
    call(broker, "subscribe", "safe", "pa", "n > 0")
    session = connect(dsn=own_database, autocommit=False)
    call(session, step, "shared")
    call(session, step, "raises")
    publish(broker, "pa", 1, 2)
    rows(broker, "set statement_timeout = '60s'")
    assert call(broker, "dispatch") == 2
    assert take_only(broker, "safe") == [1, 2]
    session.commit()
    rows(broker, "select pgps.reclaim()")
    left = 2 if step == "pause" else 0
    assert value(broker, "select count(*) from pgps_internal.share") == left
    assert value(broker, "select count(*) from pgps_internal.failure") == left / 2


def test_a_lane_without_work_costs_no_look_at_it(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "lane", "pb", "public.good(n)")
    publish(broker, "pa", 1)
    cut(broker)
    last = value(broker, "select max(batch_id) from pgps_internal.batch")
    assert value(broker, "select pgps_internal.lanes_with_work(0, null)") == []
    assert rows(broker, "call pgps.run_lanes()") == [(last, [])]
    assert lane(broker, "position") == 0, "it stands still, and is not behind"
    assert lane(broker, "state") == "idle"
    assert value(broker, "select pgps_internal.low_batch()") == last


def test_everybody_sees_own_lanes_only(
    broker: psycopg.Connection, connect: Connect, role: Role, own_database: str
) -> None:
    owner = role("owner")
    rows(broker, f"grant select on pgps_event.pa to {owner}")
    session = connect(owner, dsn=own_database)
    call(session, "subscribe", "theirs", "pa", "public.good(n)")
    call(broker, "subscribe", "mine", "pa", "public.good(n)")
    assert column(session, "select role from pgps.lanes") == [owner]
    assert value(broker, "select count(*) from pgps.lanes") == 2
    assert column(connect(role("stranger"), dsn=own_database), "select role from pgps.lanes") == []
    assert value(connect(role("boss", "pgps_admin"), dsn=own_database), "select count(*) from pgps.lanes") == 2


def test_a_filter_dropped_while_its_lane_runs_is_no_failure(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    make_filter(broker, "perform pg_advisory_xact_lock(4711)")
    call(broker, "subscribe", "a", "pa", "public.good(n)")
    call(broker, "subscribe", "b", "pa", "public.good(n + 1)")
    publish(broker, "pa", 1)
    cut(broker)
    blocker, other = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(blocker, "select pg_advisory_xact_lock(4711)")
    with meanwhile(broker, other, lambda: rows(other, "call pgps.run_lanes()")):
        call(broker, "unsubscribe", "b")
        blocker.rollback()
    assert take_only(broker, "a") == [1]
    assert rows(broker, "select * from pgps.exceptions") == []


def test_what_an_administrator_puts_back_is_asked_by_its_owners_lane(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    owner, chief = role("owner"), role("chief", "pgps_admin")
    session, admin = connect(owner, dsn=own_database), connect(chief, dsn=own_database)
    rows(broker, f"create schema {owner} authorization {owner}")
    body = f"if session_user = '{chief}' then raise exception 'run by an administrator'; end if"
    make = f"create or replace function {owner}.good(n integer) returns boolean language plpgsql as $$ begin"
    rows(session, f"{make} raise exception 'not yet'; end $$")
    call(session, "subscribe", "s", "pa", f"{owner}.good(n)")
    publish(broker, "pa", 1, 2)
    for _ in range(5):
        rows(broker, "select pgps.dispatch()")
    assert sorted(column(broker, "select n from pgps_queue.pa_exception")) == [1, 2]
    rows(session, f"{make} {body}; return n = 1; end $$")
    if value(broker, "select state from pgps.subscriptions where name = 's'") == "suspended":
        call(session, "resume", "s")
    assert call(admin, "retry_exception", "pa") == 2, "nothing of the owner's is run"
    rows(broker, "call pgps.run_lanes()")
    assert take_only(broker, "s") == [1]
    assert rows(broker, "select n from pgps_queue.pa_exception") == []
    assert value(broker, "select count(*) from pgps_internal.asked_again") == 0
