"""One step: what an event or a tick makes of the open occurrences of its key, from the leaves up."""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple, Optional

from composite.absence import run_not
from composite.graph import Graph, Node, Test
from composite.keystate import KeyState
from composite.limits import TooMuch
from composite.pairing import Inputs, run_any, run_or, run_seq
from composite.points import END, GROUPS, NODE, PAYLOAD, SERIAL, START, TIME_BITS, Groups, Occurrence, tick_point
from composite.times import next_tick
from composite.windows import fire, run_aperiodic, run_delayed, run_periodic, run_repeat

Predicate = Callable[[dict[str, Any]], Optional[bool]]
ALWAYS = -1 << 200
HEEDED = 4096
RUNNERS: dict[str, Callable[["Step", KeyState, Node, Inputs], None]] = {
    "or": run_or, "seq": run_seq, "and": run_any, "any": run_any, "not": run_not, "a": run_aperiodic,
    "a*": run_aperiodic, "p": run_periodic, "p*": run_periodic, "plus": run_delayed, "absence": run_delayed,
    "repeat": run_repeat,
}  # fmt: skip


class Found(NamedTuple):
    """Hold what was detected: for each of the node's definitions, an occurrence, and the point of its detection."""

    key: Any
    node: Node
    point: int
    occurrence: Occurrence


class Fault(NamedTuple):
    """Hold what a condition raised; its combination was no candidate."""

    key: Any
    node: Node
    point: int
    text: str
    error: Exception


class GivenUp(NamedTuple):
    """Hold an open occurrence that the limit had no room for."""

    key: Any
    node: Node
    occurrence: Occurrence


