"""The link service of a worker, in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pgps_worker.config import WorkerConfig
from pgps_worker.dispatcher import Dispatcher
from pgps_worker.ears import Ears, Listener
from pgps_worker.links.service import Links
from pgps_worker.stop import Stop
from pgps_worker.supervisor import Service, Supervisor
from pgps_worker.vitals import Vitals
from tests.fix_worker import worker_login
from tests.links.rig import Broker


@contextmanager
def served(*brokers: Broker) -> Iterator[list[Vitals]]:
    """Serve the links of brokers, and dispatch, until the block ends; the vitals are the brokers'."""
    vitals = [Vitals() for _ in brokers]
    began = threading.Event()
    stops: list[Stop] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with asyncio.TaskGroup() as group:
            for broker, own in zip(brokers, vitals, strict=True):
                config = WorkerConfig(dsn=worker_login(broker.dsn), name=f"links-{broker.name}", health_port=1)
                stop = Stop()
                stops.append(stop)
                ears = Ears()
                services: list[Service] = [
                    Listener(config, stop, own, ears),
                    Links(config, stop, own, ears),
                    Dispatcher(config, stop, own),
                ]
                group.create_task(Supervisor(stop, own).run(services))
            began.set()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert began.wait(60), "the service does not begin"
    try:
        yield vitals
    finally:
        for stop in stops:
            loops[0].call_soon_threadsafe(stop.request)
        thread.join()
