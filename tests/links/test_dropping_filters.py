"""What a neighbour that leaves still gets is complete: its filters stay in force on the way until they have ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fix_broker import call, make_type, publish
from tests.links.rig import Broker, Link, linked, open_link, received, settle

Brokers = Callable[[int], list[Broker]]


def leave(origin: Broker, middle: Broker, leaver: Broker, links: list[Link], *, tick_comes: bool) -> None:
    """Let the leaver drop its link while something waits for dispatch in the middle, and the origin publish."""
    to_origin, to_leaver = links
    publish(middle.admin, "other", 1)  # waits for dispatch: until its batch is sent, the leaver's filters stay
    call(leaver.admin, "drop_link", middle.name)
    for _ in range(3):
        to_leaver.back.move()
    to_origin.move()
    publish(origin.admin, "tock", 2)
    if tick_comes:
        publish(origin.admin, "tick", 2)
    origin.settle()
    to_origin.back.move()
    to_leaver.out.move()
    settle([origin, middle, leaver], links)
    assert to_leaver.drained
    to_leaver.remove()


@pytest.mark.parametrize("tick_comes", [True, False], ids=["with an event", "with silence"])
def test_who_leaves_is_told_of_no_batch_whose_events_were_not_asked_for(brokers: Brokers, *, tick_comes: bool) -> None:
    o, e, c = made = brokers(3)
    for kind in ("tick", "tock"):
        make_type(o.admin, kind)
    with linked([(e, o), (e, c)]) as links:
        settle(made, links)
        make_type(e.admin, "other")
        call(e.admin, "subscribe", "own", "tick", scope="global")
        for kind in ("tick", "tock"):
            call(c.admin, "subscribe", f"{kind}s", kind, scope="global")
        settle(made, links)
        for kind in ("tick", "tock"):
            publish(o.admin, kind, 1)
        settle(made, links)
        leave(o, e, c, links, tick_comes=tick_comes)
        call(c.admin, "create_link", "to_o", o.dsn)
        again = open_link(c, o, "to_o")
        settle(made, [links[0], again])
        again.close()
        assert received(c, "ticks") == [(o.name, n) for n in ([1, 2] if tick_comes else [1])]
        assert received(c, "tocks") == [(o.name, 1), (o.name, 2)]
