"""Sequences of two events, the commonest expression: no walk through the graph for each event.

What is open, what is detected and what is given up is the same as by the general way, and so are the rows of the state:
a batch may be taken one way and the next one the other.
"""

from collections.abc import Callable, Iterable
from typing import Any, Optional

from composite.graph import Graph, Node
from composite.keystate import KeyState
from composite.points import END, SERIAL, START, TIME_BITS, Event, Occurrence
from composite.rows import VERSION, Gone, KeyRow, Row, row_of
from composite.stepping import Found, GivenUp, Step

# An event at one operand: point, operand, key, id, origin, payload. Of one event, the second operand comes first.
Moment = tuple[int, int, Any, Optional[int], Optional[str], Any]
# What was detected: the key, what begins it and what ends it.
Pair = tuple[Any, tuple[Occurrence, ...], Occurrence]
# What is opened and closed, the rows of keys, and which of them are empty.
KeyChanges = tuple[list[Row], list[Gone], list[KeyRow], list[Any]]


def sequence_of(graph: Graph) -> Optional[Node]:
    """Return the node of `a ; b`, when the graph is this and nothing else, its events are points and have no filter."""
    root = next((node for node in graph.nodes if node.roots), None)
    if root is None or root.op != "seq" or graph.frame.time_basis != "arrival":
        return None
    plain = all(
        node is root or (node.op == "leaf" and node.point and all(parent is root for parent, _ in node.parents))
        for node in graph.nodes
    )
    return root if plain and not any(node.tests for node in graph.nodes) else None


def moments_of(
    root: Node, placed: list[tuple[int, Event]], matcher: Optional[Callable[[Event], list[tuple[str, Any]]]]
) -> Optional[list[Moment]]:
    """Return events with their matches as moments of a sequence; None when one is an interval or was told."""
    found: list[Moment] = []
    for point, event in placed:
        if event.span is not None or event.start is not None or event.told is not None:
            return None
        matches = event.matches
        if matches is None:
            matches = matcher(event) if matcher else []
        for role in (1, 0):
            name = root.children[role].name
            found += [
                (point, role, key, event.id, event.origin, event.payload) for matched, key in matches if matched == name
            ]
    return found


def pair_up(step: Step, root: Node, touch: Callable[[Any], KeyState], moments: Iterable[Moment]) -> list[Pair]:
    """Take the events of a batch in order; return what is detected."""
    base, within, recent = root.base, step.within, step.context == "recent"
    first_leaf, last_leaf = root.children
    found: list[Pair] = []
    known: dict[Any, tuple[KeyState, list[Occurrence]]] = {}
    for point, role, key, event_id, origin, payload in moments:
        pair = known.get(key)
        if pair is None:
            state = touch(key)
            pair = known[key] = state, state.slots.setdefault(base, [])
        state, opened = pair
        state.clock = point
        if opened and within is not None:
            state.expire(root, 0, ((point >> TIME_BITS) - within) << TIME_BITS)
        if role == 0:
            state.serial = serial = state.serial + 1
            first = (serial, point, point, first_leaf, event_id, origin, payload)
            if recent and opened:
                before = opened[0][SERIAL]
                if before <= state.stored:
                    state.closed.append((root.name, 0, before))
                opened[0] = first
            else:
                opened.append(first)
                if len(opened) > step.max_open:
                    give_up(step, root, state)
        elif recent and opened:
            found.append((key, (opened[0],), (0, point, point, last_leaf, event_id, origin, payload)))
        elif opened:
            finish(step, root, state, (0, point, point, last_leaf, event_id, origin, payload), found)
    return found


def give_up(step: Step, root: Node, state: KeyState) -> None:
    """Close the oldest of what is open: there is too much."""
    gone = state.slots[root.base][0]
    state.close(root, 0, [gone])
    step.given_up.append(GivenUp(state.key, root, gone))


def finish(step: Step, root: Node, state: KeyState, last: Occurrence, found: list[Pair]) -> None:
    """Make what the context makes of what is open and an event that ends it, and close what it uses up."""
    opened, context = state.slots[root.base], step.context
    used = opened[:1] if context == "chronicle" else opened[:]
    if len(used) > 1:
        step.spend(len(used) >> 3 if context == "cumulative" else len(used))
    if context == "cumulative":
        found.append((state.key, tuple(used), last))
    else:
        found += [(state.key, (one,), last) for one in used]
    if context != "unrestricted":
        state.close(root, 0, used)


def what_changed(root: Node, states: dict[Any, KeyState]) -> KeyChanges:
    """Return what has changed in the keys, and take it for stored; there are no timers, and nothing is held back."""
    opened: list[Row] = []
    closed: list[Gone] = []
    keys: list[KeyRow] = []
    empty: list[Any] = []
    base, name = root.base, root.name
    for key, state in states.items():
        if state.closed:
            closed.extend(Gone(key, *one) for one in state.closed)
            state.closed = []
        here, stored, serial = state.slots.get(base), state.stored, state.serial
        state.stored = serial
        if not here:
            empty.append(key)
            continue
        if here[-1][SERIAL] > stored:
            opened.extend(row_of(key, name, 0, one[SERIAL], one) for one in here if one[SERIAL] > stored)
        keys.append(KeyRow(key, VERSION, serial, state.clock, None, None))
    return opened, closed, keys, empty


def as_found(root: Node, pairs: list[Pair]) -> list[Found]:
    """Return pairs as the detector tells what it has found."""
    return [
        Found(key, root, last[END], (0, firsts[0][START], last[END], root, (firsts, (last,))))
        for key, firsts, last in pairs
    ]
