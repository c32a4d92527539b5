"""Storms over linked brokers under load, as `make storm` tells them; and that what compares them sees what is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.links.fleet import Fleet, make_fleet
from tests.links.storm import auditing
from tests.links.storm.script import Script
from tests.links.storm.stories import STORIES
from tests.links.storm.tell import tell
from tests.links.storm.truth import Event, Finding, Subscription, Truth
from tests.links.storm.weather import random_script
from tests.links.storm.world import World


@pytest.fixture(scope="module")
def fleet(embedded_home: Path) -> Iterator[Fleet]:
    made = make_fleet(embedded_home, f"storm-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}", 3)
    yield made
    made.close()


SHORT = ["tree", "window"]
LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("behind", "turns", "types", "putback")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*SHORT, *LONG])
def test_every_subscription_has_its_complete_set_after_a_story(fleet: Fleet, name: str) -> None:
    verdict = tell(fleet, STORIES[name])
    assert verdict.is_clean, verdict.report()
    assert verdict.deliveries > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
def test_every_subscription_has_its_complete_set_after_a_random_storm(fleet: Fleet, seed: int) -> None:
    verdict = tell(fleet, random_script(seed))
    assert verdict.is_clean, verdict.report()
    assert verdict.deliveries > 0


def events(count: int, home: str = "a") -> list[Event]:
    return [Event(n, "tick", home, 1, n, n % 10, float(n)) for n in range(1, count + 1)]


def kinds(subscription: Subscription, truth: Truth) -> list[tuple[str, tuple[int, ...]]]:
    return sorted({(found.kind, found.ns) for found in truth.check(subscription)})


@pytest.fixture
def truth() -> Truth:
    """Ten events of broker a, in the order of their numbers."""
    made = Truth()
    made.note(events(10))
    made.note_order("a", list(range(1, 11)))
    return made


def subscription(*got: int, sure: bool = True, ended_at: float | None = None) -> Subscription:
    """A subscription at b to all events of a with m of 3 or more, that is to events 3 to 9."""
    made = Subscription("b", "s", "t*", "ge3", ended_at=ended_at, got=list(got))
    if sure:
        made.be_sure(["a"], ["tick"], 0.0)
    return made


def test_a_complete_set_is_right(truth: Truth) -> None:
    assert kinds(subscription(3, 4, 5, 6, 7, 8, 9), truth) == []


def test_what_is_missing_twice_unwanted_unknown_or_out_of_order_is_found(truth: Truth) -> None:
    assert kinds(subscription(3, 4, 7, 8, 9), truth) == [("missing", (5, 6))]
    assert kinds(subscription(4, 5, 6, 7, 8, 9), truth) == [("missing", (3,))]
    assert kinds(subscription(3, 4, 5, 6, 7, 8, 9, 9), truth) == [("twice", (9,))]
    assert kinds(subscription(2, 3, 4, 5, 6, 7, 8, 9), truth) == [("unwanted", (2,))]
    assert kinds(subscription(3, 4, 5, 6, 7, 8, 9, 77), truth) == [("unknown", (77,))]
    assert ("disorder", (5,)) in kinds(subscription(3, 4, 6, 5, 7, 8, 9), truth)


def test_a_subscription_that_came_later_has_everything_from_its_first_event_on(truth: Truth) -> None:
    assert kinds(subscription(5, 6, 7, 8, 9, sure=False), truth) == []
    assert kinds(subscription(5, 7, 8, 9, sure=False), truth) == [("missing", (6,))]
    assert kinds(subscription(5, 6, sure=False), truth) == [("missing", (7, 8, 9))]
    # Until it was ended: then to its last.
    assert kinds(subscription(5, 6, sure=False, ended_at=99.0), truth) == []
    assert kinds(subscription(5, 8, sure=False, ended_at=99.0), truth) == [("missing", (6, 7))]


def test_what_a_restored_broker_has_forgotten_may_be_missing_elsewhere_or_not(truth: Truth) -> None:
    truth.lost |= {5, 6}
    truth.begin_era("a")
    truth.note(Event(n, "tick", "a", 2, n, 5, float(n)) for n in (11, 12))
    truth.note_order("a", [1, 2, 3, 4, 7, 8, 9, 10, 11, 12])
    assert kinds(subscription(3, 4, 7, 8, 9, 11, 12), truth) == []
    assert kinds(subscription(3, 4, 5, 7, 8, 9, 11, 12), truth) == []
    assert kinds(subscription(3, 4, 7, 8, 9, 12), truth) == [("missing", (11,))]


def test_what_counts_as_of_the_new_epoch_may_come_before_what_is_of_the_former(truth: Truth) -> None:
    truth.note(Event(n, "tick", "a", 2, n, 5, float(n)) for n in (11, 12))
    truth.note_order("a", [11, 12])
    got = subscription(12, 3, 4, 5, 6, 7, 8, 9, 11)
    assert ("disorder", (3, 4, 5, 6, 7, 8, 9, 11)) in kinds(got, truth)
    truth.set_apart("a", {11, 12})
    assert kinds(got, truth) == [("disorder", (11,))]
    assert kinds(subscription(11, 12, 3, 4, 5, 6, 7, 8, 9), truth) == []
    assert kinds(subscription(3, 4, 5, 6, 7, 8, 9, 12), truth) == [("missing", (11,))]


def test_what_its_own_broker_hands_to_nobody_is_missing(truth: Truth) -> None:
    truth.note([Event(11, "tick", "a", 1, 11, 5, 11.0)])
    assert [(found.kind, found.ns) for found in truth.never_handed_out()] == [("missing", (11,))]


@pytest.mark.parametrize("seed", range(20))
def test_the_script_of_a_seed_is_always_the_same_and_can_be_read_again(seed: int) -> None:
    script = random_script(seed)
    assert random_script(seed) == script
    assert str(Script.parse(str(script))) == str(script)


ALARM = ("end", "count", "a", "a", "tick", 3, 9, 5, 3)


def judged(
    monkeypatch: pytest.MonkeyPatch, *alarms: tuple[object, ...], filter_: str = "any", lacks: tuple[int, ...] = ()
) -> list[str]:
    """What is said of broker b, which has these alarms, and whose subscription lacks some of broker a's events."""
    truth = Truth()
    truth.note(events(10))
    told = Subscription("b", "s", "t*", filter_)
    world = SimpleNamespace(members={"b": SimpleNamespace(admin=None)}, subscriptions=[told], truth=truth)
    monkeypatch.setattr(auditing, "rows", lambda connection, query: list(alarms))
    monkeypatch.setattr(auditing, "value", lambda connection, query: 0)
    found = [Finding("missing", "b", "s", "a", "tick", lacks)] if lacks else []
    return auditing.compare(cast(World, world), found)


def test_an_alarm_of_the_audit_for_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch) == []
    (said,) = judged(monkeypatch, ALARM)
    assert said.startswith("false alarm at b")
    assert judged(monkeypatch, ALARM, lacks=(4, 5)) == []


def test_a_loss_that_the_audit_claims_to_see_and_does_not_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = judged(monkeypatch, lacks=(4, 5))
    assert said == "the audit at b is blind: 2 of tick from a are missing for s"
    # Under a narrower filter it claims nothing, nor of what was published just now.
    assert judged(monkeypatch, filter_="ge3", lacks=(4, 5)) == []
    assert judged(monkeypatch, lacks=(10,)) == []
