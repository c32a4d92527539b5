"""A flood of notifications has nobody look without a pause, and loses nothing."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from pgps_worker.config import WorkerConfig
from pgps_worker.damping import FLOOD, Damper
from pgps_worker.ears import Ear
from tests.worker.test_ears import LONG, config, listening

__all__ = ["config"]

pytestmark = pytest.mark.anyio


class Bells:
    """What a damper has rung, by a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rung: list[str] = []
        self.changed = asyncio.Event()
        self.damper = Damper(self._ring, clock=lambda: self.now)

    def _ring(self, channel: str) -> None:
        self.rung.append(channel)
        self.changed.set()

    async def late(self) -> list[str]:
        """Wait for the next ring, and return all since the last call."""
        await asyncio.wait_for(self.changed.wait(), LONG)
        return self.taken()

    def taken(self) -> list[str]:
        rung, self.rung = self.rung, []
        self.changed.clear()
        return rung


async def test_a_channel_that_is_flooded_is_rung_now_and_then_and_all_others_at_once() -> None:
    bells = Bells()
    for _ in range(5 * FLOOD):
        bells.damper.note("flooded")
    bells.damper.note("other")
    assert bells.taken() == ["flooded"] * FLOOD + ["other"]
    assert await bells.late() == ["flooded"], "once for all that came"
    bells.damper.note("flooded")
    assert bells.taken() == []
    assert await bells.late() == ["flooded"], "the last one is not lost"
    # The flood goes on in the next second, and ends in the one behind it.
    bells.now = 2.0
    for _ in range(5 * FLOOD):
        bells.damper.note("flooded")
    assert bells.taken() == []
    assert await bells.late() == ["flooded"]
    bells.now = 4.0
    bells.damper.note("flooded")
    assert await bells.late() == ["flooded"]
    bells.now = 6.0
    bells.damper.note("flooded")
    assert bells.taken() == ["flooded"]
    bells.damper.close()


async def test_a_login_that_floods_a_channel_of_a_worker_has_nobody_look_without_a_pause(
    config: WorkerConfig, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung, waits = 0, False
    ring, note = Ear.ring, Damper.note

    def counted(ear: Ear, channel: str) -> None:
        nonlocal rung, waits
        rung += 1
        waits = waits and channel != "ears_flood"
        ring(ear, channel)

    def noted(damper: Damper, channel: str) -> None:
        nonlocal waits
        waits = waits or channel == "ears_flood"
        # All come in one second, however long it takes to read them.
        damper._since = time.monotonic()
        note(damper, channel)

    monkeypatch.setattr(Ear, "ring", counted)
    monkeypatch.setattr(Damper, "note", noted)
    async with listening(config) as (ears, stop):
        with ears.hear("ears_flood") as ear, ears.hear("ears_end") as end:
            assert await ear.heard(LONG, stop=stop) == {"ears_flood"}
            assert await end.heard(LONG, stop=stop) == {"ears_end"}
            admin.execute(f"select pg_notify('ears_flood', n::text) from generate_series(1, {10 * FLOOD}) n")
            admin.execute("notify ears_end")
            # They come in order.
            assert await end.heard(LONG, stop=stop) == {"ears_end"}
            assert rung < 2 * FLOOD
            assert await ear.heard(LONG, stop=stop) == {"ears_flood"}
            # Unless they have been rung for already, where they were read in several parts.
            while waits:
                assert await ear.heard(LONG, stop=stop) == {"ears_flood"}, "the last ones, together"
