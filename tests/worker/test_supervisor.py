from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from pgps_worker import supervisor
from pgps_worker.stop import Stop
from pgps_worker.supervisor import Supervisor
from pgps_worker.vitals import Vitals

pytestmark = pytest.mark.anyio


@dataclass
class Scripted:
    """A service that does what the test says."""

    name: str
    run: Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture
async def stop() -> Stop:
    return Stop()


@pytest.fixture
def vitals() -> Vitals:
    return Vitals()


@pytest.mark.parametrize("error", [psycopg.OperationalError("gone"), OSError("gone"), RuntimeError("a mistake")])
async def test_a_service_that_fails_is_started_again(stop: Stop, vitals: Vitals, error: Exception) -> None:
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise error
        vitals.up("s")
        stop.request()

    await asyncio.wait_for(Supervisor(stop, vitals).run([Scripted("s", run)]), 60)
    assert runs == 3
    assert vitals.service_restarts == 2
    assert vitals.is_healthy


async def test_the_failure_of_one_does_not_disturb_another(stop: Stop, vitals: Vitals) -> None:
    failed_again = asyncio.Event()

    async def fail() -> None:
        if vitals.service_restarts > 1:
            failed_again.set()
        raise OSError("down")

    async def serve() -> None:
        await stop.wait()
        vitals.up("served")

    group = asyncio.create_task(Supervisor(stop, vitals).run([Scripted("failing", fail), Scripted("serving", serve)]))
    await asyncio.wait_for(failed_again.wait(), 60)
    assert not vitals.is_healthy
    stop.request()
    await asyncio.wait_for(group, 60)
    assert "served" in vitals.services


async def test_a_request_to_stop_ends_a_pause_and_starts_nothing(
    stop: Stop, vitals: Vitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_BACKOFF", lambda state: 600.0 if state.attempt_number > 3 else 0.0)
    runs = 0
    failing = asyncio.Event()

    async def fail() -> None:
        nonlocal runs
        runs += 1
        if runs == 4:
            failing.set()
        raise OSError("down")

    kept = asyncio.create_task(Supervisor(stop, vitals).keep(Scripted("s", fail)))
    await asyncio.wait_for(failing.wait(), 60)
    stop.request()
    await asyncio.wait_for(kept, 60)
    assert runs == 4


async def test_cancelling_is_not_a_failure(stop: Stop, vitals: Vitals) -> None:
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    kept = asyncio.create_task(Supervisor(stop, vitals).keep(Scripted("s", hang)))
    await started.wait()
    kept.cancel()
    with pytest.raises(asyncio.CancelledError):
        await kept
    assert vitals.service_restarts == 0


async def test_a_database_without_pgps_is_reported_with_the_remedy(
    stop: Stop, vitals: Vitals, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        if vitals.service_restarts:
            stop.request()
            return
        raise psycopg.errors.InvalidSchemaName("schema pgps does not exist")

    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(Supervisor(stop, vitals).keep(Scripted("s", run)), 60)
    assert "pgps install" in caplog.text


async def test_a_wait_is_cut_short_by_the_request_and_by_nothing_else(stop: Stop) -> None:
    async with stop.cuts_short():
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError, match="not ours"):
        async with stop.cuts_short():
            raise TimeoutError("not ours")
    asyncio.get_running_loop().call_soon(stop.request)
    async with asyncio.timeout(60), stop.cuts_short():
        await asyncio.Event().wait()
    async with asyncio.timeout(60), stop.cuts_short():
        await asyncio.Event().wait()


async def test_who_asks_to_be_called_back_late_is_called_at_once_and_behind_its_block_not_at_all(stop: Stop) -> None:
    calls: list[str] = []
    with stop.calls(lambda: calls.append("before")):
        pass
    with stop.calls(lambda: calls.append("meanwhile")):
        stop.request()
        assert calls == ["meanwhile"]
    stop.then(lambda: calls.append("late"))
    with stop.calls(lambda: calls.append("later")):
        assert calls == ["meanwhile", "late", "later"]


async def test_a_second_request_calls_back_no_more(stop: Stop) -> None:
    calls: list[str] = []
    stop.then(lambda: calls.append("stopped"))
    stop.request()
    stop.request()
    assert calls == ["stopped"]
    assert stop.requested
