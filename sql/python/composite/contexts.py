"""What `and` and `any` make of an occurrence and of those that are open, in each context (recent, chronicle, ...)."""

from itertools import combinations, product
from typing import TYPE_CHECKING

from composite.graph import Node
from composite.keystate import KeyState
from composite.points import END, SERIAL, START, Occurrence, shares, span

if TYPE_CHECKING:
    from composite.stepping import Step


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
