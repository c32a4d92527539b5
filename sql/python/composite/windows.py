"""Operators that open a window: A, A*, P, P*, plus, absence, repeat; and the ticks in them."""

from typing import TYPE_CHECKING

from composite.absence import disturbs
from composite.graph import Node
from composite.keystate import KeyState
from composite.pairing import Inputs, before
from composite.points import END, SERIAL, START, Groups, Occurrence, shares, span, tick_point, time_of

if TYPE_CHECKING:
    from composite.stepping import Step


def run_aperiodic(step: "Step", state: KeyState, node: Node, inputs: Inputs) -> None:
    """Run A and A*: E3 closes, then E2 counts, then E1 opens."""
    state.expire(node, 0, step.floor)
    gathers = node.op == "a*" or step.context == "cumulative"
    for role, found in sorted(inputs, key=lambda item: (-item[0], item[1][SERIAL])):
        if role == 0:
            step.initiate(state, node, found)
        elif role == 2:
            close_windows(step, state, node, found)
        elif gathers:
            if any(True for _ in before(step, state, node, found)):
                step.keep(state, node, 1, found)
        else:
            for window in list(before(step, state, node, found)):
                step.spend()
                step.offer(state, node, ((window,), (found,), ()), found[START], found[END])
    if gathers:
        forget_unreachable(state, node)


def forget_unreachable(state: KeyState, node: Node) -> None:
    """Close the E2 that no open window can hold."""
    gathered = state.opened(node, 1)
    if not gathered:
        return
    windows = state.opened(node)
    if not windows:
        state.close(node, 1, list(gathered))
    elif gathered[0][START] <= windows[0][END]:
        # An early return for the common case: the oldest window reaches back to the oldest E2.
        reach = windows[0][END] if node.children[0].point else min(window[END] for window in windows)
        if node.children[1].point:
            state.close(node, 1, gathered[: first_behind(gathered, reach)])
        else:
            state.close(node, 1, [one for one in gathered if one[START] <= reach])


def close_windows(step: "Step", state: KeyState, node: Node, last: Occurrence) -> None:
    """Let E3 close windows of A, A*, P or P*: the oldest in chronicle context, else all."""
    closing = []
    for window in before(step, state, node, last):
        closing.append(window)
        if step.context == "chronicle":
            break
    if closing and step.context == "cumulative":
        offer_gathered(step, state, node, tuple(closing), last)
    elif node.op in ("a*", "p*"):
        for window in closing:
            offer_gathered(step, state, node, (window,), last)
    state.close(node, 0, closing)


def offer_gathered(
    step: "Step", state: KeyState, node: Node, windows: tuple[Occurrence, ...], last: Occurrence
) -> None:
    """Offer what lies in windows at once, unless nothing does."""
    if node.op in ("a", "a*"):
        found = gathered_between(node, state.opened(node, 1), windows, last)
        groups: Groups = (windows, found, (last,))
    else:
        found = tuple(ticks for window in windows for ticks in ticks_of(node, window, last))
        groups = (windows, (last,), found)
    if found:
        step.spend(1 + (len(found) >> 3))
        in_order = node.op in ("a", "a*") and node.children[1].point
        bounds = (found[0][START], found[-1][END]) if in_order else span((found,))
        step.offer(state, node, groups, *bounds)


def gathered_between(
    node: Node, gathered: list[Occurrence], windows: tuple[Occurrence, ...], last: Occurrence
) -> tuple[Occurrence, ...]:
    """Return the E2 that came behind one of the windows and lie before a terminator."""
    if node.children[0].point and node.children[1].point and not node.mixed:
        found = tuple(gathered[first_behind(gathered, windows[0][END]) :])
        if not found or found[-1][END] < last[START]:
            return found  # points lie in order
    return tuple(
        one
        for one in gathered
        if one[END] < last[START]
        and any(window[END] < one[START] and window[SERIAL] < one[SERIAL] for window in windows)
        and not (node.mixed and any(shares(one, other) for other in (*windows, last)))
    )


def first_behind(gathered: list[Occurrence], reach: int) -> int:
    """Return the index of the first that begins behind a point."""
    low, high = 0, len(gathered)
    while low < high:
        middle = (low + high) // 2
        if gathered[middle][START] <= reach:
            low = middle + 1
        else:
            high = middle
    return low


