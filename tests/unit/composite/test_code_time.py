"""How long the code of owners may take in a step, and who is slow when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from composite import codetime
from composite.codetime import AT_LEAST, CodeTime


class Clock:
    """The clock that the time of code is measured with."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(codetime, "monotonic", clock)
    return clock


def job(owner: int) -> dict[str, Any]:
    return {"owner": owner, "composite_id": 10 * owner, "limit": 60.0}


def spend(time: CodeTime, clock: Clock, owner: int, seconds: float) -> list[int]:
    """Have the code of an owner take a time; return whose composite events are slow if that was too long."""
    with time.of(job(owner), 1) as end:
        assert end is not None
        late = end <= clock.now + seconds
        clock.now = end if late else clock.now + seconds
        return time.slowest() if late else []


def test_the_code_of_all_owners_has_a_second(clock: Clock) -> None:
    time = CodeTime(1.0, "quick")
    assert spend(time, clock, 1, 0.5) == []
    assert spend(time, clock, 2, 0.02) == []
    assert spend(time, clock, 1, 0.2) == []
    assert spend(time, clock, 3, 0.9) == [10, 30]
    assert 101.0 <= clock.now < 101.01


def test_who_needs_little_is_not_slow_when_others_have_taken_the_second(clock: Clock) -> None:
    time = CodeTime(1.0, "quick")
    assert spend(time, clock, 1, 0.999) == []
    for owner in range(2, 100):
        assert spend(time, clock, owner, 0.9 * AT_LEAST) == []
    assert spend(time, clock, 2, 0.2 * AT_LEAST) == [10, 20]


def test_in_a_step_of_its_own_an_owner_is_not_measured_by_others(clock: Clock) -> None:
    time = CodeTime(10.0, "slow")
    for owner in range(1, 20):
        assert spend(time, clock, owner, 9.0) == []
    assert spend(time, clock, 1, 2.0) != []
    with CodeTime(None).of(job(1), 1000) as end:
        assert end == clock.now + 61.0
