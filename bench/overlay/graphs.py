"""The overlays of the model: trees of hubs, lines, and trees with redundant links."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Overlay", "hubs", "line", "meshed"]


@dataclass(slots=True)
class Overlay:
    """Brokers by number, and the links of each."""

    neighbours: list[list[int]]
    name: str = ""
    depth: dict[int, list[int]] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """Return how many brokers there are."""
        return len(self.neighbours)

    @property
    def is_tree(self) -> bool:
        """Return whether there is one way between any two."""
        return sum(map(len, self.neighbours)) == 2 * (self.size - 1)

    def links(self) -> list[tuple[int, int]]:
        """Return each link once, the lower number first."""
        return [(one, other) for one, near in enumerate(self.neighbours) for other in near if one < other]

    def parents(self, origin: int) -> list[int]:
        """Return from which neighbour each broker gets an origin's events: on a shortest way; -1 where there is none.

        Of several that are as short it is the neighbour with the lowest number, as it is the lowest uuid in truth.
        """
        found, hops = [-1] * self.size, [-1] * self.size
        hops[origin] = 0
        queue = deque([origin])
        while queue:
            here = queue.popleft()
            for near in self.neighbours[here]:
                if hops[near] < 0:
                    hops[near], found[near] = hops[here] + 1, here
                    queue.append(near)
                elif hops[near] == hops[here] + 1:
                    found[near] = min(found[near], here)
        self.depth[origin] = hops
        return found

    def without(self, one: int, other: int) -> Overlay:
        """Return the overlay with a link cut."""
        near = [list(each) for each in self.neighbours]
        near[one].remove(other)
        near[other].remove(one)
        return Overlay(near, self.name)


def hubs(size: int, degree: int) -> Overlay:
    """Return a tree of hubs, each of which has so many below it."""
    near: list[list[int]] = [[] for _ in range(size)]
    for number in range(1, size):
        _link(near, (number - 1) // degree, number)
    return Overlay(near, f"tree of hubs, {degree} below each")


def line(size: int) -> Overlay:
    """Return brokers in a row."""
    found = hubs(size, 1)
    found.name = "line"
    return found


def meshed(tree: Overlay, redundant: int, seed: int) -> Overlay:
    """Return a tree with so many more links between random brokers."""
    chosen = random.Random(seed)
    near = [list(each) for each in tree.neighbours]
    while redundant:
        one, other = chosen.randrange(tree.size), chosen.randrange(tree.size)
        if one != other and other not in near[one]:
            _link(near, one, other)
            redundant -= 1
    return Overlay(near, f"{tree.name}, meshed")


def _link(near: list[list[int]], one: int, other: int) -> None:
    near[one].append(other)
    near[other].append(one)
