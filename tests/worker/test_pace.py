from __future__ import annotations

import pytest

from pgps_worker.pace import Pace


def publish_at(rate: float, *, seconds: float = 1.0, each: int = 1) -> Pace:
    """A pace that has seen one batch of `each` events `rate` times a second."""
    pace = Pace()
    for number in range(int(rate * seconds)):
        pace.note(each, number / rate)
    return pace


def test_at_first_it_is_calm_and_not_busy() -> None:
    assert Pace().is_calm(0.0)
    assert not Pace().is_busy(0.0)


@pytest.mark.parametrize("rate", [1, 10, 100, 300])
def test_few_commits_do_not_keep_it_awake(rate: int) -> None:
    assert not publish_at(rate).is_busy(1.0)


@pytest.mark.parametrize("rate", [500, 1000, 5000])
def test_many_commits_keep_it_awake(rate: int) -> None:
    assert publish_at(rate).is_busy(1.0)


def test_a_burst_in_few_batches_keeps_it_awake() -> None:
    pace = Pace()
    pace.note(5000, 1.0)
    assert pace.is_busy(1.001)


def test_it_is_not_busy_for_long_after_the_last_event() -> None:
    pace = publish_at(1000)
    assert not pace.is_busy(1.1)
    assert pace.is_calm(1.1)


def test_looks_that_find_nothing_do_not_count() -> None:
    pace = Pace()
    for number in range(1000):
        pace.note(0, number / 1000)
    assert not pace.is_busy(1.0)
    assert pace.is_calm(1.0)


def test_it_lingers_less_when_there_were_events() -> None:
    assert 0 < Pace().linger(1) <= Pace().linger(0) < 0.01
