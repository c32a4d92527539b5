"""One pass for cron: everything that waits is dispatched, run and reclaimed, then the worker leaves."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pgps_worker.agenda import Agenda
from pgps_worker.calls import Batch, dispatch, pending_subscribers, reclaim, wash
from pgps_worker.clients import calls
from pgps_worker.clients.requests import Requests
from pgps_worker.composites import detect_all
from pgps_worker.connection import Connection, connect
from pgps_worker.ears import Ears
from pgps_worker.lanes import run_all_lanes
from pgps_worker.large import dispatch_large
from pgps_worker.runner import open_agenda, open_runners
from pgps_worker.subscribers import LOOK_LIMIT
from pgps_worker.supervisor import Supervisor
from pgps_worker.units import relay
from pgps_worker.wire import Wire

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals

__all__ = ["drain"]

log = logging.getLogger(__name__)


async def drain(config: WorkerConfig, stop: Stop, vitals: Vitals) -> None:
    """Do all there is to do now; retries that are due later, and what another worker has in hand, are left.

    Raises psycopg.Error when the database cannot be reached or refuses.
    """
    try:
        await _drain(config, stop, vitals)
    except BaseExceptionGroup as group:
        raise _first(group) from group
    log.info(
        "dispatched %d events, handled %d, filed %d as failed, reclaimed %d segments",
        vitals.events_dispatched, vitals.events_handled, vitals.events_filed, vitals.segments_reclaimed,
    )  # fmt: skip


async def _drain(config: WorkerConfig, stop: Stop, vitals: Vitals) -> None:
    agenda = open_agenda(config)
    stop.then(agenda.close)
    runners = open_runners(config, agenda, vitals)
    async with (
        connect(config, "once", statement_timeout=config.dispatch_timeout) as connection,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(Supervisor(stop, vitals).run(runners), name="runners")
        while not stop.requested and await _pass(connection, agenda, vitals, config.dispatch_timeout):
            if await calls.pending_requests(connection):
                await Requests(config, stop, vitals, Ears()).drain()
        while not stop.requested and (segments := await reclaim(connection)):
            vitals.segments_reclaimed += segments
        stop.request()


async def _pass(connection: Connection, agenda: Agenda, vitals: Vitals, limit: float) -> bool:
    """Dispatch and run what waits; return whether that was anything, as callbacks may publish."""
    before = vitals.events_handled + vitals.events_filed
    dispatched = 0
    with Wire(connection) as wire:
        while events := (await wire.aside(lambda: _dispatch(wire, limit))).events:
            dispatched += events
    vitals.events_dispatched += dispatched
    await run_all_lanes(connection)
    with Wire(connection) as wire:
        steps = await wire.aside(lambda: detect_all(wire))
    detected = steps + (await relay(connection) or 0)
    agenda.offer(await pending_subscribers(connection, LOOK_LIMIT))
    await agenda.settled()
    confirmed = (await calls.raise_confirming(connection)).done
    if confirmed:
        vitals.events_confirmed += confirmed
        await wash(connection)
    waiting = await calls.pending_requests(connection) > 0
    return waiting or max(dispatched, detected, confirmed) > 0 or vitals.events_handled + vitals.events_filed > before


def _dispatch(wire: Wire, timeout: float) -> Batch:
    batch = dispatch(wire)
    return dispatch_large(wire, batch.large, timeout=timeout, progress=lambda: None) if batch.large else batch


def _first(group: BaseExceptionGroup) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
