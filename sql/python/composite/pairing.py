"""Operators that take occurrences together: or, and, any, `;`, not."""

from collections.abc import Iterator
from itertools import combinations, product
from typing import TYPE_CHECKING

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


def run_not(step: "Step", state: KeyState, node: Node, inputs: Inputs) -> None:
    """Pair E1 and E3 with no whole E2 between; inputs are terminators, then E2, then initiators."""
    state.expire(node, 0, step.floor)
    order = (1, 2, 0)
    for role, found in sorted(inputs, key=lambda item: (order[item[0]], item[1][SERIAL])):
        if role == 1:
            step.initiate(state, node, found)
        elif role == 0:
            forbid(step, state, node, found)
        else:
            pair(step, state, node, undisturbed(step, state, node, found), found)
    if not state.opened(node):
        state.close(node, 1, list(state.opened(node, 1)))


def forbid(step: "Step", state: KeyState, node: Node, found: Occurrence) -> None:
    """Close the windows in which an E2 lies; keep it where an E3 may have begun before it."""
    if node.children[2].point:
        state.close(node, 0, [one for one in state.opened(node) if disturbs(node, found, one)])
    elif state.opened(node):
        step.keep(state, node, 1, found)


def disturbs(node: Node, found: Occurrence, window: Occurrence) -> bool:
    """Tell whether an E2 lies behind the end of a window's beginning and is no part of it."""
    return bool(window[END] <= found[START]) and not (node.mixed and shares(found, window))


def undisturbed(step: "Step", state: KeyState, node: Node, last: Occurrence) -> Iterator[Occurrence]:
    """Return the initiators between whose end and the beginning of a terminator no whole E2 lies."""
    between = [
        one for one in state.opened(node, 1) if one[END] <= last[START] and not (node.mixed and shares(one, last))
    ]
    for first in before(step, state, node, last):
        if not any(disturbs(node, one, first) for one in between):
            yield first


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


def fitting(step: "Step", state: KeyState, node: Node, role: int, found: Occurrence) -> list[list[Occurrence]]:
    """Return for each operand the open occurrences that may meet another one; none for its own operand."""
    floor, check = step.floor, node.op == "and"
    return [
        []
        if slot == role
        else [
            one
            for one in state.opened(node, slot)
            if one[START] >= floor and not (node.mixed and shares(one, found)) and not (check and inside(one, found))
        ]
        for slot in range(node.slots)
    ]


def inside(one: Occurrence, other: Occurrence) -> bool:
    """Tell whether one interval lies in the other, so that none is first at both ends."""
    return bool(
        (one[START] < other[START] and other[END] < one[END]) or (other[START] < one[START] and one[END] < other[END])
    )


def meet(
    step: "Step", state: KeyState, node: Node, role: int, found: Occurrence, others: list[tuple[int, Occurrence]]
) -> bool:
    """Offer an occurrence with one of each of several other operands."""
    step.spend()
    groups: list[tuple[Occurrence, ...]] = [()] * node.slots
    groups[role] = (found,)
    start, end = found[START], found[END]
    for i, (slot, one) in enumerate(others):
        if node.mixed and any(shares(one, another) for _, another in others[:i]):
            return False
        groups[slot] = (one,)
        start, end = min(start, one[START]), max(end, one[END])
    return step.offer(state, node, tuple(groups), start, end)


def meet_all(step: "Step", state: KeyState, node: Node, role: int, found: Occurrence, wanted: int) -> bool:
    """Offer every combination."""
    open_in = fitting(step, state, node, role, found)
    slots = [slot for slot, opened in enumerate(open_in) if opened]
    for chosen in combinations(slots, wanted - 1):
        for others in product(*(open_in[slot] for slot in chosen)):
            meet(step, state, node, role, found, list(zip(chosen, others)))
    return False


