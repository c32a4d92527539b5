"""An event type that is dropped and made anew at one broker: its neighbours go on with the new one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fix_broker import call, make_type, publish
from tests.links.rig import Broker, linked, received, settle

Brokers = Callable[[int], list[Broker]]


@pytest.mark.parametrize("place", ["origin", "middle"])
def test_neighbours_that_hear_of_nothing_in_between_get_what_is_published_from_then_on(
    brokers: Brokers, place: str
) -> None:
    """In one step as far as they see. The filters that they have told go with the old type."""
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        call(c.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        settle(made, links)
        assert [n for _, n in received(c, "all")] == [1]
        there = a if place == "origin" else b
        call(there.admin, "drop_event_type", "tick", True)
        make_type(there.admin, "tick")
        publish(a.admin, "tick", 2)
        settle(made, links)
        publish(a.admin, "tick", 3)
        settle(made, links)
        assert [n for _, n in received(c, "all")] == [2, 3]


@pytest.mark.parametrize("is_prefix", [False, True])
def test_who_makes_its_own_type_anew_in_one_step_gets_what_is_published_from_then_on(
    brokers: Brokers, is_prefix: bool
) -> None:
    """What its parent was told is the same as before, word for word, and went with the old type."""
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        call(c.admin, "subscribe", "all", "ti*" if is_prefix else "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 1)
        settle(made, links)
        assert [n for _, n in received(c, "all")] == [1]
        with c.admin.transaction():
            call(c.admin, "drop_event_type", "tick", True)
            make_type(c.admin, "tick")
            if not is_prefix:
                call(c.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 2)
        settle(made, links)
        publish(a.admin, "tick", 3)
        settle(made, links)
        assert [n for _, n in received(c, "all")] == [2, 3]


def test_a_filter_that_is_kept_until_a_wider_one_is_in_force_holds_up_no_answer(brokers: Brokers) -> None:
    """It went with the old type, and nobody tells it again: the wider one stands for it."""
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        call(c.admin, "subscribe", "some", "tick", filter="n >= 2", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 2)
        settle(made, links)
        call(c.admin, "subscribe", "all", "tick", scope="global")
        # The wider filter has been told, and is in force nowhere yet.
        links[1].back.move()
        call(b.admin, "drop_event_type", "tick", True)
        make_type(b.admin, "tick")
        settle(made, links)
        publish(a.admin, "tick", 3)
        settle(made, links)
        assert [n for _, n in received(c, "some")] == [2, 3]
        assert [n for _, n in received(c, "all")] == [3]
