"""The model of large overlays (`bench/overlay`) has the rows that real brokers have."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bench.overlay.filters import Filters
from bench.overlay.graphs import Overlay, hubs, meshed
from bench.overlay.routes import Routes, Rows, offers
from tests.fix_broker import call, make_type, rows, value
from tests.links.rig import Broker, linked, settle

Brokers = Callable[[int], list[Broker]]

FILTERS = Filters(symbols=4, limits=3, share_of_all=0.02)
ROWS = """
    select (select count(*) from pgps_internal.offer), (select count(*) from pgps_internal.wanted),
        (select count(*) from pgps_internal.attached), (select count(*) from pgps_internal.activation),
        (select count(*) from pgps_internal.told where kind = 'sub'),
        (select count(*) from pgps_internal.told where kind = 'attach'),
        (select count(*) from pgps_internal.told where kind = 'active'), (select count(*) from pgps_internal.cover)
"""


def _text(key: int) -> str | None:
    if key == FILTERS.count - 1:
        return None
    return f"symbol = 's{key // FILTERS.limits}' and price > {key % FILTERS.limits}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("overlay", "publishers"),
    [(hubs(8, 2), range(8)), (hubs(8, 3), [4, 6]), (meshed(hubs(6, 2), 2, seed=3), range(6))],
    ids=["tree", "two-publishers", "mesh"],
)
def test_the_model_has_the_rows_that_brokers_have(brokers: Brokers, overlay: Overlay, publishers: list[int]) -> None:
    # By number as by uuid, since that decides between ways of the same length.
    made = sorted(brokers(overlay.size), key=lambda broker: str(broker.identity()["broker"]))
    for number in publishers:
        make_type(made[number].admin, "quote", "symbol text, price integer")
    own = FILTERS.draw(overlay.size, 5 * overlay.size, np.random.default_rng(7))
    with linked([(made[one], made[other]) for one, other in overlay.links()]) as links:
        settle(made, links, rounds=200)
        for number, broker in enumerate(made):
            for key in np.flatnonzero(own[number]).tolist():
                call(broker.admin, "subscribe", f"s{key}", "quote", filter=_text(key), scope="global")
        settle(made, links, rounds=200)
        parents = _parents(overlay, made)
        for origin, found in parents.items():
            _check_hops(overlay, origin, found)
        routes = Routes(overlay, FILTERS, own, {origin: parents[origin] for origin in publishers})
        offered = np.sum([offers(overlay, origin, found) for origin, found in parents.items()], axis=0)
        got = [Rows(*rows(broker.admin, ROWS)[0]) for broker in made]
        want = [routes.rows(number, int(offered[number])) for number in range(overlay.size)]
        assert [replace(each, cover=0) for each in got] == [replace(each, cover=0) for each in want]
        # Filters are kept that were wanted for a moment, before what implies them had come.
        assert all(one.cover >= other.cover for one, other in zip(got, want, strict=True))
        # One more subscription, and one event for it, cost as many messages as the model says.
        there, key = 5, int(np.flatnonzero(~own[5])[0])
        told = routes.subscribed(there, key)
        before = np.sum([_sent(broker) for broker in made], axis=0)
        call(made[there].admin, "subscribe", "one_more", "quote", filter=_text(key), scope="global")
        settle(made, links, rounds=200)
        assert (np.sum([_sent(broker) for broker in made], axis=0) - before).tolist()[:2] == list(told)
        own[there, key] = True
        routes = Routes(overlay, FILTERS, own, {origin: parents[origin] for origin in publishers})
        at = random.Random(5).choice(list(publishers))
        before = np.sum([_sent(broker) for broker in made], axis=0)
        rows(made[at].admin, "insert into pgps_event.quote values (%s, %s)", ["s1", 2])
        settle(made, links, rounds=200)
        crossed = (np.sum([_sent(broker) for broker in made], axis=0) - before).tolist()
        assert crossed == [0, 0, routes.hops(at, FILTERS.matching(1, 1))]


def _parents(overlay: Overlay, made: list[Broker]) -> dict[int, list[int]]:
    numbers = {str(broker.identity()["broker"]): number for number, broker in enumerate(made)}
    found = {number: [-1] * overlay.size for number in range(overlay.size)}
    query = "select o.broker_id::text, n.broker_id::text from pgps_internal.origin o"
    query += " join pgps_internal.neighbour n on n.neighbour_id = o.parent"
    for number, broker in enumerate(made):
        for origin, parent in rows(broker.admin, query):
            found[numbers[origin]][number] = numbers[parent]
    return found


def _check_hops(overlay: Overlay, origin: int, found: list[int]) -> None:
    overlay.parents(origin)
    hops = overlay.depth[origin]
    assert [hops[parent] + 1 for parent in found if parent >= 0] == [h for n, h in enumerate(hops) if n != origin]


def _sent(broker: Broker) -> list[int]:
    """Return how many filters, answers and events a broker has sent."""
    query = "select count(*) from pgps_internal.shipment where kind = %s"
    events = value(broker.admin, "select coalesce(sum(events), 0)::bigint from pgps_internal.shipment")
    return [*(value(broker.admin, query, [kind]) for kind in ("sub", "active")), events]
