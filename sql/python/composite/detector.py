"""The detector: a function of the state and a batch of a stream. It knows no database and no clock of its own.

    graph, = build([define("pair", "a ; b")])
    state = State(graph)
    changes, found = detect(state, [Event(1, 10, "a"), Event(2, 20, "b")])

The same stream gives the same occurrences however it is cut into batches, whether the state was kept in memory
or stored as rows and loaded again, for all keys or for those concerned. When `detect` raises, the state is
spoilt: drop it and load what was stored.
"""

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, Optional, Union

from composite.event_time import Late, Ordering
from composite.graph import Graph, Node
from composite.keystate import UNTOUCHED, KeyState
from composite.matching import Matcher
from composite.points import BEFORE, BEHIND, SERIAL, Event, Idle, Occurrence, point_of, position_of, time_of
from composite.rows import HELD, VERSION, Gone, KeyRow, Row, frozen, held_at, held_row, key_row, load_occurrence, row_of
from composite.sequence import KeyChanges, Moment, Pair, as_found, moments_of, pair_up, sequence_of, what_changed
from composite.stepping import Fault, Found, GivenUp, Predicate, Step
from composite.wire import read_occurrence

Arrival = tuple[int, str, Occurrence]  # point, name of the leaf, occurrence without serial


class Changes(NamedTuple):
    """Say what a batch has changed, as sets.

    keys: one row for each key that was touched, in place of the one before. dropped: keys of which nothing is left.
    timers: (key, time) added and removed; a key has one timer, its earliest.
    ordering: how far the stream is, in place of the one before.
    """

    opened: list[Row]
    closed: list[Gone]
    keys: list[KeyRow]
    dropped: list[Any]
    timers_added: list[tuple[Any, int]]
    timers_removed: list[tuple[Any, int]]
    late: list[Late]
    given_up: list[GivenUp]
    faults: list[Fault]
    ordering: dict[str, Any]


