"""Random networks in which promises, types, filters and links come and go: nothing that must arrive is missing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.links.promises import Story, play
from tests.links.rig import Broker

Brokers = Callable[[int], list[Broker]]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 41))])
def test_what_is_promised_without_a_break_arrives_once_and_in_order(brokers: Brokers, seed: int) -> None:
    story = Story(brokers(3 + seed % 4), seed, chords=seed % 2)
    assert play(story, steps=80, rests=2) > 0
