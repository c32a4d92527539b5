"""An event type that somebody changes in an open transaction: the lanes that read it wait, and no filter is blamed."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fix_broker import call, make_type, numbers, publish, rows, value
from tests.fix_db import Connect, wait_until
from tests.sql.match.lane_steps import cut, make_filter, run_lanes

# The view says "slow" while it waits.
STATE = "select state from pgps_internal.subscription where name = %s"


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    """Event types pa and pb, and a function that no filter may call in the dispatcher."""
    connection = connect(dsn=own_database)
    make_type(connection, "pa")
    make_type(connection, "pb")
    make_filter(connection)
    return connection


@pytest.fixture
def hurried(own_database: str, connect: Connect) -> psycopg.Connection:
    """A session in which no lane has time to lose."""
    return connect(dsn=make_conninfo(own_database, options="-c statement_timeout=300ms"))


def see_no_blame(broker: psycopg.Connection, hurried: psycopg.Connection) -> None:
    """Run the lanes more often than a filter may be slow; they wait, and it is known for what."""

    def is_noted() -> bool:
        with suppress(psycopg.errors.QueryCanceled):
            run_lanes(hurried)
        return "is being changed" in (value(broker, "select last_error from pgps.lanes") or "")

    wait_until(is_noted)
    for _ in range(5):
        is_noted()
    assert value(broker, STATE, ["lane"]) == "active"
    assert value(broker, "select coalesce(sum(failures), 0) from pgps_internal.class") == 0
    # Now that it is known, it is not waited for, though there is no limit here.
    run_lanes(broker)


@pytest.mark.parametrize("event_type", ["pa", "p*"])
def test_no_filter_is_blamed_for_who_changes_its_type(
    broker: psycopg.Connection, hurried: psycopg.Connection, connect: Connect, own_database: str, event_type: str
) -> None:
    call(broker, "subscribe", "lane", event_type, "public.good(n)")
    publish(broker, "pa", 1, 2)
    cut(broker)
    with connect(dsn=own_database, autocommit=False) as session:
        rows(session, "select pgps.alter_event_type('pa', add_attribute => 'm integer')")
        see_no_blame(broker, hurried)
        session.commit()
    run_lanes(broker)
    assert numbers(broker, "lane") == [1, 2]


def test_no_filter_is_blamed_for_who_changes_a_type_that_it_has_not_joined(
    broker: psycopg.Connection, hurried: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    call(broker, "subscribe", "lane", "p*", "public.good(n)")
    run_lanes(broker)
    make_type(broker, "pc")
    publish(broker, "pc", 1)
    cut(broker)
    with connect(dsn=own_database, autocommit=False) as session:
        rows(session, "select pgps.alter_event_type('pc', add_attribute => 'm integer')")
        see_no_blame(broker, hurried)
    run_lanes(broker)
    assert numbers(broker, "lane") == [1]


def test_a_dispatch_by_hand_blames_nobody_for_it(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    """Neither when its lock_timeout ends, nor when the time for a lane does."""
    call(broker, "configure", "dispatch_lane_timeout", "200 milliseconds")
    call(broker, "configure", "filter_failures", "1")
    call(broker, "subscribe", "lane", "pa", "public.good(n)")
    for number, limit in enumerate(("100ms", "0")):
        publish(broker, "pa", number)
        cut(broker)
        rows(broker, f"set lock_timeout = '{limit}'")
        with connect(dsn=own_database, autocommit=False) as session:
            rows(session, f"select pgps.alter_event_type('pa', add_attribute => 'm{number} integer')")
            rows(broker, "select pgps.dispatch()")
            assert value(broker, STATE, ["lane"]) == "active"
            assert value(broker, "select count(*) from pgps.exceptions") == 0
            assert 'event type "pa" is being changed' in value(broker, "select last_error from pgps.lanes")
        rows(broker, "reset lock_timeout")
        run_lanes(broker)
        assert numbers(broker, "lane") == list(range(number + 1))
