"""What a session has detected it dispatches itself, without waking the leader; else the leader is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fix_broker import call, make_type, numbers, publish, rows, value
from tests.sql.dispatch.asleep import sleep_on

if TYPE_CHECKING:
    from tests.fix_db import Connect

DETECT = "select steps from pgps.detect_share()"
DISPATCH = "select pgps.dispatch_detected()"


class Stage:
    """A broker whose leader sleeps, somebody who hears how it is woken, and a session that detects."""

    def __init__(self, connect: Connect, dsn: str) -> None:
        self.leader, self.ear, self.detector = (connect(dsn=dsn) for _ in range(3))
        make_type(self.leader, "a")
        call(self.leader, "create_composite_event", "each", "a", attributes="n int = a.n")
        call(self.leader, "subscribe", "s", "each")
        assert value(self.leader, "select pgps.try_lead()")
        sleep_on(self.leader)
        rows(self.ear, "listen pgps_dispatch")
        rows(self.detector, "set pgps.dispatches = itself")

    def publish(self, *given: int) -> None:
        """Publish and dispatch events, of which the leader is told once."""
        publish(self.leader, "a", *given)
        assert self.told() == 1
        assert value(self.leader, "select pgps.dispatch_batch()") == len(given)

    def told(self) -> int:
        """Return how often the leader was woken since the last call."""
        # What was sent before is there when the answer is.
        found = [*self.ear.notifies(timeout=0)]
        rows(self.ear, "select")
        return len(found) + len([*self.ear.notifies(timeout=0)])


@pytest.fixture
def stage(connect: Connect, own_database: str) -> Stage:
    return Stage(connect, own_database)


def test_what_was_detected_is_dispatched_without_the_leader(stage: Stage) -> None:
    stage.publish(1, 2)
    assert value(stage.detector, DISPATCH) == 0
    assert value(stage.detector, DETECT) == 1
    assert value(stage.detector, DISPATCH) == 2
    assert stage.told() == 0
    assert numbers(stage.leader, "s") == [1, 2]
    assert value(stage.detector, DISPATCH) == 0
    stage.publish(3)
    assert value(stage.detector, DETECT) == 1
    assert value(stage.detector, DISPATCH) == 1
    assert value(stage.leader, "select pgps.dispatch_batch()") == 0
    assert numbers(stage.leader, "s") == [1, 2, 3]


def test_a_session_that_does_not_say_so_has_the_leader_dispatch(stage: Stage) -> None:
    rows(stage.detector, "reset pgps.dispatches")
    stage.publish(1)
    assert value(stage.detector, DETECT) == 1
    assert stage.told() == 1
    assert value(stage.detector, DISPATCH) == 0
    assert value(stage.leader, "select pgps.dispatch_batch()") == 1


def test_much_is_left_to_the_leader(stage: Stage) -> None:
    stage.publish(*range(101))
    assert value(stage.detector, DETECT) == 1
    assert stage.told() == 1
    assert value(stage.detector, DISPATCH) == 0
    assert value(stage.leader, "select pgps.dispatch_batch()") == 101


def test_what_is_rolled_back_is_not_due(stage: Stage) -> None:
    stage.publish(1)
    with stage.detector.transaction(force_rollback=True):
        assert value(stage.detector, DETECT) == 1
    assert value(stage.detector, DISPATCH) == 0
    assert value(stage.detector, "show pgps.dispatches") == "itself"
    assert value(stage.detector, DETECT) == 1
    assert value(stage.detector, DISPATCH) == 1


def test_who_detects_does_not_wait_for_who_dispatches_much(stage: Stage, connect: Connect) -> None:
    stage.publish(1)
    assert value(stage.detector, DETECT) == 1
    rows(stage.detector, "set lock_timeout = '1min'")
    with stage.leader.transaction():
        rows(stage.leader, "lock table only pgps_internal.batch in share row exclusive mode")
        assert value(stage.detector, DISPATCH) == 0
        assert stage.told() == 1
    assert value(stage.detector, "show lock_timeout") == "1min"
    assert value(stage.leader, "select pgps.dispatch_batch()") == 1
    assert value(stage.detector, DISPATCH) == 0


def test_a_dispatch_that_fails_is_still_due(stage: Stage) -> None:
    stage.publish(1)
    assert value(stage.detector, DETECT) == 1
    rows(stage.leader, "alter table pgps_internal.setting rename to setting_gone")
    with pytest.raises(psycopg.errors.UndefinedTable):
        rows(stage.detector, DISPATCH)
    rows(stage.leader, "alter table pgps_internal.setting_gone rename to setting")
    assert value(stage.detector, DISPATCH) == 1


def test_of_what_does_not_fit_into_the_batch_the_leader_is_told(stage: Stage) -> None:
    stage.publish(1)
    assert value(stage.detector, DETECT) == 1
    publish(stage.leader, "a", *range(200))
    assert stage.told() == 1
    assert value(stage.detector, DISPATCH) == 201
    assert stage.told() == 1
