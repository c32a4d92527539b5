"""What overlays of 10 to 10,000 brokers cost: rows, messages and links, by the model."""

from __future__ import annotations

import random
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.overlay.filters import Filters
from bench.overlay.graphs import Overlay, hubs, meshed
from bench.overlay.routes import Routes, offers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "SUBSCRIPTIONS", "Case", "Point", "study"]

SUBSCRIPTIONS = 10_000_000
DEGREE = 10
_SAMPLE = 60
"""So many origins stand for all; ways and filters of all are in use by then."""


@dataclass(frozen=True, slots=True)
class Case:
    """A workload: which filters, and how many brokers publish (None: all)."""

    name: str
    filters: Filters
    publishers: int | None = None
    redundant: float = 0.0


CASES = (
    Case("all publish, names", Filters(10_000)),
    Case("all publish, limits, covering", Filters(1000, 10)),
    Case("all publish, limits, no covering", Filters(1000, 10, covering=False)),
    Case("10 publish, limits, covering", Filters(1000, 10), publishers=10),
    Case("all publish, limits, covering, meshed", Filters(1000, 10), redundant=0.1),
)


@dataclass(frozen=True, slots=True)
class Point:
    """What the model says of a case with so many brokers; rows and messages of the broker that has most."""

    case: str
    brokers: int
    rows: float
    rows_of_origins: float
    told_for_one: float
    answers_for_one: float
    links_for_event: float
    links_of_flood: int
    brokers_of_event: float
    cut_messages: float | None

    def as_json(self) -> dict[str, Any]:
        """Return it as an object."""
        return asdict(self)


def study(
    sizes: tuple[int, ...], subscriptions: int, cases: tuple[Case, ...] = CASES, say: Callable[[str], None] = print
) -> Iterator[Point]:
    """Compute all cases for overlays of these sizes."""
    for case in cases:
        for size in sizes:
            say(f"{case.name}: {size:,} brokers")
            yield _point(case, size, subscriptions)


def _point(case: Case, size: int, subscriptions: int) -> Point:
    chance = np.random.default_rng(size)
    pick = random.Random(size)
    overlay = hubs(size, DEGREE)
    if case.redundant:
        overlay = meshed(overlay, max(1, round(case.redundant * size)), seed=size)
    own = case.filters.draw(size, subscriptions, chance)
    publishing = min(case.publishers or size, size)
    # Publishers are spread evenly, so that they lie behind all hubs.
    origins = [number * size // publishing for number in range(publishing)]
    sample = origins if publishing <= _SAMPLE else sorted(pick.sample(origins, _SAMPLE))
    weight = publishing / len(sample)
    routes = Routes(overlay, case.filters, own, {origin: overlay.parents(origin) for origin in sample})
    seen = [0, 1, size - 1] if size > 2 else [0]
    # Every broker is an origin, and offered, whether or not it publishes.
    probes = pick.sample(range(size), min(size, 20))
    offered = np.sum([offers(overlay, origin, overlay.parents(origin)) for origin in probes], axis=0)
    offered = offered * size / len(probes)
    most = max((_rows(routes, broker, offered[broker], weight) for broker in seen), key=lambda found: found[0])
    news = [_news(routes, pick, weight) for _ in range(100)]
    events = [_event(routes, pick, sample) for _ in range(50)]
    return Point(
        case.name,
        size,
        *most,
        statistics.mean(told for told, _ in news),
        statistics.mean(answers for _, answers in news),
        statistics.mean(links for links, _ in events),
        size - 1,
        statistics.mean(brokers for _, brokers in events),
        _cut(routes, pick, weight) if case.redundant else None,
    )


def _rows(routes: Routes, broker: int, offered: float, weight: float) -> tuple[float, float]:
    """Return all rows of a broker, and those that there are for each origin and filter."""
    rows = routes.rows(broker, 0)
    of_origins = weight * (rows.activation + rows.told_active)
    few = rows.wanted + rows.told_sub + rows.cover + weight * (rows.attached + rows.told_attach)
    return 2 * float(offered) + few + of_origins, of_origins


def _news(routes: Routes, pick: random.Random, weight: float) -> tuple[int, float]:
    """Return what a new subscription sends: how many filters, and how many answers."""
    broker = pick.randrange(routes.overlay.size)
    popular = routes.filters.popularity().tolist()
    key = pick.choices(range(routes.filters.count), popular)[0]
    if routes.own[broker, key]:
        return 0, 0
    told, answers = routes.subscribed(broker, key)
    return told, answers * weight


def _event(routes: Routes, pick: random.Random, origins: list[int]) -> tuple[int, int]:
    """Return over how many links an event goes, and how many other brokers want it."""
    origin = pick.choice(origins)
    # Events are spread evenly over symbols and limits, other than wishes.
    symbol, limit = pick.randrange(routes.filters.symbols), pick.randrange(routes.filters.limits)
    matching = routes.filters.matching(symbol, limit)
    wanting = np.flatnonzero(routes.own[:, matching].any(axis=1))
    return routes.hops(origin, matching), int((wanting != origin).sum())


def _cut(routes: Routes, pick: random.Random, weight: float) -> float:
    """Return the most messages that a broker sends and hears when a link fails: a mean of three cuts."""
    return statistics.mean(_repair(routes, pick, weight) for _ in range(3))


def _repair(routes: Routes, pick: random.Random, weight: float) -> float:
    overlay: Overlay | None = None
    while overlay is None:
        cut = pick.choice(routes.overlay.links())
        overlay = routes.overlay.without(*cut)
        if min(overlay.parents(cut[0])[cut[1]], 0) < 0:
            overlay = None
    after = Routes(overlay, routes.filters, routes.own, {origin: overlay.parents(origin) for origin in routes.parents})
    load = np.zeros(overlay.size)
    for origin, parents in after.parents.items():
        before = routes.parents[origin]
        for broker, parent in enumerate(parents):
            if parent >= 0 and parent != before[broker]:
                # It attaches, leaves the old parent, and is answered for each filter that it has told.
                messages = weight * (2 + int(after.told[broker, parent].sum()))
                load[[broker, parent]] += messages
    for way, told in after.told.items():
        earlier = routes.told.get(way)
        load[list(way)] += int((told if earlier is None else told & ~earlier).sum())
    return float(load.max())
