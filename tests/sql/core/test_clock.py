"""The clock of the broker: what it costs, who can set it, and what follows it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, refused, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("face", ["pgps_internal.clock()", "pgps._clock()"])
def test_in_a_plan_it_is_the_clock_of_the_server(admin: psycopg.Connection, face: str) -> None:
    plan = "\n".join(column(admin, f"explain (verbose, costs off) select {face} from generate_series(1, 3)"))
    assert "Output: clock_timestamp()" in plan


def test_who_publishes_has_the_servers_clock_in_the_plan_too(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> None:
    made = name()
    endpoint = make_type(admin, made)
    publisher = role("publisher")
    call(connect(publisher), "advertise", made)
    plan = "\n".join(column(connect(publisher), f"explain (verbose, costs off) insert into {endpoint} values (1)"))
    assert "clock_timestamp()" in plan
    assert "_clock()" not in plan.replace("clock_timestamp()", "")


def test_nobody_but_the_owner_of_pgps_can_set_it(connect: Connect, role: Callable[..., str]) -> None:
    for member_of in ((), ("pgps_admin",), ("pgps_worker",), ("pgps_link",), ("pgps_admin", "pgps_worker")):
        session = connect(role("somebody", *member_of))
        for face in ("pgps_internal.clock()", "pgps._clock()"):
            with refused("42501"):
                rows(
                    session,
                    f"create or replace function {face} returns timestamptz language sql as 'select now() + ''1 day'''",
                )
            with pytest.raises(psycopg.Error):
                rows(session, f"alter function {face} set timezone = 'utc'")
        # A temporary function or table of the name is none of its business.
        rows(session, "create temp table clock as select timestamptz '2000-01-01' as stands_at")
        epoch = "returns timestamptz language sql return timestamptz '2000-01-01'"
        rows(session, f"create function pg_temp.clock_timestamp() {epoch}")
        rows(session, "set search_path = pg_temp, pg_catalog")
        assert value(session, "select pgps._clock() - pg_catalog.clock_timestamp() between '-1 hour' and '1 hour'")
    with refused("42501"):
        rows(connect(role("stranger")), "select pgps_internal.clock()")


def test_a_test_sets_it_for_every_session_and_for_plans_that_are_kept(
    own_database: str, connect: Connect, clock: Clock
) -> None:
    session = connect(dsn=own_database)
    rows(session, "prepare told as select pgps._clock()")
    rows(
        session,
        "create function public.told() returns timestamptz language plpgsql as "
        "$$ begin return pgps_internal.clock(); end $$",
    )

    def told() -> list[datetime]:
        return [value(session, "execute told"), value(session, "select public.told()")]

    before = clock.now()
    assert all(timedelta(0) <= at - before < timedelta(hours=1) for at in told())
    assert clock.set("2026-03-01 12:00+00") == _NOON
    assert told() == [_NOON, _NOON]
    assert clock.advance("2 hours") == _NOON + timedelta(hours=2)
    assert clock.advance(timedelta(hours=-2)) == _NOON
    assert told() == [_NOON, _NOON]
    clock.run()
    first = told()
    assert all(_NOON <= at < _NOON + timedelta(hours=1) for at in first)
    assert all(later > earlier for earlier, later in zip(first, told(), strict=True))
    clock.close()
    assert all(timedelta(0) <= at - before < timedelta(hours=1) for at in told())


def test_what_happens_is_of_the_time_of_the_clock(own_database: str, connect: Connect, clock: Clock) -> None:
    clock.set(_NOON)
    broker = connect(dsn=own_database)
    make_type(broker, "tick")
    call(broker, "subscribe", "s", "tick")
    clock.advance("1 minute")
    publish(broker, "tick", 1)
    clock.advance("1 minute")
    rows(broker, "select pgps.dispatch()")
    clock.advance("1 minute")
    event_id = value(broker, "select event_id from pgps.receive('s')")
    assert value(broker, "select created_at from pgps.subscriptions") == _NOON
    assert value(broker, "select enqueued_at from pgps_queue.tick_in") == _NOON + timedelta(minutes=1)
    assert value(broker, "select last_batch_at from pgps.activity") == _NOON + timedelta(minutes=2)
    assert value(broker, "select lag_seconds from pgps.subscriptions") == 60
    call(broker, "nack", "s", event_id, retry_in="1 hour")
    assert value(broker, "select failed_at from pgps_internal.failure") == _NOON + timedelta(minutes=3)