class State:
    """Hold what is known of a graph: the order of its stream, and its keys, or those that were loaded."""

    def __init__(
        self, graph: Graph, conditions: Optional[Mapping[str, Predicate]] = None, matcher: Optional[Matcher] = None
    ) -> None:
        frame = graph.frame
        self.graph = graph
        self.step = Step(graph, conditions or {})
        self.matcher = matcher
        self.ordering = Ordering(frame.time_basis, frame.lateness)
        self.timed = [
            node
            for node in graph.nodes
            if node.op in ("plus", "absence") or (node.op == "p" and frame.context != "cumulative")
        ]
        self.keys: dict[Any, KeyState] = {}
        self.agenda: list[tuple[int, int, Any]] = []
        self.entries = count()
        self.begun: list[Any] = []
        self.may_begin_earlier = True
        self.sequence = sequence_of(graph)

    def start(self, time: int, *, at_latest: bool = False) -> None:
        """Begin the history of what has no partition key, so that the clock ticks before its first event.

        at_latest: in event time it begins with an event that is earlier, where nothing has happened before that.
        """
        if not self.graph.frame.partitioned:
            self.may_begin_earlier = at_latest
            if () not in self.keys:
                self.born((), time)
                self.begun.append(())

    def born(self, key: Any, time: int) -> KeyState:
        """Return the state of a key that begins at a time; ticks before it are not its."""
        state = self.keys[key] = KeyState(key)
        self.step.set_tick(state, time - 1)
        self.remind(state)
        return state

    def remind(self, state: KeyState) -> None:
        """Find when a key has something to do without an event, and note it."""
        if not (state.timers or state.held) and state.tick is None:
            state.due = None
            return
        # The timer of a window that is closed would be noted, and looked for when it is too late for the next.
        while state.timers and state.find(self.graph.nodes[state.timers[0][1]], state.timers[0][2]) is None:
            heappop(state.timers)
        times = [state.timers[0][0]] if state.timers else []
        times += [state.tick] if state.tick is not None else []
        times += [time_of(state.held[0][0])] if state.held else []
        due = min(times, default=None)
        if due is not None and due != state.queued:
            heappush(self.agenda, (due, next(self.entries), state.key))
            state.queued = due
        state.due = due

    def load(self, ordering: dict[str, Any], keys: Iterable[KeyRow], rows: Iterable[Row]) -> None:
        """Take over stored keys, in place of what is known of them; other keys stay as they are."""
        self.ordering.load(ordering)
        loaded = []
        for row in keys:
            if row.version != VERSION:
                raise ValueError(f"the state of a key has version {row.version} and not {VERSION}")
            state = self.keys[frozen(row.key)] = KeyState(frozen(row.key))
            state.serial = state.stored = row.serial
            state.clock, state.ticked, state.noted = row.clock, row.ticked, row.due
            loaded.append(state)
        for one in sorted(rows, key=lambda row: row.serial):
            self.load_row(self.keys[frozen(one.key)], one)
        for state in loaded:
            state.restore_timers(self.timed)
            if state.ticked is not None:
                self.step.set_tick(state, state.ticked)
            self.remind(state)
            if state.noted is not None and (state.due is None or state.noted < state.due):
                # Who keeps the state believes that it is due earlier, and has to be told.
                heappush(self.agenda, (state.noted, next(self.entries), state.key))
                state.queued = state.noted

    def load_row(self, state: KeyState, row: Row) -> None:
        """Take over an open occurrence, or an event that waits."""
        occurrence = load_occurrence(self.graph, row.data)
        if row.slot == HELD:
            heappush(state.held, (held_at(row, occurrence), row.node, occurrence))
        else:
            state.open(self.graph.names[row.node], row.slot, occurrence)

    def due(self, frontier: int) -> list[Any]:
        """Return the keys that have something to do before a time."""
        found: list[Any] = []
        while self.agenda and self.agenda[0][0] <= frontier:
            time, _, key = heappop(self.agenda)
            state = self.keys.get(key)
            if state is not None and state.queued == time:
                state.queued = None
                found.append(key)
        return list(dict.fromkeys(found))


def detect(state: State, batch: Iterable[Union[Event, Idle]], now: Optional[int] = None) -> tuple[Changes, list[Found]]:
    """Take a batch of the stream; return what it changes in the stored state, and what was detected, in order.

    `now` says that all events before a time have come: by arrival the time up to which timers may fire, in event
    time a watermark from elsewhere. It belongs to the history like an event: to repeat one, repeat both.
    A batch holds whole transactions if the graph has `begin_transaction` or `commit`.
    """
    run = Run(state)
    placed, late = state.ordering.take(batch)
    if now is not None:
        state.ordering.reach(now)
    moments = moments_of(state.sequence, placed, state.matcher) if state.sequence is not None else None
    if moments is not None and state.sequence is not None:
        pairs = run.pair_up(moments)
        return run.changes(late), as_found(state.sequence, pairs)
    run.enter(run.arrivals(placed))
    run.wake()
    return run.changes(late), run.found()


def detect_sequence(state: State, moments: Iterable[Moment], frontier: Optional[int]) -> tuple[Changes, list[Pair]]:
    """Do the same as `detect` for `a ; b`, whose events the caller has put in order, up to the time `frontier`."""
    run = Run(state)
    if frontier is not None:
        state.ordering.reach(frontier)
    pairs = run.pair_up(moments)
    return run.changes([]), pairs


