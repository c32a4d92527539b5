from __future__ import annotations

import pytest

from pgps_worker.pace import CONFIRM, SAFETY, Pace, confirm


def publish_at(rate: float, *, took: float = 0.0005) -> Pace:
    """A pace that has seen batches `rate` times a second, each of which took `took` seconds, until time 1."""
    pace = Pace()
    for number in range(1, int(rate) + 1):
        pace.note(1, began=number / rate - took, ended=number / rate)
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


@pytest.mark.parametrize("rate", [10, 40, 100])
def test_slow_batches_with_hardly_a_pause_keep_it_awake(rate: int) -> None:
    assert publish_at(rate, took=0.9 / rate).is_busy(1.0)


@pytest.mark.parametrize("rate", [10, 40, 100])
def test_slow_batches_with_pauses_do_not(rate: int) -> None:
    assert not publish_at(rate, took=0.2 / rate).is_busy(1.0)


def test_it_is_not_calm_while_a_pause_is_shorter_than_its_batches() -> None:
    pace = publish_at(10, took=0.09)
    assert not pace.is_calm(1.15)
    assert pace.is_calm(1.25)


def test_it_is_not_busy_for_long_after_the_last_event() -> None:
    pace = publish_at(1000)
    assert not pace.is_busy(1.1)
    assert pace.is_calm(1.1)


def test_looks_that_find_nothing_do_not_count() -> None:
    pace = Pace()
    for number in range(1000):
        pace.note(0, began=number / 1000, ended=number / 1000)
    assert not pace.is_busy(1.0)
    assert pace.is_calm(1.0)


def test_it_lingers_for_as_long_as_a_batch_takes() -> None:
    assert 0 < Pace().linger() < 0.001
    assert publish_at(100, took=0.002).linger() == pytest.approx(0.002)
    assert publish_at(10, took=0.05).linger() == pytest.approx(0.01)


def test_it_lets_more_events_gather_the_more_there_are() -> None:
    pace = Pace()
    lingers = []
    for number in range(1, 61):
        pace.note(number, began=number / 100 - 0.001, ended=number / 100)
        lingers.append(pace.linger())
    assert lingers == sorted(lingers)
    assert lingers[0] == pytest.approx(0.001)
    assert 0.001 < lingers[9] < lingers[-1] == pytest.approx(0.01)


def test_it_looks_again_soon_behind_a_large_batch_and_later_behind_a_small_one() -> None:
    assert confirm(0) == SAFETY
    assert confirm(10_000) == CONFIRM
    assert CONFIRM < confirm(1) < SAFETY