def ticks_of(node: Node, window: Occurrence, last: Occurrence) -> list[Occurrence]:
    """Return the ticks of a window before a terminator, as one run."""
    end = time_of(window[END])
    count = (time_of(last[START]) - end) // node.amount
    if count > 0 and tick_point(end + count * node.amount) >= last[START]:
        count -= 1
    if count < 1:
        return []
    return [(0, tick_point(end + node.amount), tick_point(end + count * node.amount), None, node.amount)]


def run_periodic(step: "Step", state: KeyState, node: Node, inputs: Inputs) -> None:
    """Run P and P*: E3 closes, then E1 opens; ticks come by timers, those of P* are counted at the end."""
    state.expire(node, 0, step.floor)
    for role, found in sorted(inputs, key=lambda item: (-item[0], item[1][SERIAL])):
        if role == 1:
            close_windows(step, state, node, found)
        else:
            step.initiate(state, node, found)
            if node.op == "p" and step.context != "cumulative":
                state.schedule(node, found)


def run_delayed(step: "Step", state: KeyState, node: Node, inputs: Inputs) -> None:
    """Run plus and absence up to their tick; an E2 closes all windows of an absence that it lies in.

    An E2 that comes at the same point as E1 lies in its window, which is closed.
    """
    state.expire(node, 0, step.floor)
    opener = 0 if node.op == "plus" else 1
    for role, found in sorted(inputs, key=lambda item: (-item[0], item[1][SERIAL])):
        if role == opener:
            step.initiate(state, node, found)
            state.schedule(node, found)
        else:
            state.close(node, 0, [one for one in state.opened(node) if disturbs(node, found, one)])


def fire(step: "Step", state: KeyState, node: Node, serial: int) -> None:
    """Let the timer of a window tick at the point of the step, if it is still open."""
    window = state.find(node, serial)
    if window is None:
        return
    tick: Occurrence = (0, step.point, step.point, None, 0)
    if window[START] < step.floor:
        state.close(node, 0, [window])
    elif node.op == "p":
        step.offer(state, node, ((window,), (), (tick,)), step.point, step.point)
        state.schedule(node, window)
    else:
        windows: tuple[Occurrence, ...] = (window,)
        if step.context == "cumulative":
            windows = tuple(one for one in state.opened(node) if one[START] >= step.floor)
        start = step.point if node.op == "plus" else min(one[START] for one in windows)
        groups: Groups = (windows, (tick,)) if node.op == "plus" else ((), windows, (tick,))
        if step.offer(state, node, groups, start, step.point):
            state.close(node, 0, list(windows))
        else:
            state.close(node, 0, [window])


def run_repeat(step: "Step", state: KeyState, node: Node, inputs: Inputs) -> None:
    """Take together occurrences in a row; one that overlaps the one before it is in no row with it."""
    state.expire(node, 0, step.floor)
    tumbling = step.context in ("chronicle", "cumulative")
    for _, found in inputs:
        row = row_before(state.opened(node), found, node.upper - 1)
        if tumbling and len(row) < len(state.opened(node)):
            continue  # it overlaps the last of a row that is counted from its beginning
        lengths = range(min(node.upper, len(row) + 1), node.amount - 1, -1)
        for length in (lengths[:1] if step.context == "recent" else reversed(lengths)) if not tumbling else lengths[:1]:
            step.spend(1 + (length >> 3))
            taken = (*row[len(row) + 1 - length :], found)
            step.offer(state, node, (taken,), *span((taken,)))
        if tumbling and len(row) + 1 == node.upper:
            state.close(node, 0, list(state.opened(node)))
        elif node.upper > 1:
            if not tumbling and node.children[0].point:
                state.close(node, 0, passed(node, state.opened(node), found))
            step.keep(state, node, 0, found)


def passed(node: Node, opened: list[Occurrence], found: Occurrence) -> list[Occurrence]:
    """Return which open points are in no row any more; of intervals an older one may still be before another."""
    if not node.children[0].distinct:
        # What comes in the same place as this one is in a row with those before it, too.
        opened = [one for one in opened if one[END] < found[START]]
        return opened[: max(len(opened) - node.upper + 1, 0)]
    return opened[:1] if len(opened) >= node.upper - 1 else []


def row_before(opened: list[Occurrence], found: Occurrence, length: int) -> list[Occurrence]:
    """Return the last occurrences that end before each other and before another, oldest first."""
    row: list[Occurrence] = []
    start = found[START]
    for one in reversed(opened):
        if len(row) == length:
            break
        if one[END] < start:
            row.append(one)
            start = one[START]
    return row[::-1]
