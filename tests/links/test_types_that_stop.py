"""An event type that stops coming on the way: what is missed is a gap, or comes by another way; nothing in silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fix_broker import call, column, make_type, publish, rows
from tests.links.rig import Broker, linked, received, settle

Brokers = Callable[[int], list[Broker]]


def gaps(broker: Broker) -> list[tuple[str, str]]:
    """Return what is said to be missing: state, and whether the text names the type."""
    return rows(broker.admin, 'select state, substring(error from \'event type "[^"]*"\') from pgps.exceptions')


GAP = [("gap", 'event type "tick"')]


def test_what_is_published_while_a_broker_on_the_way_lacks_the_type_is_a_gap_behind_it(brokers: Brokers) -> None:
    a, b, c, d = made = brokers(4)
    make_type(a.admin, "tick")
    make_type(a.admin, "tock")
    with linked([(a, b), (b, c), (c, d)]) as links:
        settle(made, links)
        for broker in (c, d):
            call(broker.admin, "subscribe", "ticks", "tick", scope="global")
        call(d.admin, "subscribe", "tocks", "tock", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        settle(made, links)
        call(b.admin, "drop_event_type", "tick", True)
        settle(made, links)
        for kind in ("tick", "tock"):
            publish(a.admin, kind, 2)
        settle(made, links)
        make_type(b.admin, "tick")
        settle(made, links)
        for kind in ("tick", "tock"):
            publish(a.admin, kind, 3)
        settle(made, links)
        for broker in (c, d):
            assert [n for _, n in received(broker, "ticks")] == [1, 3], broker.name
            assert gaps(broker) == GAP, broker.name
        assert [n for _, n in received(d, "tocks")] == [2, 3]
        assert column(b.admin, "select * from pgps_internal.lack") == []


@pytest.mark.parametrize("beside", [False, True])
def test_who_knows_another_way_turns_to_it_at_once(brokers: Brokers, beside: bool) -> None:
    """Before anything is missed, unless something else of the origin was under way already."""
    a, b, c, d = made = brokers(4)
    make_type(a.admin, "tick")
    make_type(a.admin, "tock")
    with linked([(a, b), (b, c), (a, d), (d, c)]) as links:
        settle(made, links)
        for kind in ("tick", "tock"):
            call(c.admin, "subscribe", f"{kind}s", kind, scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        settle(made, links)
        parent = column(
            c.admin,
            "select n.name from pgps_internal.origin o join pgps_internal.neighbour n on n.neighbour_id = o.parent"
            " where o.name = 'a'",
        )
        there, up, down = (b, links[0], links[1]) if parent == ["b"] else (d, links[2], links[3])
        call(there.admin, "drop_event_type", "tick", True)
        for _ in range(3):
            up.move()
        for kind in ("tick", "tock") if beside else ("tick",):
            publish(a.admin, kind, 2)
        a.settle()
        for _ in range(3):
            up.move()
            there.settle()
        # It says in one batch that it has lost the type, and how far it has come without it.
        for _ in range(6):
            down.move()
        settle(made, links)
        publish(a.admin, "tick", 3)
        settle(made, links)
        assert [n for _, n in received(c, "ticks")] == ([1, 3] if beside else [1, 2, 3])
        assert gaps(c) == (GAP if beside else [])


def test_what_is_published_until_an_altered_type_is_altered_everywhere_is_a_gap(brokers: Brokers) -> None:
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        for broker in (b, c):
            call(broker.admin, "subscribe", "ticks", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        settle(made, links)
        for place, broker in enumerate(made):
            rows(broker.admin, "select pgps.alter_event_type('tick', add_attribute => 'm integer')")
            settle(made, links)
            publish(a.admin, "tick", 2 + place)
            settle(made, links)
        assert [n for _, n in received(b, "ticks")] == [1, 3, 4]
        assert [n for _, n in received(c, "ticks")] == [1, 4]
        assert gaps(b) == gaps(c) == GAP


def test_a_filter_of_a_type_that_the_parent_does_not_know_holds_up_no_answer(brokers: Brokers) -> None:
    o, p, x = made = brokers(3)
    for kind in ("tick", "tock"):
        make_type(o.admin, kind)
    make_type(p.admin, "tock")
    call(p.admin, "configure", "link_create_types", "false")
    with linked([(o, p), (p, x), (o, x)]) as links:
        settle(made, links)
        for kind in ("tick", "tock"):
            call(x.admin, "subscribe", f"{kind}s", kind, scope="global")
        settle(made, links)
        for kind in ("tick", "tock"):
            publish(o.admin, kind, 1)
        settle(made, links)
        links[2].close()
        call(o.admin, "drop_link", "to_c", True)
        call(x.admin, "drop_link", "a", True)
        settle(made, links[:2])
        for kind in ("tick", "tock"):
            publish(o.admin, kind, 2)
        settle(made, links[:2])
        assert [n for _, n in received(x, "tocks")] == [1, 2]
        make_type(p.admin, "tick")
        settle(made, links[:2])
        for kind in ("tick", "tock"):
            publish(o.admin, kind, 3)
        settle(made, links[:2])
        assert [n for _, n in received(x, "tocks")] == [3]
        assert [n for _, n in received(x, "ticks")] == [1, 3]


def test_what_was_still_to_be_sent_when_the_type_was_dropped_is_in_the_gap(brokers: Brokers) -> None:
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        call(c.admin, "subscribe", "ticks", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        settle(made, links)
        for n in (2, 3):
            publish(a.admin, "tick", n)
            settle([a, b], links[:1])
        last = column(a.admin, "select max(batch_id) - 1 from pgps_internal.batch_type")
        call(b.admin, "drop_event_type", "tick", True)
        settle(made, links)
        make_type(b.admin, "tick")
        settle(made, links)
        publish(a.admin, "tick", 4)
        settle(made, links)
        assert [n for _, n in received(c, "ticks")] == [1, 4]
        assert gaps(c) == GAP
        begins = column(c.admin, "select substring(error from 'batches (\\d+) to')::bigint from pgps.exceptions")
        assert begins <= last, "the first of what never came"