def meet_in_order(
    step: "Step", state: KeyState, node: Node, role: int, found: Occurrence, wanted: int, *, newest: bool
) -> list[tuple[int, Occurrence]]:
    """Offer the first combination, by age or by youth, that is one; return the others in it."""
    open_in = fitting(step, state, node, role, found)
    if sum(1 for opened in open_in if opened) < wanted - 1:
        return []
    if not (node.tests or node.mixed or step.within):
        open_in = [opened[:1] for opened in open_in]
    members = sorted(
        ((one[SERIAL], slot, one) for slot, opened in enumerate(open_in) for one in opened),
        key=lambda item: item[:2], reverse=newest,
    )  # fmt: skip
    for chosen in combinations(members, wanted - 1):
        step.spend()
        if len({slot for _, slot, _ in chosen}) == wanted - 1:
            others = [(slot, one) for _, slot, one in chosen]
            if meet(step, state, node, role, found, others):
                return others or [(role, found)]
    return []


def meet_newest(step: "Step", state: KeyState, node: Node, role: int, found: Occurrence, wanted: int) -> bool:
    """Offer the latest of the others; they stay open."""
    return bool(meet_in_order(step, state, node, role, found, wanted, newest=True))


def meet_oldest(step: "Step", state: KeyState, node: Node, role: int, found: Occurrence, wanted: int) -> bool:
    """Offer the oldest of the others and close them."""
    others = meet_in_order(step, state, node, role, found, wanted, newest=False)
    for slot, one in others:
        if one is not found:
            state.close(node, slot, [one])
    return bool(others)


def meet_each(step: "Step", state: KeyState, node: Node, role: int, found: Occurrence, wanted: int) -> bool:
    """Offer for each open initiator what has come since, and close the initiators that this completes."""
    if wanted == 1:
        return meet(step, state, node, role, found, [])
    open_in = fitting(step, state, node, role, found)
    if sum(1 for opened in open_in if opened) < wanted - 1:
        return False
    members = sorted(
        ((one[SERIAL], slot, one) for slot, opened in enumerate(open_in) for one in opened), key=lambda item: item[:2]
    )
    used: list[tuple[int, Occurrence]] = []
    for i, (_, slot, first) in enumerate(members):
        others = {slot: first}
        for _, later, one in members[i + 1 :] if wanted > 2 else ():
            if len(others) < wanted - 1 and not (node.mixed and any(shares(one, other) for other in others.values())):
                others.setdefault(later, one)
        if len(others) < wanted - 1:
            if node.mixed:
                continue
            break  # a later one has no more behind it
        if meet(step, state, node, role, found, list(others.items())):
            used.append((slot, first))
    for slot in range(node.slots):
        state.close(node, slot, [one for where, one in used if where == slot])
    return bool(used)


def meet_together(step: "Step", state: KeyState, node: Node, role: int, found: Occurrence, wanted: int) -> bool:
    """Offer all that is open in one, and close it."""
    open_in = fitting(step, state, node, role, found)
    if sum(1 for opened in open_in if opened) < wanted - 1:
        return False
    open_in[role] = [*(one for one in state.opened(node, role) if one[START] >= step.floor), found]
    if node.mixed:
        open_in = apart(open_in, found)
        if sum(1 for opened in open_in if opened) < wanted:
            return False
    groups = [tuple(opened) for opened in open_in]
    step.spend(sum(map(len, groups)) >> 3)
    if not step.offer(state, node, tuple(groups), *span(groups)):
        return False
    for slot, group in enumerate(groups):
        state.close(node, slot, [one for one in group if one is not found])
    return True


def apart(open_in: list[list[Occurrence]], found: Occurrence) -> list[list[Occurrence]]:
    """Leave out what shares an event with an older occurrence of another operand, or with the last to come."""
    kept: list[list[Occurrence]] = [[] for _ in open_in]
    for one, slot in sorted(
        ((one, slot) for slot, opened in enumerate(open_in) for one in opened),
        key=lambda item: (item[0] is not found, item[0][SERIAL], item[1]),
    ):
        if not any(shares(one, other) for where, group in enumerate(kept) if where != slot for other in group):
            kept[slot].append(one)
    return [sorted(group, key=lambda one: one[SERIAL]) for group in kept]


MEETINGS = {
    "unrestricted": meet_all, "recent": meet_newest, "chronicle": meet_oldest,
    "continuous": meet_each, "cumulative": meet_together,
}  # fmt: skip
