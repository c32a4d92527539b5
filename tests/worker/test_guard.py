"""The guard of a dispatcher goes on whatever happens to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import psycopg
import pytest

from pgps_worker import guard

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig
    from pgps_worker.wire import Wire


@dataclass
class Waiting:
    """A connection that has waited for an answer for a long time."""

    waited: float = 60.0


@pytest.mark.anyio
@pytest.mark.parametrize("error", [psycopg.OperationalError("no"), OSError("no file left"), AssertionError("none")])
async def test_it_looks_again_whatever_its_session_raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    tried = 0
    again = asyncio.Event()

    def connect(*_: object, **__: object) -> None:
        nonlocal tried
        tried += 1
        if tried == 2:
            again.set()
        raise error

    monkeypatch.setattr(guard, "connect", connect)
    monkeypatch.setattr(guard, "_LOOK", 0.0)
    async with guard.guarded(cast("WorkerConfig", None), "dispatcher", cast("Wire", Waiting())):
        await asyncio.wait_for(again.wait(), 30)
