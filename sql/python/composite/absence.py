"""The operator `not`: E1 then E3 with no E2 between."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from composite.graph import Node
from composite.keystate import KeyState
from composite.pairing import Inputs, before, pair
from composite.points import END, SERIAL, START, Occurrence, shares

if TYPE_CHECKING:
    from composite.stepping import Step


def run_not(step: "Step", state: KeyState, node: Node, inputs: Inputs) -> None:
    """Pair E1 and E3 with no whole E2 between; inputs of one point are terminators, then initiators, then E2.

    The interval between is closed: an E2 counts that stands at the same point as E1 or E3, as ticks of one time do.
    """
    state.expire(node, 0, step.floor)
    here = [found for role, found in inputs if role == 0]
    for role, found in sorted(inputs, key=lambda item: (-item[0], item[1][SERIAL])):
        if role == 1:
            step.initiate(state, node, found)
        elif role == 0:
            forbid(step, state, node, found)
        else:
            pair(step, state, node, undisturbed(step, state, node, found, here), found)
    if not state.opened(node):
        state.close(node, 1, list(state.opened(node, 1)))


def forbid(step: "Step", state: KeyState, node: Node, found: Occurrence) -> None:
    """Close the windows in which an E2 lies; keep it where an E3 may have begun before it, or have it in itself."""
    last = node.children[2]
    if last.point and not (last.children and node.mixed):
        state.close(node, 0, [one for one in state.opened(node) if disturbs(node, found, one)])
    elif state.opened(node):
        step.keep(state, node, 1, found)


def disturbs(node: Node, found: Occurrence, window: Occurrence) -> bool:
    """Tell whether an E2 lies behind the end of a window's beginning and is no part of it."""
    return bool(window[END] <= found[START]) and not (node.mixed and shares(found, window))


def undisturbed(
    step: "Step", state: KeyState, node: Node, last: Occurrence, here: list[Occurrence]
) -> Iterator[Occurrence]:
    """Return the initiators between whose end and the beginning of a terminator no whole E2 lies; here: E2 as new."""
    between = [
        one
        for one in (*state.opened(node, 1), *here)
        if one[END] <= last[START] and not (node.mixed and shares(one, last))
    ]
    for first in before(step, state, node, last):
        if not any(disturbs(node, one, first) for one in between):
            yield first
