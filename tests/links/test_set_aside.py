"""An event type that fails in dispatch at one broker: neighbours get all of it, in order, once it is mended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fix_broker import WAYS, call, dispatch, make_type, meanwhile, publish, rows, value
from tests.fix_db import Connect
from tests.links.rig import Broker, linked, received, settle
from tests.sql.match.slow_filters import slow

Brokers = Callable[[int], list[Broker]]


@pytest.mark.parametrize("place", ["origin", "middle", "end"])
def test_neighbours_get_what_was_kept_in_its_order(brokers: Brokers, place: str) -> None:
    """Of other types, what is published at the broker itself goes on; what comes over links keeps its one order."""
    a, b, c = made = brokers(3)
    for event_type in ("bad", "good"):
        make_type(a.admin, event_type)
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        for broker in made:
            call(broker.admin, "subscribe", "bads", "bad", scope="global")
            call(broker.admin, "subscribe", "goods", "good", scope="global")
        settle(made, links)
        publish(a.admin, "bad", 1)
        publish(a.admin, "good", 1)
        settle(made, links)
        for broker in (b, c):
            call(broker.admin, "advertise", "good")
        settle(made, links)
        there = {"origin": a, "middle": b, "end": c}[place]
        type_id = value(there.admin, "select type_id from pgps_internal.event_type where name = 'bad'")
        rows(there.admin, f"alter function pgps_internal.part_ids_{type_id} rename to part_ids_of_old")
        for n in range(2, 6):
            publish(a.admin, "bad", n)
            publish(a.admin, "good", n)
            settle(made, links)
        publish(there.admin, "good", 100)
        settle(made, links)
        assert value(there.admin, "select state from pgps.event_types where name = 'bad'") == "set aside"
        before = received(there, "goods")
        assert (there.name, 100) in before
        call(there.admin, "resume_event_type", "bad")
        publish(a.admin, "bad", 6)
        publish(a.admin, "good", 6)
        settle(made, links)
        for broker in made:
            assert [n for origin, n in received(broker, "bads") if origin == "a"] == [1, 2, 3, 4, 5, 6], broker.name
            goods = (before if broker is there else []) + received(broker, "goods")
            assert [n for origin, n in goods if origin == "a" and n != 100] == [1, 2, 3, 4, 5, 6], broker.name
        assert value(there.admin, "select count(*) from pgps_internal.set_aside where batch_id is null") == 0


def test_what_came_over_links_stays_in_order_when_a_type_is_resumed_while_another_one_is_dispatched(
    brokers: Brokers, connect: Connect
) -> None:
    a, b, c = brokers(3)
    for kind in ("tick", "tock"):
        make_type(a.admin, kind)
    make_type(b.admin, "good")
    with linked([(a, b), (b, c)]) as links:
        settle([a, b, c], links)
        for broker, kind in ((b, "tick"), (b, "tock"), (c, "tick"), (c, "tock")):
            call(broker.admin, "subscribe", kind, kind, scope="global")
        settle([a, b, c], links)
        numbers: dict[str, int] = dict(rows(b.admin, "select name, type_id from pgps_internal.event_type"))
        for kind in ("tick", "good"):
            rows(b.admin, f"drop function pgps_internal.part_ids_{numbers[kind]}")

        def carried(kind: str, n: int) -> None:
            publish(a.admin, kind, n)
            a.settle()
            while links[0].out.move():
                pass

        carried("tick", 1)
        b.settle()
        b.settle()
        carried("tock", 2)
        b.settle()
        # One window has something of the good one, and something that came over the link and waits for the other.
        publish(b.admin, "good", 3)
        carried("tock", 4)
        b.settle()
        b.settle()
        call(b.admin, "resume_event_type", "good")
        holder, dispatcher = connect(dsn=b.dsn, autocommit=False), connect(dsn=b.dsn)
        for n in range(4):
            rows(holder, f"lock table pgps_internal.batch_{n} in share mode")
        with meanwhile(b.admin, dispatcher, lambda: rows(dispatcher, "select pgps.dispatch()")):
            call(b.admin, "resume_event_type", "tick")
            holder.rollback()
        settle([a, b, c], links)
        for broker in (b, c):
            assert received(broker, "tick") == [("a", 1)]
            assert received(broker, "tock") == [("a", 2), ("a", 4)]


@pytest.mark.parametrize("way", WAYS)
def test_what_waits_for_an_event_type_that_is_dropped_goes_on(brokers: Brokers, way: str) -> None:
    a, b = made = brokers(2)
    for kind in ("bad", "good"):
        make_type(a.admin, kind)
    with linked([(a, b)]) as links:
        settle(made, links)
        for kind in ("bad", "good"):
            call(b.admin, "subscribe", kind, kind, scope="global")
        settle(made, links)
        type_id = value(b.admin, "select type_id from pgps_internal.event_type where name = 'bad'")
        rows(b.admin, f"drop function pgps_internal.part_ids_{type_id}")
        for kind in ("bad", "good"):
            publish(a.admin, kind, 1)
        settle(made, links)
        assert received(b, "good") == [], "what came over links keeps one order across event types"
        call(b.admin, "drop_event_type", "bad", True)
        rows(b.admin, "vacuum pgps_internal.broken_type")
        publish(a.admin, "good", 2)
        a.settle()
        while links[0].out.move():
            pass
        dispatch(b.admin, way)
        assert received(b, "good") == [("a", 1), ("a", 2)]
        assert value(b.admin, "select count(*) from pgps_internal.set_aside where batch_id is null") == 0


def test_a_filter_that_moves_to_a_lane_loses_nothing_of_what_was_set_aside_with_what_came_over_a_link(
    brokers: Brokers,
) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "both", "tick", filter="n > 0", scope="global")
        settle([a, b], links)
        call(b.admin, "advertise", "tick")
        settle([a, b], links)
        call(b.admin, "configure", "dispatch_filter_timeout", "50 milliseconds")
        number = value(b.admin, "select type_id from pgps_internal.event_type where name = 'tick'")
        rows(b.admin, f"drop function pgps_internal.part_ids_{number}")
        publish(a.admin, "tick", 1)
        a.settle()
        while links[0].out.move():
            pass
        publish(b.admin, "tick", 2)
        rows(b.admin, "select pgps.dispatch()")
        assert value(b.admin, "select count(*) from pgps_internal.set_aside where batch_id is null") == 2
        call(b.admin, "resume_event_type", "tick")
        slow(b.admin, "both")
        rows(b.admin, "select pgps.dispatch_batch()")
        assert value(b.admin, "select asked_in from pgps.classes where subscription = 'both'") == "lane"
        publish(b.admin, "tick", 3)
        settle([a, b], links)
        rows(b.admin, "call pgps.run_lanes()")
        assert sorted(n for _, n in received(b, "both")) == [1, 2, 3]
