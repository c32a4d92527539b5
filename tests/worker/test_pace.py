from __future__ import annotations

import pytest

from pgps_worker.pace import CONFIRM, SAFETY, Pace, Round, confirm


def publish_at(rate: float, *, took: float = 0.0005) -> Pace:
    """A pace that has seen batches `rate` times a second, each of which took `took` seconds, until time 1."""
    pace = Pace()
    for number in range(1, int(rate) + 1):
        pace.note(Round(number / rate - took, number / rate, 1))
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


def test_commits_that_one_batch_found_together_keep_it_awake() -> None:
    pace = Pace()
    pace.note(Round(0.000, 0.005, 1))
    assert not pace.is_busy(0.005)
    pace.note(Round(0.005, 0.015, 12, commits=12))
    assert pace.is_busy(0.015)


def test_one_commit_of_many_events_does_not() -> None:
    pace = Pace()
    pace.note(Round(0.000, 0.005, 10_000))
    assert not pace.is_busy(0.005)


def test_it_lingers_for_as_long_as_a_batch_takes() -> None:
    assert 0 < Pace().linger() < 0.001
    assert publish_at(100, took=0.002).linger() == pytest.approx(0.002)
    assert publish_at(10, took=0.05).linger() == pytest.approx(0.01)


def test_it_lets_more_events_gather_the_more_there_are() -> None:
    pace = Pace()
    lingers = []
    for number in range(1, 61):
        pace.note(Round(number / 100 - 0.001, number / 100, number))
        lingers.append(pace.linger())
    assert lingers == sorted(lingers)
    assert lingers[0] == pytest.approx(0.001)
    assert 0.001 < lingers[9] < 0.01 < lingers[-1] == pytest.approx(0.0226)


def single_events(rate: int, *, every: float = 0.01, cores: int = 2) -> float:
    """How long it lingers when so many single events a second come, in batches of a millisecond."""
    pace = Pace(cores)
    for number in range(1, 31):
        pace.note(Round(number * every - 0.001, number * every, int(rate * every)))
    return pace.linger()


def test_where_very_many_single_events_come_they_gather_for_longer() -> None:
    lingers = [single_events(rate) for rate in (1_000, 2_500, 5_000, 10_000, 50_000)]
    assert lingers == sorted(lingers)
    assert single_events(2_500) == pytest.approx(0.01)
    assert single_events(5_000) == pytest.approx(0.02)
    assert single_events(50_000) == pytest.approx(0.05)
    assert single_events(10_000, cores=16) == pytest.approx(0.01)


def test_large_batches_are_followed_by_the_next_as_soon_as_before() -> None:
    assert single_events(1_000_000) == pytest.approx(0.01)


def test_it_looks_again_soon_behind_a_large_batch_and_later_behind_a_small_one() -> None:
    assert confirm(0) == SAFETY
    assert confirm(10_000) == CONFIRM
    assert CONFIRM < confirm(1) < SAFETY


def woken_by_each_batch(woken: int, *, cores: int = 2) -> float:
    """How long it lingers when each batch of twenty events wakes so many subscriptions."""
    pace = Pace(cores)
    for number in range(8):
        pace.note(Round(number, number + 0.001, 20, woken))
    return pace.linger()


def test_the_more_subscriptions_a_batch_wakes_the_more_events_gather() -> None:
    lingers = [woken_by_each_batch(woken) for woken in (1, 2, 5, 10, 20, 40)]
    assert lingers == sorted(lingers)
    assert woken_by_each_batch(1) == woken_by_each_batch(0) < 0.01 < woken_by_each_batch(10) < 0.06
    assert woken_by_each_batch(100_000) == pytest.approx(0.25)


def test_where_there_are_more_processors_fewer_gather() -> None:
    assert woken_by_each_batch(10, cores=16) < 0.01 < woken_by_each_batch(10, cores=4) < woken_by_each_batch(10)
