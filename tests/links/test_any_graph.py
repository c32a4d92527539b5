"""Random graphs with redundant links, while links are cut and subscriptions come and go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.links.dropping import DroppingNetwork
from tests.links.model import Network, play
from tests.links.rig import Broker

Brokers = Callable[[int], list[Broker]]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_trees_deliver_every_origins_events_once_and_in_order(brokers: Brokers, seed: int) -> None:
    assert play(Network(brokers(3), seed, redundant=0), 60) > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [25, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
def test_rings_and_meshes_deliver_every_origins_events_once_and_in_order(brokers: Brokers, seed: int) -> None:
    assert play(Network(brokers(4), seed, redundant=2), 80) > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 24))])
def test_links_that_are_dropped_at_any_moment_go_and_nothing_is_lost(brokers: Brokers, seed: int) -> None:
    assert play(DroppingNetwork(brokers(4), seed, redundant=3), 150) > 0
