"""What is open for one partition key."""

from heapq import heapify, heappush
from typing import Any, Optional

from composite.graph import Node
from composite.points import END, SERIAL, START, Occurrence, time_of, undone

Timer = tuple[int, int, int]  # time, index of the node, serial of the window
UNTOUCHED = -1 << 200  # before all points


class KeyState:
    """Hold the open occurrences, events held back and timers of a key.

    slots: by number of the slot, in order of serial. serial: the last one given. clock: the last point done.
    stored: serials up to this one are known to whoever keeps the state. closed: of those, what is open no more.
    tick: the next tick of the clock; ticked: the last one. held: events that wait for the watermark, a heap.
    due: when something happens without an event; queued and noted: the same as it stands in the agenda,
    and as whoever keeps the state knows it.
    """

    __slots__ = (
        "clock",
        "closed",
        "due",
        "held",
        "key",
        "noted",
        "queued",
        "released",
        "serial",
        "slots",
        "stored",
        "tick",
        "ticked",
        "timers",
    )

    def __init__(self, key: Any) -> None:
        self.key = key
        self.slots: dict[int, list[Occurrence]] = {}
        self.timers: list[Timer] = []
        self.held: list[tuple[int, str, Occurrence]] = []
        self.closed: list[tuple[str, int, int]] = []
        self.released: list[tuple[str, int]] = []
        self.serial = self.stored = 0
        self.clock = UNTOUCHED
        self.tick: Optional[int] = None
        self.ticked: Optional[int] = None
        self.due: Optional[int] = None
        self.queued: Optional[int] = None
        self.noted: Optional[int] = None

    def number(self) -> int:
        """Return the next serial."""
        self.serial += 1
        return self.serial

    def open(self, node: Node, slot: int, occurrence: Occurrence) -> None:
        """Open an occurrence; the caller keeps to the limit."""
        opened = self.slots.get(node.base + slot)
        if opened is None:
            self.slots[node.base + slot] = [occurrence]
        else:
            opened.append(occurrence)

    def opened(self, node: Node, slot: int = 0) -> list[Occurrence]:
        """Return what is open in a slot, which is not for keeping."""
        return self.slots.get(node.base + slot) or []

    def close(self, node: Node, slot: int, gone: list[Occurrence]) -> None:
        """Close some of what is open in a slot."""
        if not gone:
            return
        opened = self.slots[node.base + slot]
        stored = self.stored
        self.closed.extend((node.name, slot, one[SERIAL]) for one in gone if one[SERIAL] <= stored)
        if len(gone) == len(opened):
            opened.clear()
        elif gone[0] is opened[0] and gone[-1] is opened[len(gone) - 1]:
            del opened[: len(gone)]
        else:
            serials = {one[SERIAL] for one in gone}
            opened[:] = [one for one in opened if one[SERIAL] not in serials]

    def expire(self, node: Node, slot: int, floor: int) -> None:
        """Close what began before a point, from the oldest on."""
        opened = self.slots.get(node.base + slot)
        if opened and opened[0][START] < floor:
            count = next((i for i, one in enumerate(opened) if one[START] >= floor), len(opened))
            self.close(node, slot, opened[:count])

    def find(self, node: Node, serial: int) -> Optional[Occurrence]:
        """Return an open window by its serial."""
        opened = self.slots.get(node.base)
        low, high = 0, len(opened) if opened else 0
        while opened and low < high:
            middle = (low + high) // 2
            if opened[middle][SERIAL] < serial:
                low = middle + 1
            else:
                high = middle
        return opened[low] if opened and low < len(opened) and opened[low][SERIAL] == serial else None

    def schedule(self, node: Node, window: Occurrence) -> None:
        """Set the next timer of a window."""
        self.schedule_at(first_firing(node, window, self.clock), node, window[SERIAL])

    def schedule_at(self, time: int, node: Node, serial: int) -> None:
        """Set a timer of a window."""
        heappush(self.timers, (time, node.index, serial))

    def sweep(self, nodes: list[Node]) -> None:
        """Drop the timers of windows that are closed, when they have become the most."""
        if len(self.timers) > 64:
            live = sum(len(self.opened(nodes[index])) for index in {timer[1] for timer in self.timers})
            if len(self.timers) > 2 * live + 64:
                self.timers = [timer for timer in self.timers if self.find(nodes[timer[1]], timer[2])]
                heapify(self.timers)

    def restore_timers(self, nodes: list[Node]) -> None:
        """Set the timers that open windows and the last point done call for."""
        self.timers = [
            (first_firing(node, window, self.clock), node.index, window[SERIAL])
            for node in nodes
            if node.op in ("plus", "absence", "p")
            for window in self.opened(node)
        ]
        heapify(self.timers)

    def empty(self) -> bool:
        """Tell whether nothing would be lost with this state."""
        return self.ticked is None and not self.held and not any(self.slots.values())


def first_firing(node: Node, window: Occurrence, point: int) -> int:
    """Return when the timer of a window fires next, seen from a point; what should have been before is now."""
    end, now = time_of(window[END]), undone(point)
    if node.op != "p":
        return max(end + node.amount, now)
    return end + max(1, -((end - now) // node.amount)) * node.amount