class Step:
    """Run steps over a graph, and gather what they bring.

    point: where the history is. floor: what began before it has expired. heed: called now and then where much is made
    or only time passes, so that who runs the detector can stop it. most: how many combinations a batch may make.
    most_ticks: how many times timers or the clock may come due in it.
    """

    def __init__(self, graph: Graph, conditions: Mapping[str, Predicate]) -> None:
        missing = {test.text for node in graph.nodes for test in node.tests} - conditions.keys()
        if missing:
            raise ValueError(f"no callback for the condition {min(missing)}")
        self.graph = graph
        self.conditions = conditions
        self.context = graph.frame.context
        self.within = graph.frame.within
        self.max_open = graph.frame.max_open
        self.ticking = graph.ticking
        self.point = 0
        self.floor = ALWAYS
        self.found: list[Found] = []
        self.faults: list[Fault] = []
        self.given_up: list[GivenUp] = []
        self.pending: dict[int, Inputs] = {}
        self.firing: dict[int, list[int]] = {}
        self.order: list[int] = []
        self.heed: Optional[Callable[[], object]] = None
        self.fired = 0
        self.most: Optional[int] = None
        self.most_ticks: Optional[int] = None
        self.spent = 0
        self.heeded = 0

    def forget(self) -> None:
        """Let go of what the last batch has brought."""
        for gathered in (self.found, self.faults, self.given_up):
            gathered.clear()
        self.spent = self.heeded = self.fired = 0

    def spend(self, count: int = 1) -> None:
        """Count combinations that are about to be made: one event may meet many, and so fill any memory."""
        self.spent += count
        if self.spent - self.heeded < HEEDED:
            return
        self.heeded = self.spent
        if self.heed is not None:
            self.heed()
        if self.most is not None and self.spent > self.most:
            raise TooMuch(f"{self.most:,} combinations")

    def move(self, state: KeyState, point: int) -> None:
        """Go on to a point of the history."""
        self.point = state.clock = point
        if self.within is not None:
            self.floor = ((point >> TIME_BITS) - self.within) << TIME_BITS

    def arrive(self, state: KeyState, point: int, events: list[Occurrence]) -> None:
        """Take the leaf occurrences of one event, whose serials are still to be given."""
        self.move(state, point)
        for event in events:
            node = event[NODE]
            numbered = (state.number(), *event[1:])
            if not node.tests or self.holds(state, node, numbered):
                self.deliver(state, node, numbered)
        self.propagate(state)

    def advance(self, state: KeyState, limit: int) -> None:
        """Fire all timers of a key whose time is before a limit, each at its own time and in order."""
        timers = state.timers
        while True:
            time = state.tick
            if timers and (time is None or timers[0][0] < time):
                time = timers[0][0]
            if time is None or time >= limit:
                return
            self.fired += 1
            if self.fired % HEEDED == 0:
                self.heed_ticks()
            self.move(state, tick_point(time))
            while timers and timers[0][0] == time:
                _, index, serial = heappop(timers)
                if index not in self.firing:
                    self.firing[index] = []
                    if index not in self.pending:
                        heappush(self.order, index)
                self.firing[index].append(serial)
            if state.tick == time:
                self.tick(state, time)
            self.propagate(state)

    def heed_ticks(self) -> None:
        """Let who runs the detector stop it, and stop where time passes further than one step may take it."""
        if self.heed is not None:
            self.heed()
        if self.most_ticks is not None and self.fired > self.most_ticks:
            raise TooMuch(f"{self.most_ticks:,} ticks of the clock")

    def tick(self, state: KeyState, time: int) -> None:
        """Let the clock tick at a time."""
        for node in self.ticking:
            one = node.expression
            if next_tick(one.op, one.amount, one.text, one.zone, time - 1) == time:
                self.deliver(state, node, (state.number(), self.point, self.point, node, None, None, None))
        self.set_tick(state, time)

    def set_tick(self, state: KeyState, ticked: int) -> None:
        """Note the last tick and find the next."""
        if self.ticking:
            state.ticked = ticked
            found = [
                next_tick(node.op, node.amount, node.expression.text, node.expression.zone, ticked)
                for node in self.ticking
            ]
            state.tick = min((time for time in found if time is not None), default=None)

    def deliver(self, state: KeyState, node: Node, occurrence: Occurrence) -> None:
        """Hand an occurrence to what is made of it."""
        if node.roots:
            self.found.append(Found(state.key, node, self.point, occurrence))
        for place, (parent, role) in enumerate(node.parents):
            if place:
                # Each operand that it is open in closes it by itself, and names what it closes by the serial alone.
                occurrence = (state.number(), *occurrence[1:])
            inputs = self.pending.get(parent.index)
            if inputs is None:
                self.pending[parent.index] = [(role, occurrence)]
                if parent.index not in self.firing:
                    heappush(self.order, parent.index)
            else:
                inputs.append((role, occurrence))

    def propagate(self, state: KeyState) -> None:
        """Run the operators that got something or whose timers are due, each behind those it is made of."""
        while self.order:
            index = heappop(self.order)
            node = self.graph.nodes[index]
            inputs = self.pending.pop(index, None)
            if inputs:
                RUNNERS[node.op](self, state, node, inputs if len(inputs) == 1 else in_order(state, node, inputs))
            if self.firing:
                for serial in self.firing.pop(index, ()):
                    fire(self, state, node, serial)

    def offer(self, state: KeyState, node: Node, groups: Groups, start: int, end: int) -> bool:
        """Make an occurrence of an operator, unless it takes too long or a condition does not hold."""
        if self.within is not None and (end >> TIME_BITS) - (start >> TIME_BITS) > self.within:
            return False
        candidate = (0, start, end, node, groups)
        if node.tests and not self.holds(state, node, candidate):
            return False
        if node.parents or node.roots:
            self.deliver(state, node, (state.number(), start, end, node, groups))
        return True

    def holds(self, state: KeyState, node: Node, occurrence: Occurrence) -> bool:
        """Tell whether all conditions at a node are true of an occurrence; unknown is not true."""
        for test in node.tests:
            try:
                if self.conditions[test.text](bindings(test, occurrence)) is not True:
                    return False
            except TooMuch:
                raise
            except Exception as error:
                self.faults.append(Fault(state.key, node, self.point, test.text, error))
                return False
        return True

    def initiate(self, state: KeyState, node: Node, occurrence: Occurrence) -> None:
        """Open an initiator; in recent context it takes the place of the one before."""
        if self.context == "recent":
            opened = state.opened(node)
            if opened:
                state.close(node, 0, list(opened))
        self.keep(state, node, 0, occurrence)

    def keep(self, state: KeyState, node: Node, slot: int, occurrence: Occurrence) -> None:
        """Open an occurrence and give up the oldest of the operator where there are too many."""
        state.open(node, slot, occurrence)
        count = len(state.slots[node.base + slot])
        if node.slots > 1:
            count = sum(len(state.opened(node, other)) for other in range(node.slots))
        if count > self.max_open:
            oldest = min(
                (other for other in range(node.slots) if state.opened(node, other)),
                key=lambda other: state.opened(node, other)[0][0],
            )
            gone = state.opened(node, oldest)[0]
            state.close(node, oldest, [gone])
            self.given_up.append(GivenUp(state.key, node, gone))


def in_order(state: KeyState, node: Node, inputs: Inputs) -> Inputs:
    """Return what operands bring in one step in an order that does not depend on the rest of the graph."""
    ranks = node.ranks
    ordered = sorted(inputs, key=lambda item: (ranks[item[0]], item[1][SERIAL], item[0]))
    if all(one[1][SERIAL] < other[1][SERIAL] for one, other in pairwise(ordered)):
        return ordered
    # What is open in several operands is compared by these numbers later.
    return [(role, (state.number(), *found[1:])) for role, found in ordered]


def bindings(test: Test, occurrence: Occurrence) -> dict[str, Any]:
    """Return what each name of a condition stands for: a payload, None, or a list of payloads in order of time."""
    found: dict[str, Any] = {}
    for (name, path), many in zip(test.paths, test.many):
        members = [occurrence]
        for role in path:
            members = [one for member in members for one in member[GROUPS][role]]
        members.sort(key=lambda one: (one[START], one[END]))
        payloads = [one[PAYLOAD] for one in members]
        found[name] = payloads if many else payloads[0] if payloads else None
    return found
