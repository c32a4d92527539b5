"""A lane that is behind: what joins, and what goes on after it, comes in order and whole."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, make_type, publish, rows
from tests.fix_db import Connect
from tests.sql.match.lane_steps import cut, make_filter, run_lanes, take_only


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
