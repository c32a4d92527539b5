"""Filters in lanes that take too long while what they belong to is being dropped: nobody waits in a circle."""

from __future__ import annotations

import threading

from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import Connect, wait_until
from tests.sql.match.lane_steps import cut, make_filter


def test_a_type_is_dropped_while_a_filter_of_it_takes_too_long(own_database: str, connect: Connect) -> None:
    broker, dropper, lane = (connect(dsn=own_database) for _ in range(3))
    make_type(broker, "leaf")
    make_filter(broker, "perform pg_sleep(60)")
    call(broker, "create_composite_event", "it", "leaf(public.good(n)) x")
    rows(broker, "update pgps_internal.lane set is_slow = true, slow_until = 'infinity'")
    publish(broker, "leaf", 1)
    cut(broker)
    number = value(broker, "select lane_id from pgps_internal.lane")
    rows(lane, "set statement_timeout = '4s'")
    running = threading.Thread(target=rows, args=[lane, "select * from pgps.run_slow_lane(%s)", [number]])
    running.start()
    asked = "select count(*) = 1 from pg_stat_activity where wait_event = 'PgSleep' and query like '%run_slow_lane%'"
    wait_until(lambda: value(broker, asked), what="the filter is asked")
    call(dropper, "drop_event_type", "leaf", True)
    running.join()
    assert value(broker, "select count(*) from pgps.event_types") == 0
