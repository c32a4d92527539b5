"""The state of the detector as rows, to be kept as sets; all values are JSON.

An open occurrence is a row that never changes: it is added and removed. A point is one integer in them.
"""

from typing import Any, NamedTuple, Optional

from composite.graph import Graph
from composite.keystate import KeyState
from composite.points import Occurrence, position_of

VERSION = 1
HELD = -1  # the slot of events that wait for the watermark; their serial is their position


class Row(NamedTuple):
    """Hold an open occurrence: (key, node, slot, serial) is unique.

    start: where it begins; of an event that waits for the watermark, the point at which it waits.
    """

    key: Any
    node: str
    slot: int
    serial: int
    start: int
    end: int
    data: list[Any]


class Gone(NamedTuple):
    """Name a row that is removed."""

    key: Any
    node: str
    slot: int
    serial: int


class KeyRow(NamedTuple):
    """Hold what there is once for a key.

    clock: the last point done. due: when something happens next without an event, in microseconds, None for never.
    """

    key: Any
    version: int
    serial: int
    clock: int
    ticked: Optional[int]
    due: Optional[int]


def dump_occurrence(occurrence: Occurrence) -> list[Any]:
    """Return an occurrence as JSON."""
    serial, start, end, node = occurrence[:4]
    if node is None:
        return [serial, start, end, None, occurrence[4]]
    if len(occurrence) == 7:
        return [serial, start, end, node.name, *occurrence[4:]]
    return [serial, start, end, node.name, [[dump_occurrence(one) for one in group] for group in occurrence[4]]]


def load_occurrence(graph: Graph, dumped: list[Any]) -> Occurrence:
    """Return an occurrence from JSON; KeyError when its node is no part of the graph."""
    serial, start, end, name = dumped[:4]
    if start == end:
        end = start  # one object: there may be a million of them
    if name is None:
        return (serial, start, end, None, dumped[4])
    node = graph.names[name]
    if len(dumped) == 7:
        return (serial, start, end, node, dumped[4], dumped[5], dumped[6])
    groups = tuple(tuple(load_occurrence(graph, one) for one in group) for group in dumped[4])
    return (serial, start, end, node, groups)


def row_of(key: Any, node: str, slot: int, serial: int, occurrence: Occurrence) -> Row:
    """Return the row of an open occurrence."""
    return Row(key, node, slot, serial, occurrence[1], occurrence[2], dump_occurrence(occurrence))


def held_row(key: Any, node: str, point: int, occurrence: Occurrence) -> Row:
    """Return the row of an event that waits for the watermark at a point."""
    return row_of(key, node, HELD, position_of(point), occurrence)._replace(start=point)


def held_at(row: Row, occurrence: Occurrence) -> int:
    """Return the point at which an event waits; former releases stored where an interval begins."""
    return occurrence[2] if row.start == occurrence[1] else row.start


def key_row(state: KeyState) -> KeyRow:
    """Return the row of a key."""
    return KeyRow(state.key, VERSION, state.serial, state.clock, state.ticked, state.due)


def frozen(key: Any) -> Any:
    """Return a key that was read from JSON as the detector has it: lists as tuples."""
    return tuple(frozen(part) for part in key) if isinstance(key, list) else key
