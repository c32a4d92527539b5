"""Occurrences as the oracle has them, and what is said of two of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from composite.points import tick_point

if TYPE_CHECKING:
    from composite.points import Event


@dataclass(slots=True)
class Occ:
    """An occurrence: interval, when it was detected, which events it has; `age` orders all of them."""

    start: int
    end: int
    at: int
    age: tuple[int, int, int]
    ids: frozenset[Any]
    tree: Any


def event_occ(point: int, event: Event) -> Occ:
    tree = ("event", event.position, event.time)
    return Occ(point, point, point, (0, 0, 0), frozenset([event.position]), tree)


def tick_run(first: int, last: int, period: int) -> Occ:
    return Occ(tick_point(first), tick_point(last), 0, (0, 0, 0), frozenset(), ("ticks", first, last, period))


def apart(one: Occ, other: Occ) -> bool:
    """Tell whether two occurrences have no event in common."""
    return not (one.ids & other.ids)


def nested(one: Occ, other: Occ) -> bool:
    """Tell whether one begins before and ends behind the other."""
    return (one.start < other.start and other.end < one.end) or (other.start < one.start and one.end < other.end)


def late(end: Occ, one: Occ) -> bool:
    """Tell whether a window is only replaced, and that in the step in which its last E2 comes."""
    return end.tree is None and end.at == one.at


def either(parts: list[list[Occ]]) -> list[Occ]:
    """Return all; of what both operands make at one moment of the same events, only the first's."""
    found: list[Occ] = []
    for one, role in sorted(
        ((one, role) for role, part in enumerate(parts) for one in part), key=lambda item: (item[0].age, item[1])
    ):
        if role == 0 or not any(other.at == one.at and other.ids == one.ids for other in parts[0]):
            tree = ("or", tuple((one.tree,) if role == where else () for where in range(2)))
            found.append(Occ(one.start, one.end, one.at, (0, 0, 0), one.ids, tree))
    return found
