"""What a runner makes of a turn that goes wrong outside of the callback, and what that says of the worker."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import psycopg
import pytest

from pgps_worker.agenda import Agenda, Outcome, Result, Turn
from pgps_worker.calls import Pending
from pgps_worker.config import WorkerConfig
from pgps_worker.connection import Connection
from pgps_worker.runner import Runner
from pgps_worker.vitals import Vitals

pytestmark = pytest.mark.anyio


class Session:
    """A connection that can be closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


async def take(agenda: Agenda) -> Turn:
    turn = await asyncio.wait_for(agenda.take(), 1)
    assert turn is not None
    return turn


@pytest.mark.parametrize("error", [psycopg.errors.UndefinedFunction("gone"), psycopg.OperationalError("lost")])
async def test_what_fails_outside_of_the_callback_is_tried_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, error: psycopg.Error
) -> None:
    now = 100.0
    agenda = Agenda(slots=2, patience=30.0, clock=lambda: now)
    runner = Runner(WorkerConfig(dsn=""), agenda, Vitals(), 1)

    async def fail(*_: Any) -> Result:
        raise error

    monkeypatch.setattr(Runner, "_serve", fail)
    pending = Pending("a", 0)
    agenda.offer([pending])
    for pause in (0.25, 0.5):
        session = Session()
        await runner._turn(cast(Connection, session), await take(agenda))
        assert session.closed
        assert agenda.idle, "it is not entered again at once"
        now += pause * 0.9
        agenda.offer([pending])
        assert agenda.idle
        now += pause * 0.2
        agenda.offer([pending])
        assert not agenda.idle


async def test_a_verdict_outlives_a_session_that_was_lost_before_it_was_filed() -> None:
    now = 100.0
    agenda = Agenda(slots=2, patience=30.0, clock=lambda: now)
    pending = Pending("a", 0)
    agenda.offer([pending])
    agenda.done(await take(agenda), Result(Outcome.HUNG))
    agenda.done(await take(agenda), Result(Outcome.HUNG, event=7))
    for _ in range(2):
        now += 60
        agenda.offer([pending])
        turn = await take(agenda)
        assert turn.verdict is not None
        assert turn.verdict.event == 7
        agenda.done(turn, Result(Outcome.UNSERVED))


async def test_a_reporter_that_is_down_makes_no_worker_ill() -> None:
    vitals = Vitals()
    vitals.down("reporter", "statement timeout")
    assert not vitals.is_healthy, "nothing else is up yet"
    vitals.up("dispatcher")
    seen = [vitals.is_healthy]
    vitals.down("dispatcher", "gone")
    assert [*seen, vitals.is_healthy] == [True, False]
