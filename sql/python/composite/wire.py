"""An occurrence as it travels from the broker that detected it: short, and told by its place instead of by names.

of an event      [time, position, origin, payload]; origin null: the broker that sends it
of ticks         [first, last, period]
of an operator   [groups], or [groups, start, end] where it does not reach from the first to the last of its parts
A point is [time, place], place -1 for the ticks of a time. Points are those of the broker that detected.
"""

from typing import Any, Optional

from composite.graph import Node
from composite.points import TICK, TIME_BITS, Occurrence, point_of, position_of, span, tick_point, time_of

ID_BITS = 48  # of a position: the number of an event at the broker where it was taken
ELSEWHERE = "\n"  # in an origin: behind it the broker whose numbers the events have


def write_occurrence(found: Occurrence, broker: str) -> list[Any]:
    """Return an occurrence for another broker."""
    if found[3] is None:
        return [time_of(found[1]), time_of(found[2]), found[4]]
    if len(found) == 7:
        return [time_of(found[2]), position_of(found[2]), None if found[5] == broker else found[5], found[6]]
    groups = [[write_occurrence(one, broker) for one in group] for group in found[4]]
    if (found[1], found[2]) == bounds(found[4]):
        return [groups]
    return [groups, write_point(found[1]), write_point(found[2])]


def read_occurrence(node: Optional[Node], told: list[Any], broker: str) -> Occurrence:
    """Return an occurrence of a node that a broker has told; a node of None stands for ticks."""
    if len(told) == 4:
        time, position, origin, payload = told
        point = point_of(time, position)
        if origin is None or ELSEWHERE not in origin:
            origin = f"{broker if origin is None else origin}{ELSEWHERE}{broker}"
        return (0, point, point, node, position & ((1 << ID_BITS) - 1), origin, payload)
    if not isinstance(told[0], list):
        return (0, tick_point(told[0]), tick_point(told[1]), None, told[2])
    assert node is not None
    groups = tuple(
        tuple(read_occurrence(node.children[role] if role < len(node.children) else None, one, broker) for one in group)
        for role, group in enumerate(told[0])
    )
    start, end = (read_point(told[1]), read_point(told[2])) if len(told) == 3 else bounds(groups)
    return (0, start, end, node, groups)


def bounds(groups: Any) -> tuple[int, int]:
    """Return where the parts of an operator begin and end; nowhere when it has none."""
    return span(groups) if any(groups) else (0, 0)


def write_point(point: int) -> list[int]:
    """Return a point as two numbers."""
    return [time_of(point), -1 if point & TICK else point & ((1 << TIME_BITS) - 1)]


def read_point(told: list[int]) -> int:
    """Return the point that two numbers tell."""
    return tick_point(told[0]) if told[1] == -1 else told[0] << TIME_BITS | told[1]


def broker_of(origin: Optional[str]) -> tuple[Optional[str], Optional[str]]:
    """Return from where an event comes, and the broker whose number it has: None for this one."""
    if origin is None or ELSEWHERE not in origin:
        return origin, None
    name, broker = origin.split(ELSEWHERE)
    return name, broker
