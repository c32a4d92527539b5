"""Items of one batch of their origin that a broker on the way dispatches in several batches of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fix_broker import call, make_type, publish, rows, value
from tests.links.rig import Broker, linked, received, settle

Brokers = Callable[[int], list[Broker]]


@pytest.mark.parametrize("is_set_aside", [False, True])
def test_an_item_arrives_whole_when_it_is_dispatched_in_parts_on_the_way(brokers: Brokers, is_set_aside: bool) -> None:
    """What the middle one publishes itself shifts its event ids, so that it cuts elsewhere than the origin does."""
    a, b, c = made = brokers(3)
    for broker in made:
        call(broker.admin, "configure", "max_part_events", "50")
        call(broker.admin, "configure", "max_batch_events", "100")
    for broker, kind in ((a, "tick"), (a, "tock"), (b, "local")):
        make_type(broker.admin, kind)
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        call(c.admin, "subscribe", "far", "t*", scope="global")
        call(b.admin, "subscribe", "third", "tick", filter="n % 3 = 0", scope="global")
        publish(b.admin, "local", *range(7))
        settle(made, links)
        publish(a.admin, "tick", -1)
        settle(made, links)
        got: list[tuple[str, int]] = []
        if is_set_aside:
            type_id = value(b.admin, "select type_id from pgps_internal.event_type where name = 'tock'")
            rows(b.admin, f"alter function pgps_internal.part_ids_{type_id} rename to part_ids_of_old")
        with a.admin.transaction():
            publish(a.admin, "tick", *range(130))
            publish(a.admin, "tock", *range(130, 270))
            publish(a.admin, "tick", *range(270, 400))
        publish(a.admin, "tick", 400)
        if is_set_aside:
            settle(made, links)
            got += received(c, "far")
            assert 130 not in [n for _, n in got]
            call(b.admin, "resume_event_type", "tock")
        settle(made, links)
        got += received(c, "far")
        assert [n for _, n in got] == list(range(-1, 401))
        assert [n for _, n in received(b, "third")] == [n for n in range(0, 401, 3) if not 130 <= n < 270]
