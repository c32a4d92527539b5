"""An event type that fails in dispatch, under a worker: seen in the log, on both pages, and nobody else is held up."""

from __future__ import annotations

import json

import pytest

from tests.fix_db import wait_until
from tests.fix_worker import Ticks, Workers, free_port, metrics, page


def health(port: int) -> dict[str, dict[str, str]]:
    # Whatever its status says, in which a service that is late would show.
    found: dict[str, dict[str, str]] = json.loads(page(port, "/healthz")[1])["set_aside"]
    return found


@pytest.mark.parametrize("events", [1, 70_000])
def test_the_worker_says_so_and_goes_on(own_database: str, ticks: Ticks, workers: Workers, events: int) -> None:
    admin = ticks.connection
    ticks.subscribe("ticks")
    admin.execute("select pgps.create_event_type('bad', 'n integer')")
    admin.execute("select pgps.advertise('bad')")
    admin.execute("select pgps.subscribe('bads', 'bad')")
    port = free_port()
    worker = workers(own_database, "--health-port", str(port))
    # One piece fails, and without the other it cannot be mended.
    admin.execute(f"drop function pgps_internal.part_ids_{of(ticks, 'bad')}")
    admin.execute("alter table pgps_internal.bad_audit drop column n cascade")
    admin.execute("insert into pgps_event.bad (n) select generate_series(1, %s)", [events])
    ticks.publish(1)
    wait_until(lambda: ticks.seen("ticks") == [1])
    wait_until(lambda: "pgps_event_types_set_aside 1\n" in metrics(port))
    assert f'pgps_event_type_waiting_events{{event_type="bad"}} {events}\n' in metrics(port)
    assert "pgps.resume_event_type('bad')" in health(port)["bad"]["hint"]
    wait_until(lambda: "event type bad is set aside, its events wait: " in worker.messages, what=worker.messages)
    admin.execute("alter table pgps_internal.bad_audit add column n integer")
    admin.execute("select pgps.resume_event_type('bad')")
    count = "select count(*) from pgps_queue.bad_out where subscription = 'bads'"
    wait_until(lambda: admin.execute(count).fetchone() == (events,))
    wait_until(lambda: "pgps_event_types_set_aside 0\n" in metrics(port))
    assert health(port) == {}
    ticks.publish(2)
    wait_until(lambda: ticks.seen("ticks") == [1, 2])


def of(ticks: Ticks, event_type: str) -> int:
    row = ticks.connection.execute(
        "select type_id from pgps_internal.event_type where name = %s", [event_type]
    ).fetchone()
    assert row is not None
    return int(row[0])
