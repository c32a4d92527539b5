"""Operators that take occurrences together: or, and, any, `;`. What a context makes of them is in `contexts`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from composite.contexts import MEETINGS
from composite.graph import Node
from composite.keystate import KeyState
from composite.points import END, SERIAL, START, Groups, Occurrence, identities, shares, span

if TYPE_CHECKING:
    from composite.stepping import Step

Inputs = list[tuple[int, Occurrence]]


def run_or(step: "Step", state: KeyState, node: Node, inputs: Inputs) -> None:
    """Pass on each occurrence; what is an occurrence of both operands at once counts for the first."""
    roles = {role for role, _ in inputs}
    firsts = [identities(found) for role, found in inputs if role == 0] if len(roles) > 1 else []
    for role, found in sorted(inputs, key=lambda item: (item[1][SERIAL], item[0])):
        if role == 0 or identities(found) not in firsts:
            groups: Groups = ((found,), ()) if role == 0 else ((), (found,))
            step.offer(state, node, groups, found[START], found[END])


def run_seq(step: "Step", state: KeyState, node: Node, inputs: Inputs) -> None:
    """Pair what begins after another has ended."""
    state.expire(node, 0, step.floor)
    for role, found in sorted(inputs, key=lambda item: (-item[0], item[1][SERIAL])):
        if role == 0:
            step.initiate(state, node, found)
        else:
            pair(step, state, node, before(step, state, node, found), found)


def before(step: "Step", state: KeyState, node: Node, last: Occurrence) -> Iterator[Occurrence]:
    """Return the open initiators that have ended when an occurrence begins, oldest first."""
    start, floor = last[START], step.floor
    for first in state.opened(node):
        if first[END] < start and first[START] >= floor and not (node.mixed and shares(first, last)):
            yield first


def pair(step: "Step", state: KeyState, node: Node, ready: Iterator[Occurrence], last: Occurrence) -> None:
    """Make what the context makes of initiators and one terminator, and close what it uses up."""
    context = step.context
    used: list[Occurrence] = []
    if context == "cumulative":
        used = list(ready)
        step.spend(len(used) >> 3)
        if not used or not step.offer(state, node, joined(node, tuple(used), (last,)), *span((used, (last,)))):
            return
    else:
        for first in ready if context == "chronicle" else list(ready):
            step.spend()
            groups = joined(node, (first,), (last,))
            if step.offer(state, node, groups, first[START], last[END] if last[END] > first[END] else first[END]):
                used.append(first)
                if context == "chronicle":
                    break
    if context not in ("unrestricted", "recent"):
        state.close(node, 0, used)


def joined(node: Node, first: tuple[Occurrence, ...], last: tuple[Occurrence, ...]) -> Groups:
    """Return initiators and terminators in the order of the operands."""
    return (first, last) if node.op == "seq" else ((), first, last)


def run_any(step: "Step", state: KeyState, node: Node, inputs: Inputs) -> None:
    """Take together occurrences of as many different operands as are asked for; `and` asks for both of two."""
    wanted = node.amount if node.op == "any" else 2
    for slot in range(node.slots):
        state.expire(node, slot, step.floor)
    for role, found in sorted(inputs, key=lambda item: (item[1][SERIAL], item[0])):
        if step.context == "recent":
            state.close(node, role, list(state.opened(node, role)))
            step.keep(state, node, role, found)
        used = MEETINGS[step.context](step, state, node, role, found, wanted)
        if step.context == "unrestricted" or (step.context != "recent" and not used):
            step.keep(state, node, role, found)
