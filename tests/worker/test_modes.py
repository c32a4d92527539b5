"""Loops that are always in one of a few modes: the tables of their ways, and the leader going through its own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

import pytest

from pgps_worker import calls, dispatcher
from pgps_worker.calls import Batch
from pgps_worker.dispatcher import LEADING, Leading
from pgps_worker.links.pump import CARRYING, Carrying
from pgps_worker.modes import Modes
from pgps_worker.pace import Pace
from pgps_worker.vitals import Vitals

_NOTHING = Batch(0, 0, 0)


@pytest.mark.parametrize(("kind", "ways"), [(Leading, LEADING), (Carrying, CARRYING)])
def test_every_mode_is_reached_and_left_and_nothing_else_is_done(
    kind: type[Enum], ways: Mapping[Enum, Mapping[Enum, str]]
) -> None:
    assert set(ways) == set(kind), "the table has every mode"
    first = next(iter(kind))
    reached, found = {first}, [first]
    while found:
        for following in ways[found.pop()]:
            if following not in reached:
                reached.add(following)
                found.append(following)
    assert reached == set(kind)
    for before in kind:
        assert ways[before], "none is the end: the loop ends from outside"
        for after in kind:
            modes = Modes(before, ways)
            if after in ways[before] or after is before:
                modes.to(after)
                assert modes.now is after
            else:
                with pytest.raises(ValueError, match=f"{before.name} is not followed by {after.name}"):
                    modes.to(after)


class Scene:
    """The leader's wire and its broker, as a script says: what each call returns, and when it is interrupted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, leads: bool = True, rings: bool = False) -> None:
        self.interrupted = False
        self.trail: list[Leading] = []
        self.calls: list[str] = []
        self.events = 0
        self.vitals = Vitals(events_dispatched=7)
        self.rings = rings
        scene = self

        class Watched(Modes[Leading]):
            def to(self, following: Leading) -> None:
                super().to(following)
                scene.trail.append(following)

        monkeypatch.setattr(dispatcher, "Modes", Watched)
        for name, answer in (
            ("try_lead", True),
            ("dispatch", _NOTHING),
            ("stay_awake_and_dispatch", (leads, _NOTHING)),
            ("fall_asleep_and_dispatch", ("", _NOTHING)),
            ("all_ended_and_dispatch", (not rings, _NOTHING)),
            ("is_told_awake", False),
        ):
            monkeypatch.setattr(calls, name, self._answers(name, answer))

    def _answers(self, name: str, answer: object) -> Any:
        def called(*_: object) -> object:
            self.calls.append(name)
            if self.calls.count(name) > 2:
                self.interrupted = True
            return answer

        return called

    def notified(self, _timeout: float) -> int:
        """Say that nothing comes, and is not going to; or that somebody has rung."""
        self.interrupted = self.interrupted or not self.rings
        return int(self.rings)

    def listen(self) -> bool:
        """Hear what comes."""
        return True

    def found(self, events: int) -> None:
        """Take note of events that were dispatched."""
        self.events += events

    def pause(self, _seconds: float) -> None:
        """Wait no time."""

    def lead(self) -> None:
        bell = cast("Any", self) if self.rings else None
        leader = dispatcher._Leader(cast("Any", self), self.vitals, Pace(), 10.0, bell, cast("Any", self))
        leader.lead()

    pid = 1


def test_when_nothing_comes_the_leader_falls_asleep_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.lead()
    assert scene.trail == [Leading.FALLING_ASLEEP, Leading.ASLEEP, Leading.ASLEEP]
    assert scene.calls[1:4] == ["stay_awake_and_dispatch", "fall_asleep_and_dispatch", "all_ended_and_dispatch"]


def test_who_rings_while_it_falls_asleep_has_it_awake_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, rings=True)
    scene.lead()
    assert scene.trail[:3] == [Leading.FALLING_ASLEEP, Leading.AWAKE, Leading.FALLING_ASLEEP]


def test_what_others_dispatch_in_this_worker_is_no_flood_of_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    look = calls.dispatch

    def dispatch(wire: Any) -> calls.Batch:
        scene.vitals.events_dispatched += 5
        return look(wire)

    monkeypatch.setattr(calls, "dispatch", dispatch)
    scene.lead()
    assert scene.events == 5 * scene.calls.count("dispatch") > 0


def test_a_leader_that_does_not_lead_tells_publishers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, leads=False)
    scene.lead()
    assert scene.trail[0] is Leading.ASLEEP
    assert "fall_asleep_and_dispatch" not in scene.calls


def test_a_leader_that_is_interrupted_awake_has_publishers_notify_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    stay_awake = calls.stay_awake_and_dispatch

    def interrupted(wire: Any) -> tuple[bool, Batch]:
        scene.interrupted = True
        return stay_awake(wire)

    monkeypatch.setattr(calls, "stay_awake_and_dispatch", interrupted)
    scene.lead()
    assert scene.trail == [Leading.FALLING_ASLEEP, Leading.ASLEEP]
