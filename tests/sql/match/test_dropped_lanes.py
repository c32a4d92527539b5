"""Filters in lanes that take too long while what they belong to is being dropped: nobody waits in a circle."""

from __future__ import annotations

import threading

from tests.fix_broker import call, make_type, meanwhile, publish, rows, value
from tests.fix_db import Connect, wait_until
from tests.sql.match.lane_steps import cut, make_filter


def test_a_type_is_dropped_while_a_filter_of_it_takes_too_long(own_database: str, connect: Connect) -> None:
    broker, dropper, lane = (connect(dsn=own_database) for _ in range(3))
    make_type(broker, "leaf")
    make_filter(broker, "perform pg_sleep(120)")
    call(broker, "create_composite_event", "it", "leaf(public.good(n)) x")
    rows(broker, "update pgps_internal.lane set is_slow = true, slow_until = 'infinity'")
    publish(broker, "leaf", 1)
    cut(broker)
    number = value(broker, "select lane_id from pgps_internal.lane")
    # The limit is over at once, as pgps sees it; the server, which reads it before a statement, ends nothing, so that
    # it takes effect when it is to.
    late = "select set_config('statement_timeout', '1ms', true), pgps.run_slow_lane(%s)"
    running = threading.Thread(target=rows, args=[lane, late, [number]])
    running.start()
    asleep = "select wait_event = 'PgSleep' from pg_stat_activity where pid = %s"
    wait_until(lambda: value(broker, asleep, [lane.info.backend_pid]), what="the filter is asked")
    with meanwhile(broker, dropper, lambda: call(dropper, "drop_event_type", "leaf", True)):
        rows(broker, "select pg_cancel_backend(%s)", [lane.info.backend_pid])
        running.join()
    assert value(broker, "select count(*) from pgps.event_types") == 0
