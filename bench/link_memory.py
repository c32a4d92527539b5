"""The memory of a worker whose link has a backlog.

1,000,000 events are published while the link is paused, and carried; then 500 events of a megabyte
each. The resident memory of the worker's process, shared libraries included, is sampled all the
time; the figure is the largest sample.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from bench.chain import Chain, chained, eventually, is_dispatched
from bench.figures import Figure, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.house import House

TITLE = "a link's worker, largest resident memory"
_EVERY = 0.05


def run(house: House) -> list[Figure]:
    """Measure it."""
    many, large = house.scale(1_000_000, 100_000), house.scale(500, 50)
    figures = []
    with chained(house, 2) as chain:
        chain.subscribe("all", 1)
        backlogs: list[tuple[str, int, Callable[[], None]]] = [
            (f"{many:,} events wait", many, lambda: chain.publish(many, 100)),
            (f"{large:,} events of 1 MB wait", large, lambda: _publish_large(chain, large)),
        ]
        for what, events, publish in backlogs:
            house.say(what)
            chain.pause()
            before = chain.arrived()
            publish()
            chain.resume()
            most = _largest(chain.workers[0], lambda before=before, events=events: chain.wait_for(before + events))  # type: ignore[misc]
            figures.append(
                Figure(TITLE, [most], Target("at most", 200, "MB"), [most], unit="MB", note=f"{what}; its process")
            )
    for _ in house.pairs(1):
        pass
    return figures


def _publish_large(chain: Chain, events: int) -> None:
    # The payload is random digits, which compression cannot shrink much.
    chain.first.execute(
        "insert into pgps_event.quote (symbol, price, volume, at)"
        " select (select string_agg(md5(random()::text || part || n), '') from generate_series(1, 32768) part),"
        " 1, n, now()"
        " from generate_series(1, %s::integer) n",
        [events],
    )
    eventually(lambda: is_dispatched(chain.first), within=600)


def _largest(pid: int, work: Callable[[], None]) -> float:
    """Return the most megabytes a process had resident meanwhile."""
    done = threading.Event()
    seen = [_resident(pid)]

    def watch() -> None:
        while not done.wait(_EVERY):
            seen.append(_resident(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return max(seen)


def _resident(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no memory of process {pid}")


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 1 if house.runs else 0
