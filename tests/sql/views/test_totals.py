"""pgps.totals: the sums that pgps.subscriptions has, of many estimated from some."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, refused, rows
from tests.fix_clock import Clock
from tests.fix_db import Connect

_TOTALS = """
    select subscriptions, paused, suspended, dead, depth, failed, retrying, is_estimated, is_limited
    from pgps.totals({})
"""
_SUMS = """
    select count(*), count(*) filter (where state = 'paused'), count(*) filter (where state = 'suspended'),
        count(*) filter (where state = 'dead'), coalesce(sum(depth), 0)::bigint, coalesce(sum(failed), 0)::bigint,
        coalesce(sum(retrying), 0)::bigint, false, false
    from pgps.subscriptions
"""


@pytest.fixture
def owner(own_database: str, connect: Connect, role: Callable[..., str]) -> psycopg.Connection:
    """A session of a role that has subscriptions in each state, beside sixty of the administrator's."""
    admin = connect(dsn=own_database)
    make_type(admin, "tick", "n integer")
    alice = role("alice")
    admin.execute(f"grant select on pgps_event.tick to {alice}".encode())
    for n in range(60):
        call(admin, "subscribe", f"s{n}", "tick")
    session = connect(alice, dsn=own_database)
    for name in ("here", "halted", "left"):
        call(session, "subscribe", name, "tick", max_attempts=1)
    call(session, "pause", "halted")
    call(session, "alter_subscription", "left", dead_after="10 minutes")
    rows(admin, "insert into pgps_event.tick (n) select generate_series(1, 5)")
    rows(admin, "select pgps.dispatch()")
    rows(session, "select pgps.nack_events('here', array(select event_id from pgps.receive('here', 2)), 'no bed')")
    call(session, "ack", "here")
    return session


def test_the_totals_are_the_sums_of_what_the_reader_may_see(
    owner: psycopg.Connection, own_database: str, connect: Connect, clock: Clock
) -> None:
    clock.advance("1 hour")
    admin = connect(dsn=own_database)
    for session in (owner, admin):
        assert rows(session, _TOTALS.format("")) == rows(session, _SUMS)
    # Three of what was published wait for the one that failed two, five for each of the others.
    assert rows(owner, _TOTALS.format("")) == [(3, 1, 0, 1, 3 + 5 + 5, 2, 0, False, False)]
    lag = "select lag_seconds between 3600 and 3700 from pgps.totals()"
    assert rows(owner, lag) == [(True,)]


def test_of_many_some_stand_for_all(
    owner: psycopg.Connection, own_database: str, connect: Connect, clock: Clock
) -> None:
    clock.advance("1 hour")
    admin = connect(dsn=own_database)
    # Those that are stopped, and those that may be dead, are asked by themselves, however few they are.
    found = rows(admin, _TOTALS.format("max_subscriptions => 10"))
    assert [found[0][place] for place in (0, 1, 2, 3, 7)] == [63, 1, 0, 1, True]
    assert abs(found[0][4] - 63 * 5) <= 13
    assert rows(admin, "select asked from pgps.totals(max_subscriptions => 10)") == [(12,)]
    assert found == rows(admin, _TOTALS.format("max_subscriptions => 10"))
    assert rows(admin, "select failed + retrying, is_limited from pgps.totals(max_exceptions => 1)") == [(2, True)]


def test_nobody_s_totals_are_nothing(own_database: str, connect: Connect, role: Callable[..., str]) -> None:
    stranger = connect(role("stranger"), dsn=own_database)
    assert rows(stranger, _TOTALS.format("null, null")) == [(0, 0, 0, 0, 0, 0, 0, False, False)]
    for wrong in ("max_subscriptions => 0", "max_exceptions => 1000001"):
        with refused("22023", "is not between 1 and 1000000"):
            rows(stranger, _TOTALS.format(wrong))
