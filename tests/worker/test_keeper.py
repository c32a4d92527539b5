from __future__ import annotations

import asyncio

import psycopg
import pytest

from pgps_worker.config import WorkerConfig
from pgps_worker.ears import Ears
from pgps_worker.links.calls import LinkRow
from pgps_worker.links.keeper import Keeper
from pgps_worker.stop import Stop
from pgps_worker.vitals import Vitals

pytestmark = pytest.mark.anyio


async def test_a_keeper_whose_statement_fails_while_it_is_cancelled_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def serve(_: Keeper) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # So psycopg does it when the server's answer is an error by then.
            raise psycopg.errors.ObjectNotInPrerequisiteState("dropped") from None

    monkeypatch.setattr(Keeper, "_serve", serve)
    stop = Stop()
    keeper = Keeper(WorkerConfig(dsn="dbname=none"), LinkRow("one", "dbname=other"), stop, Vitals(), Ears())
    task = asyncio.create_task(keeper.run())
    await begun.wait()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=60)
    stop.request()
    assert done, "it begins again instead"
    assert task.cancelled()
