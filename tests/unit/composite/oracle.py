"""A slow detector that follows the definitions word by word.

It looks at whole histories: for each sub-expression it makes the list of all occurrences from the complete lists
of its operands. In unrestricted context it enumerates all combinations and keeps those that the definition
allows; in the others it goes through the operands' occurrences once, with plain lists and no clean-up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain, combinations, pairwise, product
from typing import TYPE_CHECKING

from composite.points import TICK, point_of, tick_point, time_of
from composite.syntax import Expression, print_expression
from composite.times import next_tick
from tests.unit.composite.occ import Occ, apart, either, event_occ, late, nested, tick_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from composite.points import Event


@dataclass(slots=True)
class Oracle:
    """The definitions over one history, which is complete before `horizon`; the clock ticks from `born` on."""

    context: str
    events: list[Event]
    horizon: int
    born: int
    within: int | None = None
    known: dict[str, tuple[int, list[Occ]]] = field(default_factory=dict)

    def all(self, expression: Expression) -> list[Occ]:
        """Return the occurrences of an expression, in the order of their detection."""
        return self.numbered(expression)[1]

    def numbered(self, expression: Expression) -> tuple[int, list[Occ]]:
        text = print_expression(expression)
        if text not in self.known:
            # Of what operands bring in one step, that comes first whose expression does, in what this one is made of.
            order = list(dict.fromkeys(map(print_expression, parts_of(expression))))
            parts = [
                [replace(one, age=(one.at, order.index(print_expression(part)), i)) for i, one in enumerate(found)]
                for part, found in zip(expression.parts, map(self.all, expression.parts), strict=True)
            ]
            number = len(self.known)
            found = [
                Occ(one.start, one.end, one.at, (one.at, number, i), one.ids, one.tree)
                for i, one in enumerate(self.made(expression, parts))
            ]
            self.known[text] = (number, found)
        return self.known[text]

    def made(self, expression: Expression, parts: list[list[Occ]]) -> list[Occ]:
        op = expression.op
        if op == "leaf":
            return [
                event_occ(point_of(event.time or 0, event.position), event)
                for event in self.events
                if event.type == expression.type
            ]
        if op in ("at", "every", "cron"):
            return list(self.ticks(expression))
        if op == "or":
            return either(parts)
        named = f"{self.context}_{METHODS[op]}"
        method = getattr(self, named, None) or getattr(self, METHODS[op])
        return sorted(method(expression, parts), key=lambda one: one.at)

    def ticks(self, expression: Expression) -> Iterator[Occ]:
        time = self.born - 1
        while True:
            following = next_tick(expression.op, expression.amount, expression.text, expression.zone, time)
            if following is None or following >= self.horizon:
                return
            time = following
            ids = frozenset([(time, print_expression(expression))])
            yield Occ(tick_point(time), tick_point(time), tick_point(time), (0, 0, 0), ids, ("tick", time))

    def fresh(self, one: Occ, at: int) -> bool:
        return self.within is None or time_of(one.start) >= time_of(at) - self.within

    def fits(self, start: int, end: int) -> bool:
        return self.within is None or time_of(end) - time_of(start) <= self.within

    def join(
        self, op: str, groups: Iterable[Iterable[Occ]], at: int, bounds: tuple[int, int] | None = None
    ) -> list[Occ]:
        """Return the occurrence of an operator, or none if it takes too long."""
        kept = [tuple(group) for group in groups]
        members = list(chain(*kept))
        start, end = bounds or (min(one.start for one in members), max(one.end for one in members))
        if not self.fits(start, end):
            return []
        tree = (op, tuple(tuple(one.tree for one in group) for group in kept))
        return [Occ(start, end, at, (0, 0, 0), frozenset().union(*(one.ids for one in members)), tree)]

    # What comes together, in unrestricted context.

    def unrestricted_pairs(self, expression: Expression, parts: list[list[Occ]]) -> Iterator[Occ]:
        for last in parts[-1]:
            for first in self.initiators(expression, parts):
                if self.may_pair(expression, parts, first, last):
                    yield from self.join_pair(expression, [first], last)

    def initiators(self, expression: Expression, parts: list[list[Occ]]) -> list[Occ]:
        return parts[0] if expression.op == "seq" else parts[1]

    def join_pair(self, expression: Expression, firsts: list[Occ], last: Occ) -> list[Occ]:
        groups = [firsts, [last]] if expression.op == "seq" else [[], firsts, [last]]
        return self.join(expression.op, groups, last.at)

    def may_pair(self, expression: Expression, parts: list[list[Occ]], first: Occ, last: Occ) -> bool:
        """E1 was there before, ended before E3 begins, and no whole E2 lies in the closed interval between.

        Closed in time and in the order of detection: what is detected at the point of E1 or of E3 lies in it, too.
        """
        allowed = first.at < last.at and first.end < last.start and apart(first, last) and self.fresh(first, last.at)
        between = parts[0] if expression.op == "not" else []
        return allowed and not any(
            first.end <= one.start and one.end <= last.start and first.at <= one.at <= last.at
            and apart(one, first) and apart(one, last)
            for one in between
        )  # fmt: skip

    def unrestricted_meetings(self, expression: Expression, parts: list[list[Occ]]) -> list[Occ]:
        wanted = 2 if expression.op == "and" else expression.amount
        made: list[tuple[tuple[tuple[int, int, int], int], Occ]] = []
        for roles in combinations(range(len(parts)), wanted):
            for members in product(*(parts[role] for role in roles)):
                at = max(one.at for one in members)
                if not all(apart(one, other) for one, other in combinations(members, 2)):
                    continue
                if not all(self.fresh(one, at) for one in members):
                    continue
                if expression.op == "and" and nested(*members):
                    continue
                groups: list[list[Occ]] = [[] for _ in parts]
                for role, one in zip(roles, members, strict=True):
                    groups[role] = [one]
                last = max((one.age, role) for role, one in zip(roles, members, strict=True))
                made += [(last, found) for found in self.join(expression.op, groups, at)]
        # An event that completes several combinations completes them one operand after the other.
        return [found for _, found in sorted(made, key=lambda item: item[0])]

    # What comes together, in the contexts that use up.

    def pairs(self, expression: Expression, parts: list[list[Occ]]) -> Iterator[Occ]:
        used: set[int] = set()
        for last in parts[-1]:
            opened = [one for one in self.initiators(expression, parts) if one.at < last.at and id(one) not in used]
            opened = opened[-1:] if self.context == "recent" else opened
            ready = [one for one in opened if self.may_pair(expression, parts, one, last)]
            for firsts in [ready] if self.context == "cumulative" else [[one] for one in ready]:
                if firsts and (found := self.join_pair(expression, firsts, last)):
                    yield from found
                    used |= {id(one) for one in firsts if self.context != "recent"}
                    if self.context == "chronicle":
                        break

    def meetings(self, expression: Expression, parts: list[list[Occ]]) -> Iterator[Occ]:
        wanted = 2 if expression.op == "and" else expression.amount
        slots: list[list[Occ]] = [[] for _ in parts]
        arriving = sorted(
            ((one, role) for role, part in enumerate(parts) for one in part), key=lambda x: (x[0].age, x[1])
        )
        for found, role in arriving:
            if self.context == "recent":
                slots[role] = [found]
            ready = sorted(
                (
                    (one, slot)
                    for slot, opened in enumerate(slots)
                    for one in opened
                    if slot != role and apart(one, found) and self.fresh(one, found.at)
                    and not (expression.op == "and" and nested(one, found))
                ),
                key=lambda item: (item[0].age, item[1]),
            )  # fmt: skip
            used: list[tuple[Occ, int]] = []
            done = False
            for others in self.choices(wanted, ready, found, role, slots):
                groups: list[list[Occ]] = [[] for _ in parts]
                for one, slot in (*others, (found, role)):
                    groups[slot].append(one)
                groups = [sorted(group, key=lambda one: one.age) for group in groups]
                if made := self.join(expression.op, groups, found.at):
                    yield from made
                    done = True
                    used += others[:1] if self.context == "continuous" else others
                    if self.context != "continuous":
                        break
            if self.context != "recent":
                for one, slot in used:
                    slots[slot] = [other for other in slots[slot] if other is not one]
                if not done:
                    slots[role].append(found)

    def choices(  # noqa: C901 - one case for each context
        self, wanted: int, ready: list[tuple[Occ, int]], found: Occ, role: int, slots: list[list[Occ]]
    ) -> Iterator[list[tuple[Occ, int]]]:
        """Return what may come together with an occurrence, in the order in which the context prefers it."""
        if self.context == "cumulative":
            own = [(one, role) for one in slots[role] if self.fresh(one, found.at)]
            folded: list[tuple[Occ, int]] = []
            for one, slot in sorted(ready + own, key=lambda item: (item[0].age, item[1])):
                if all(slot == where or apart(one, other) for other, where in (*folded, (found, role))):
                    folded.append((one, slot))
            if len({slot for _, slot in folded} | {role}) >= wanted:
                yield folded
        elif self.context == "continuous" and wanted > 1:
            for i, first in enumerate(ready):
                others = [first]
                for one, slot in ready[i + 1 :]:
                    free = slot not in {where for _, where in others}
                    if len(others) < wanted - 1 and free and all(apart(one, other) for other, _ in others):
                        others.append((one, slot))
                if len(others) == wanted - 1:
                    yield others
        else:
            for chosen in combinations(ready if self.context != "recent" else ready[::-1], wanted - 1):
                if len({slot for _, slot in chosen}) == wanted - 1 and all(
                    apart(one, other) for (one, _), (other, _) in combinations(chosen, 2)
                ):
                    yield list(chosen)

    # Windows.

    def windows(self, opening: list[Occ], closing: list[Occ]) -> list[tuple[Occ, Occ | None]]:
        """Return each initiator with the first occurrence that closes or replaces it, if one does."""
        ends: dict[int, Occ] = {}
        if self.context == "recent":
            for window, newer in pairwise(opening):
                ends[id(window)] = Occ(newer.at, newer.at, newer.at, newer.age, frozenset(["replaced"]), None)
        for last in closing:
            for window in opening:
                free = id(window) not in ends or (ends[id(window)].tree is None and last.at <= ends[id(window)].at)
                if (
                    free and window.at < last.at and window.end < last.start and apart(window, last)
                    and self.fresh(window, last.at)
                ):  # fmt: skip
                    ends[id(window)] = last
                    if self.context == "chronicle":
                        break
        return [(window, ends.get(id(window))) for window in opening]

    def aperiodic(self, expression: Expression, parts: list[list[Occ]]) -> Iterator[Occ]:
        closed = self.windows(parts[0], parts[2])
        if expression.op == "a*" or self.context == "cumulative":
            yield from self.gathered(expression, closed, parts[1])
            return
        for one in parts[1]:
            for window, end in closed:
                now = window.at < one.at and window.end < one.start and apart(window, one)
                if now and self.fresh(window, one.at) and (end is None or one.at < end.at or late(end, one)):
                    yield from self.join("a", [[window], [one], []], one.at, (one.start, one.end))

    def gathered(
        self, expression: Expression, closed: list[tuple[Occ, Occ | None]], members: list[Occ]
    ) -> Iterator[Occ]:
        ends = {id(end): end for _, end in closed if end is not None and end.tree is not None}
        for end in ends.values():
            together = [window for window, by in closed if by is end]
            for windows in [together] if self.context == "cumulative" else [[window] for window in together]:
                inside = [
                    one for one in members
                    if one.at < end.at and one.end < end.start and all(apart(one, other) for other in (end, *windows))
                    and any(w.age < one.age and w.end < one.start for w in windows)
                ]  # fmt: skip
                if inside:
                    bounds = min(one.start for one in inside), max(one.end for one in inside)
                    yield from self.join(expression.op, [windows, inside, [end]], end.at, bounds)

    def periodic(self, expression: Expression, parts: list[list[Occ]]) -> Iterator[Occ]:
        closed = self.windows(parts[0], parts[1])
        if expression.op == "p*" or self.context == "cumulative":
            yield from self.counted(expression, closed)
            return
        for window, end in closed:
            time = time_of(window.end) + expression.amount
            while time < self.horizon:
                point = tick_point(time)
                if end is not None and (end.at <= point):
                    break
                if point > window.at and self.fresh(window, point):
                    yield from self.join("p", [[window], [], [tick_run(time, time, 0)]], point, (point, point))
                time += expression.amount

    def counted(self, expression: Expression, closed: list[tuple[Occ, Occ | None]]) -> Iterator[Occ]:
        ends = {id(end): end for _, end in closed if end is not None and end.tree is not None}
        for end in ends.values():
            together = [window for window, by in closed if by is end]
            for windows in [together] if self.context == "cumulative" else [[window] for window in together]:
                runs = []
                for window in windows:
                    first = time_of(window.end) + expression.amount
                    times = [
                        t for t in range(first, time_of(end.start) + 1, expression.amount) if tick_point(t) < end.start
                    ]
                    runs += [tick_run(times[0], times[-1], expression.amount)] if times else []
                if runs:
                    bounds = min(run.start for run in runs), max(run.end for run in runs)
                    yield from self.join(expression.op, [windows, [end], runs], end.at, bounds)

    def delayed(self, expression: Expression, parts: list[list[Occ]]) -> Iterator[Occ]:
        plus = expression.op == "plus"
        opening = parts[0] if plus else parts[1]
        against = [] if plus else parts[0]
        due = {
            id(one): max(time_of(one.end) + expression.amount, time_of(one.at) + (1 if one.at & TICK else 0))
            for one in opening
        }
        open_now: list[Occ] = []
        gone: set[int] = set()
        for first in sorted(opening, key=lambda one: (due[id(one)], one.age)):
            point = tick_point(due[id(first)])
            if due[id(first)] >= self.horizon or id(first) in gone or not self.stands(first, point, opening, against):
                continue
            if not self.fresh(first, point):
                continue
            open_now = [first]
            if self.context == "cumulative":
                open_now = [
                    one for one in opening
                    if one.at <= point and id(one) not in gone and due[id(one)] >= due[id(first)]
                    and self.stands(one, point, opening, against) and self.fresh(one, point)
                ]  # fmt: skip
            tick = tick_run(due[id(first)], due[id(first)], 0)
            start = point if plus else min(one.start for one in open_now)
            groups = [open_now, [tick]] if plus else [[], open_now, [tick]]
            found = self.join(expression.op, groups, point, (start, point))
            yield from found
            gone |= {id(one) for one in (open_now if found else [first])}

    def stands(self, one: Occ, point: int, opening: list[Occ], against: list[Occ]) -> bool:
        """Tell whether a window is open at a tick: not replaced, and nothing came that must not."""
        if self.context == "recent" and any(one.age < other.age and other.at <= point for other in opening):
            return False
        return not any(
            one.end <= other.start and one.at <= other.at <= point and apart(one, other) for other in against
        )

    def rows(self, expression: Expression, parts: list[list[Occ]]) -> Iterator[Occ]:
        least, most = expression.amount, expression.upper or expression.amount
        row: list[Occ] = []
        for i, found in enumerate(parts[0]):
            if self.context in ("chronicle", "cumulative"):
                row = [one for one in row if self.fresh(one, found.at)]
                if row and row[-1].end >= found.start:
                    continue
                row.append(found)
                if least <= len(row):
                    yield from self.join("repeat", [row], found.at)
                row = [] if len(row) == most else row
                continue
            row = [found]
            for one in reversed(parts[0][:i]):
                if one.end < row[0].start and self.fresh(one, found.at) and len(row) < most:
                    row.insert(0, one)
            lengths = list(range(least, len(row) + 1))
            for length in lengths[-1:] if self.context == "recent" else lengths:
                yield from self.join("repeat", [row[-length:]], found.at)


def parts_of(expression: Expression) -> Iterator[Expression]:
    """Yield what an expression is made of, each behind its own parts."""
    for part in expression.parts:
        yield from parts_of(part)
        yield part


METHODS = {
    "seq": "pairs", "not": "pairs", "and": "meetings", "any": "meetings", "a": "aperiodic", "a*": "aperiodic",
    "p": "periodic", "p*": "periodic", "plus": "delayed", "absence": "delayed", "repeat": "rows",
}  # fmt: skip
