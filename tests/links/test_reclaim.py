"""Ledgers and logs of linked brokers are truncated when nobody needs them; links go on."""

from __future__ import annotations

from collections.abc import Callable

from tests.fix_broker import call, column, make_type, publish, rows, value
from tests.links.rig import Broker, linked, received, settle

Brokers = Callable[[int], list[Broker]]
SEGMENT = 65536


def turn(broker: Broker) -> None:
    """Let logs and ledgers go on in new segments, and give back what nobody needs."""
    for sequence in ("event_id_seq", "shipment_id_seq", "arrival_id_seq"):
        name = f"pgps_internal.{sequence}"
        rows(broker.admin, f"select setval('{name}', ((select last_value from {name}) / {SEGMENT} + 1) * {SEGMENT})")
    rows(broker.admin, "select pgps.reclaim(100)")


def test_ledgers_of_links_are_truncated_and_links_go_on(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        for n in range(1, 4):
            publish(a.admin, "tick", n)
            settle([a, b], links)
            assert received(b, "all") == [("a", n)]
            turn(a)
            turn(b)
        assert value(a.admin, "select max(events) from pgps_internal.shipment") == 0, "only what is carried over"
        assert value(b.admin, "select count(*) from pgps_internal.arrival where ids is not null") <= 1


def test_what_was_trimmed_before_another_path_was_taken_is_an_exception_at_every_broker_behind(
    brokers: Brokers,
) -> None:
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        call(c.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        settle(made, links)
        # The neighbour is forgotten with what waits for it; its horizon stays where it is.
        links[0].close()
        publish(a.admin, "tick", 2)
        a.settle()
        call(a.admin, "drop_link", "to_b", True)
        call(b.admin, "drop_link", "a", True)
        turn(a)
        with linked([(a, b)]) as again:
            publish(a.admin, "tick", 3)
            settle(made, [*again, links[1]])
            publish(a.admin, "tick", 4)
            settle(made, [*again, links[1]])
        assert [n for _, n in received(c, "all")] == [1, 3, 4]
        for broker in (b, c):
            assert column(broker.admin, "select sqlstate from pgps.exceptions") == ["58030"], broker.name
