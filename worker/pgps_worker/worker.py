"""The worker: which services it consists of, and how it starts and leaves."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

from pgps_worker.clients.duties import Duties
from pgps_worker.clients.requests import Requests
from pgps_worker.composites import Composites, SlowComposites
from pgps_worker.dispatcher import Dispatcher
from pgps_worker.ears import Ears, Listener
from pgps_worker.health import Health
from pgps_worker.lanes import QuickLanes, SlowLanes
from pgps_worker.links.service import Links
from pgps_worker.networks import Networks
from pgps_worker.once import drain
from pgps_worker.reclaimer import Reclaimer
from pgps_worker.reporter import Reporter
from pgps_worker.runner import open_agenda, open_runners
from pgps_worker.stop import Stop
from pgps_worker.subscribers import Watcher
from pgps_worker.supervisor import Service, Supervisor
from pgps_worker.units import Units
from pgps_worker.vitals import Vitals

if TYPE_CHECKING:
    from pgps_worker.config import WorkerConfig

__all__ = ["run_once", "run_worker", "services_of"]

log = logging.getLogger(__name__)


def services_of(config: WorkerConfig, stop: Stop, vitals: Vitals) -> list[Service]:
    """Return the services of one worker; each has connections of its own."""
    agenda = open_agenda(config)
    stop.then(agenda.close)
    ears, slow = Ears(), asyncio.Event()
    services: list[Service] = [
        Dispatcher(config, stop, vitals),
        Listener(config, stop, vitals, ears),
        QuickLanes(config, stop, vitals, ears),
        SlowLanes(config, stop, vitals, ears),
        Composites(config, stop, vitals, ears, slow),
        SlowComposites(config, stop, vitals, ears, slow),
        Units(config, stop, vitals, ears),
        Watcher(config, stop, vitals, agenda, ears),
        *open_runners(config, agenda, vitals),
        Reclaimer(config, stop, vitals),
        Reporter(config, stop, vitals),
        Links(config, stop, vitals, ears),
        Networks(config, stop, vitals, ears),
        Duties(config, stop, vitals, ears),
        Requests(config, stop, vitals, ears),
    ]
    if config.health_port is not None:
        services.append(Health(config, stop, vitals))
    return services


async def run_worker(config: WorkerConfig, *, stop: Stop | None = None) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; batches that run then are finished first."""
    stop, vitals = stop or Stop(), Vitals()
    _leave_on_signals(stop)
    log.info("worker %s starts", config.name)
    await Supervisor(stop, vitals).run(services_of(config, stop, vitals))
    log.info("worker %s leaves", config.name)


async def run_once(config: WorkerConfig, *, stop: Stop | None = None) -> None:
    """Do all there is to do now and return; raises psycopg.Error when the database refuses."""
    stop = stop or Stop()
    _leave_on_signals(stop)
    await drain(config, stop, Vitals())


def _leave_on_signals(stop: Stop) -> None:
    """Ask for the stop at the first signal; at the second, cancel what runs: its transactions roll back."""
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    assert main is not None

    def leave(received: signal.Signals) -> None:
        if stop.requested:
            log.warning("%s again: leaving at once", received.name)
            main.cancel()
        else:
            log.info("%s: finishing the batch", received.name)
            stop.request()

    for received in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(received, leave, received)