class Run:
    """Take one batch."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.step = state.step
        self.names = state.graph.names
        self.touched: dict[Any, KeyState] = {}
        self.entered: dict[Any, list[Arrival]] = {}
        self.step.forget()

    def arrivals(self, placed: list[tuple[int, Event]]) -> dict[Any, list[Arrival]]:
        """Return the leaf occurrences of events, by key."""
        names, matcher = self.names, self.state.matcher
        found: dict[Any, list[Arrival]] = {}
        transactional = self.state.graph.transactional
        transactions: dict[tuple[int, str, Any], tuple[int, int]] = {}
        for point, event in placed:
            matches = event.matches
            if matches is None:
                matches = matcher(event) if matcher else []
            for name, key in matches:
                node = names[name]
                if event.told is not None:
                    found.setdefault(key, []).append(
                        (point, name, read_occurrence(node, event.told, event.origin or ""))
                    )
                    continue
                start, end = point, point
                moment = node.expression.moment
                if event.span is not None:
                    start, end = event.span
                    start, end = (end if moment == "end" else start), (start if moment == "begin" else end)
                elif event.start is not None and moment != "end":
                    start = point_of(*event.start)
                    end = start if moment == "begin" else point
                arrival = (point, name, (0, start, end, node, event.id, event.origin, event.payload))
                arrivals = found.get(key)
                if arrivals is None:
                    found[key] = [arrival]
                else:
                    arrivals.append(arrival)
                if transactional and event.transaction is not None:
                    mark = (event.transaction, name, key)
                    first, _ = transactions.setdefault(mark, (point, point))
                    transactions[mark] = (first, point)
        if transactional:
            self.mark(found, transactions, transactional)
        return found

    def mark(
        self, found: dict[Any, list[Arrival]], transactions: dict[tuple[int, str, Any], tuple[int, int]],
        nodes: list[Node],
    ) -> None:  # fmt: skip
        """Add the beginning and the end of transactions to the arrivals of their keys."""
        for node in nodes:
            bounds: dict[tuple[int, Any], tuple[int, int]] = {}
            for (transaction, name, key), (first, last) in transactions.items():
                if self.names[name].bare in node.others:
                    before = bounds.get((transaction, key), (first, last))
                    bounds[transaction, key] = (min(before[0], first), max(before[1], last))
            for (transaction, key), (first, last) in bounds.items():
                rank = BEFORE if node.op == "begin_transaction" else BEHIND
                edge = first if node.op == "begin_transaction" else last
                point = point_of(time_of(edge), position_of(edge), rank)
                found[key].append((point, node.name, (0, point, point, node, transaction, None, None)))
        for arrivals in found.values():
            arrivals.sort(key=lambda arrival: arrival[0])

    def pair_up(self, moments: Iterable[Moment]) -> list[Pair]:
        """Take the events of a sequence; return what is detected."""
        assert self.state.sequence is not None
        return pair_up(self.step, self.state.sequence, self.touch_event, moments)

    def touch_event(self, key: Any) -> KeyState:
        """Return the state of a key that has no clock and is about to change."""
        state = self.touched.get(key)
        if state is None:
            state = self.state.keys.get(key)
            if state is None:
                state = self.state.keys[key] = KeyState(key)
            self.touched[key] = state
        return state

    def touch(self, key: Any, time: int) -> KeyState:
        """Return the state of a key that is about to change."""
        state = self.touched.get(key)
        if state is None:
            known = self.state.keys.get(key)
            state = known if known is not None else self.state.born(key, time)
            self.touched[key] = state
        return state

    def enter(self, arrivals: dict[Any, list[Arrival]]) -> None:
        """Take the events of a batch, or hold them back until the watermark has passed them."""
        by_arrival = self.state.ordering.time_basis == "arrival"
        for key, items in arrivals.items():
            first = min(items, key=lambda item: item[0])
            state = self.touch(key, time_of(first[0]))
            if by_arrival:
                self.take(state, items)
            else:
                for item in items:
                    heappush(state.held, item)
                if self.state.may_begin_earlier and state.clock == UNTOUCHED and state.ticked is not None:
                    # A key begins with its earliest event, whichever came first.
                    self.step.set_tick(state, min(state.ticked, time_of(state.held[0][0]) - 1))
                self.entered[key] = items
                self.release(state)

    def take(self, state: KeyState, items: list[Arrival]) -> None:
        """Let events happen, all leaves of one at once, and before each the timers of earlier times."""
        step = self.step
        at, end = 0, len(items)
        while at < end:
            point = items[at][0]
            events = [items[at][2]]
            at += 1
            while at < end and items[at][0] == point:
                events.append(items[at][2])
                at += 1
            if state.timers or state.tick is not None:
                step.advance(state, time_of(point))
            step.arrive(state, point, events)

    def release(self, state: KeyState) -> None:
        """Let the events happen that nothing can come before."""
        ready: list[Arrival] = []
        held_back = self.state.ordering.held_back
        while state.held and not held_back(state.held[0][0]):
            ready.append(heappop(state.held))
        state.released.extend((item[1], position_of(item[0])) for item in ready)
        self.take(state, ready)

    def wake(self) -> None:
        """Let time pass for all keys, up to where the history is complete."""
        frontier = self.state.ordering.frontier
        if frontier is None:
            return
        # What has begun is stored, though nothing has happened yet: nobody would know when its first tick is due.
        for key in (*self.state.begun, *self.state.due(frontier)):
            self.touch(key, frontier)
        self.state.begun.clear()
        for state in self.touched.values():
            self.release(state)
            self.step.advance(state, frontier)

    def found(self) -> list[Found]:
        """Return what was detected, in order of time."""
        found = list(self.step.found)
        if self.state.graph.frame.partitioned:
            found.sort(key=lambda one: (one.point, repr(one.key)))
        return found

    def changes(self, late: list[Late]) -> Changes:
        """Return what is to be stored, and take it for stored."""
        root = self.state.sequence
        timers: tuple[list[tuple[Any, int]], list[tuple[Any, int]]] = ([], [])
        changed = self.changed(timers) if root is None else what_changed(root, self.touched)
        for key in changed[3]:
            del self.state.keys[key]
        step = self.step
        return Changes(
            *changed, *timers, late, list(step.given_up), list(step.faults), self.state.ordering.dump()
        )  # fmt: skip

    def changed(self, timers: tuple[list[tuple[Any, int]], list[tuple[Any, int]]]) -> KeyChanges:
        """Return what is opened and closed, the rows of keys, and which are empty; add timers, and those removed."""
        opened: list[Row] = []
        closed: list[Gone] = []
        keys: list[KeyRow] = []
        dropped: list[Any] = []
        for key, state in self.touched.items():
            state.sweep(self.state.graph.nodes)
            self.state.remind(state)
            closed.extend(Gone(key, *one) for one in state.closed)
            opened.extend(self.added(state))
            self.held_changes(state, opened, closed)
            state.stored = state.serial
            state.closed, state.released = [], []
            empty = state.empty()
            due = None if empty else state.due
            if state.noted != due:
                if due is not None:
                    timers[0].append((key, due))
                if state.noted is not None:
                    timers[1].append((key, state.noted))
                state.noted = due
            if empty:
                dropped.append(key)
            else:
                keys.append(key_row(state))
        return opened, closed, keys, dropped

    def added(self, state: KeyState) -> list[Row]:
        """Return the rows of what this batch opened and left open."""
        rows: list[Row] = []
        stored = state.stored
        for number in sorted(state.slots):
            opened = state.slots[number]
            if not opened or opened[-1][SERIAL] <= stored:
                continue
            low = len(opened)
            while low and opened[low - 1][SERIAL] > stored:
                low -= 1
            node, slot = self.state.graph.slot_nodes[number]
            rows.extend(row_of(state.key, node.name, slot, one[SERIAL], one) for one in opened[low:])
        return rows

    def held_changes(self, state: KeyState, opened: list[Row], closed: list[Gone]) -> None:
        """Add what was held back in this batch, and remove what was held before it."""
        arrived = self.entered.get(state.key, [])
        entered = {(name, position_of(point)) for point, name, _ in arrived}
        released = set(state.released)
        closed.extend(Gone(state.key, name, HELD, position) for name, position in released - entered)
        opened.extend(
            held_row(state.key, name, point, occurrence)
            for point, name, occurrence in arrived
            if (name, position_of(point)) not in released
        )
