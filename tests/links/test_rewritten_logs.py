"""A log that is written anew while a link waits for it: what the link sends is all there, or nothing is sent yet."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, make_type, meanwhile, publish, refused, rows
from tests.links.rig import Broker, linked, received, settle

Brokers = Callable[[int], list[Broker]]


# What is not persistent is not audited, so that the log is not read before for its digest.
@pytest.mark.parametrize("persistent", [True, False], ids=["audited", "not_audited"])
@pytest.mark.parametrize("with_rows", [1000, 0], ids=["small", "large"])
def test_no_event_is_missing_from_what_is_sent_next(brokers: Brokers, with_rows: int, persistent: bool) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    call(a.admin, "alter_queue", "tick_in", persistent=persistent)
    with linked([(a, b)]) as links:
        lane = links[0].out
        lane.with_rows = with_rows
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 1)
        settle([a, b], links)
        # Of several statements in one item, so that the log is asked which events are whose.
        with psycopg.connect(a.dsn) as open_one:
            rows(open_one, "insert into pgps_event.tick values (2)")
            publish(a.admin, "tick", 3)
            rows(open_one, "insert into pgps_event.tick values (4)")
        publish(a.admin, "tick", 5)
        a.settle()
        found = []
        with psycopg.connect(a.dsn) as changing:
            call(changing, "alter_queue", "tick_in", persistent=not persistent)
            with meanwhile(a.admin, lane.source, lambda: found.append(lane.next())):
                changing.commit()
        lane.carry(found[0])
        settle([a, b], links)
        assert sorted(n for _, n in received(b, "all")) == [1, 2, 3, 4, 5]


def test_a_copy_that_finds_nothing_is_refused_and_done_again(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        lane = links[0].out
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 1, 2)
        a.settle()
        batch = lane.next()
        with psycopg.connect(a.dsn) as changing:
            call(changing, "alter_queue", "tick_in", persistent=False)
            # COPY takes its snapshot before it waits. A worker opens the link again.
            with (
                refused("55000", '0 events of type "tick" came'),
                meanwhile(a.admin, lane.source, lambda: lane.carry(batch)),
            ):
                changing.commit()
        settle([a, b], links)
        assert [n for _, n in received(b, "all")] == [1, 2]
