"""How events come into the log: straight where nothing can refuse them, the long way where something may."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, refused, rows, value
from tests.links.rig import Broker, linked, received, settle

Brokers = Callable[[int], list[Broker]]


def test_events_go_straight_into_the_log_though_others_publish_meanwhile(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    make_type(b.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", *range(10))
        publish(a.admin, "tick", *range(10, 20))
        a.settle()
        lane = links[0].out
        batch = lane.next()
        publish(b.admin, "tick", 100)
        with psycopg.connect(b.dsn) as meanwhile:
            rows(meanwhile, "insert into pgps_event.tick values (101)")
            lane.carry(batch)
            rows(meanwhile, "insert into pgps_event.tick values (102)")
        publish(b.admin, "tick", 103)
        assert lane.straight, "nothing can refuse these"
        settle([a, b], links)
        got = received(b, "all")
    assert [n for origin, n in got if origin == "a"] == list(range(20))
    assert sorted(n for origin, n in got if origin == "b") == [100, 101, 102, 103]


def test_what_does_not_fit_into_a_segment_begins_the_next(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        rows(b.admin, "select setval('pgps_internal.event_id_seq', 65530)")
        publish(a.admin, "tick", *range(20))
        settle([a, b], links)
        assert links[0].out.straight
        assert value(b.admin, "select min(event_id) from pgps_internal.tick_log") >= 65536
        assert [n for _, n in received(b, "all")] == list(range(20))


def test_an_event_that_a_constraint_refuses_takes_the_long_way_and_the_next_batch_does_not(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    make_type(b.admin, "tick", "n integer check (n <> 3)")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 1, 2, 3, 4)
        settle([a, b], links)
        straight = [links[0].out.straight]
        publish(a.admin, "tick", 5, 6)
        settle([a, b], links)
        assert [*straight, links[0].out.straight] == [False, True]
        assert [n for _, n in received(b, "all")] == [1, 2, 4, 5, 6]
        assert column(b.admin, "select event_id is not null from pgps.exceptions where event_type = 'tick'") == [True]


@pytest.mark.parametrize(
    "statement", ["insert into pgps_log_0.tick (n) values (1)", "select n from pgps_link.tick_sent"]
)
def test_nobody_but_an_open_link_gets_at_segments_and_what_is_sent(
    brokers: Brokers, role: Callable[..., str], statement: str
) -> None:
    (a,) = brokers(1)
    make_type(a.admin, "tick")
    plain, member = role("plain"), role("member", "pgps_link")
    for who, state in ((plain, "42501"), (member, "55000")):
        with a.admin.transaction():
            rows(a.admin, f"set local role {who}")
            with refused(state), a.admin.transaction():
                rows(a.admin, statement)
    with a.admin.transaction():
        rows(a.admin, f"set local role {member}")
        with refused("42501"), a.admin.transaction():
            rows(a.admin, "insert into pgps_log_0.tick (event_id, n) values (1, 1)")
