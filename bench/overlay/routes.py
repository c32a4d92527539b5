"""What the rules of links make of an overlay at rest: who tells whom what, and what each broker keeps of it.

The rules are those of decision 9 and `docs/internals/links.md`, as `sql/code/links` has them: a broker takes the events
of an origin from one parent, and tells that parent what it wants and what those that have attached the origin to it
want, without what another filter implies. `tests/links/test_overlay_model.py` compares the rows with those of brokers.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bench.overlay.filters import Filters
    from bench.overlay.graphs import Overlay

    Way = tuple[int, int]
    """From a broker to its parent."""
    Wanted = NDArray[np.bool_]

__all__ = ["Routes", "Rows", "offers"]


@dataclass(frozen=True, slots=True)
class Rows:
    """How many rows a broker has in the tables of links."""

    offer: int
    wanted: int
    attached: int
    activation: int
    told_sub: int
    told_attach: int
    told_active: int
    cover: int


@dataclass(slots=True)
class Routes:
    """The state of an overlay: parents by origin, wanted filters by broker, told filters by way."""

    overlay: Overlay
    filters: Filters
    own: Wanted
    parents: Mapping[int, list[int]]
    told: dict[Way, Wanted] = field(init=False)
    behind: dict[Way, list[int]] = field(init=False)
    _feeds: dict[Way, set[Way]] = field(init=False)

    def __post_init__(self) -> None:
        self.behind = defaultdict(list)
        self._feeds = defaultdict(set)
        for origin, parents in self.parents.items():
            for broker, parent in enumerate(parents):
                if parent < 0:
                    continue
                self.behind[broker, parent].append(origin)
                if parents[parent] >= 0:
                    self._feeds[parent, parents[parent]].add((broker, parent))
        self._settle()

    def _settle(self) -> None:
        # Each way is looked at again when what one of those that feed it has told has changed.
        follows = defaultdict(set)
        for way, feeding in self._feeds.items():
            for each in feeding:
                follows[each].add(way)
        nothing = np.zeros(self.filters.count, dtype=np.bool_)
        self.told = dict.fromkeys(self.behind, nothing)
        waiting = deque(self.behind)
        queued = set(waiting)
        while waiting:
            way = waiting.popleft()
            queued.discard(way)
            found = self.filters.told(self.desired(way))
            if not np.array_equal(found, self.told[way]):
                self.told[way] = found
                for each in follows[way] - queued:
                    queued.add(each)
                    waiting.append(each)

    def desired(self, way: Way) -> Wanted:
        """Return all that a broker wants of a parent, for itself and for others."""
        found: Wanted = self.own[way[0]].copy()
        for feeding in self._feeds.get(way, ()):
            found |= self.told[feeding]
        return found

    def interest(self, broker: int, origin: int) -> Wanted:
        """Return what a broker wants of an origin, for itself and for those that get it from there."""
        found: Wanted = self.own[broker].copy()
        for near in self.overlay.neighbours[broker]:
            if self.is_attached(near, broker, origin):
                found |= self.told[near, broker]
        return found

    def is_attached(self, child: int, parent: int, origin: int) -> bool:
        """Return whether a broker takes an origin's events from another one."""
        return self.parents[origin][child] == parent and bool(self.told[child, parent].any())

    def rows(self, broker: int, offered: int) -> Rows:
        """Return how many rows a broker has, given how many origins its neighbours offer it."""
        wanted = attached = attach = told = activation = active = 0
        known = self.own[broker].copy()
        for near in self.overlay.neighbours[broker]:
            above, below = self.told.get((broker, near)), self.told.get((near, broker))
            if below is not None:
                known |= below
                size = int(below.sum())
                wanted += size
                origins = sum(self.is_attached(near, broker, origin) for origin in self.behind[near, broker])
                attached += origins
                active += origins * size
            if above is not None:
                told += int(above.sum())
                for origin in self.behind[broker, near]:
                    interest = self.interest(broker, origin)
                    if interest.any():
                        attach += 1
                        # A parent answers for each origin all filters that it was told, for whichever origin.
                        activation += int((interest | above).sum())
        return Rows(offered, wanted, attached, activation, told, attach, active, self.filters.covers(known))

    def hops(self, origin: int, matching: NDArray[np.intp]) -> int:
        """Return over how many links an event goes that passes these filters."""
        children = defaultdict(list)
        for broker, parent in enumerate(self.parents[origin]):
            if parent >= 0:
                children[parent].append(broker)
        found, reached = 0, [origin]
        while reached:
            here = reached.pop()
            for child in children[here]:
                if self.told[child, here][matching].any():
                    found += 1
                    reached.append(child)
        return found

    def subscribed(self, broker: int, key: int) -> tuple[int, int]:
        """Return how many filters, and how many answers by origin, a new subscription sends over links."""
        subs = actives = 0
        reached = [(broker, near) for near in self.overlay.neighbours[broker] if (broker, near) in self.told]
        seen = set(reached)
        fed = defaultdict(list)
        for way, feeding in self._feeds.items():
            for each in feeding:
                fed[each].append(way)
        while reached:
            way = reached.pop()
            if self.filters.is_implied(key, self.told[way]):
                continue
            subs += 1
            actives += len(self.behind[way])
            for each in fed[way]:
                if each not in seen:
                    seen.add(each)
                    reached.append(each)
        return subs, actives


def offers(overlay: Overlay, origin: int, parents: list[int]) -> list[int]:
    """Return by how many neighbours each broker is offered an origin: by those that have a way not through itself."""
    heard: list[dict[int, tuple[int, ...]]] = [{} for _ in range(overlay.size)]
    waiting, queued = deque([origin]), {origin}
    while waiting:
        here = waiting.popleft()
        queued.discard(here)
        for near in overlay.neighbours[here]:
            way = (here,) if here == origin else _best(heard[here], near, parents[here], here)
            said = None if way is None or near in way or near == origin else way
            if heard[near].get(here) != said:
                if said is None:
                    del heard[near][here]
                else:
                    heard[near][here] = said
                if near not in queued:
                    queued.add(near)
                    waiting.append(near)
    return [len(each) for each in heard]


def _best(heard: Mapping[int, tuple[int, ...]], near: int, parent: int, here: int) -> tuple[int, ...] | None:
    ways = [(by != parent, len(way), way) for by, way in heard.items() if by != near and near not in way]
    return (here, *min(ways)[2]) if ways else None
