"""A composite event tried on a history: detected without keeping anything, or with an account of one event."""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from composite.definition import Definition
from composite.described import define_from, leaf_nodes, tests_of
from composite.detector import State, detect
from composite.graph import Graph, Node, build
from composite.keys import canonical_key
from composite.keystate import KeyState
from composite.limits import combinations_allowed
from composite.memo import Memo, write_given
from composite.occurrences import bind
from composite.points import END, ORIGIN, START, Event, Groups, Occurrence, events_of, point_of, time_of
from composite.queries import Queries
from composite.stepping import Found, Step
from composite.told import moment, write_parts
from composite.wire import broker_of

Held = dict[tuple[str, int], tuple[Node, Occurrence]]
INFINITE = 1 << 70
PLACE_BITS = 48  # as of a position in the broker: the batch is above them


def try_step(db: Any, memory: dict[str, Any], text: str) -> dict[str, Any]:
    """Detect in the events of a job; return what was found, and for `explain` what became of one event."""
    job = json.loads(text)
    definition = define_from(job["given"])
    (graph,) = build([definition], [*job["intervals"], *job.get("part_types", [])])
    stream = read_stream(job, definition, graph)
    memo = Memo(tests_of(graph))
    # None is kept from trial to trial: the plan of a condition does not notice that an event type loses an attribute.
    memory.pop("plans", None)
    queries = Queries(db, memory)
    while True:
        state = State(graph, memo.callbacks())
        if job.get("explain") is not None:
            state.step = TracedStep(graph, memo.callbacks(), job["explain"])
            # It notes what happens on the walk through the graph.
            state.sequence = None
        state.step.heed = queries.heed
        state.step.most = combinations_allowed(len(stream), len(graph.nodes))
        if graph.ticking and not graph.frame.partitioned and job["began"] is not None:
            state.start(job["began"])
        _, found = detect(state, stream, job["now"] if graph.frame.time_basis == "arrival" else None)
        if isinstance(state.step, TracedStep) and graph.frame.time_basis == "event" and job["now"] is not None:
            # The broker may be further than the events tell: it waits for no source that is silent.
            state.ordering.reach(job["now"])
            detect(state, [], None)
        if not memo.asked:
            break
        memo.learn(queries.answers(job, memo.asked))
    if isinstance(state.step, TracedStep):
        state.step.note_waiting(state.keys.values())
        return {"found": [], "lines": state.step.lines}
    return {"found": [tell_trial(definition, one) for one in found], "lines": []}


def read_stream(job: dict[str, Any], definition: Definition, graph: Graph) -> list[Event]:
    """Return the events of a job in their order; each may stand there once for each leaf that it matches."""
    nodes = leaf_nodes(definition, graph)
    by_position: dict[int, Event] = {}
    told: list[tuple[Any, Event]] = []
    for one in sorted(job["events"], key=lambda one: one["id"]):
        position = place_of(job, one)
        if one["leaf"] >= len(nodes):
            told.append(told_event(job, one, position))
            continue
        node = nodes[one["leaf"]]
        if position is None or not comes_from(job, one, job["sources"][one["leaf"]]):
            continue
        key: Any = canonical_key(one["payload"], node.columns) if node.columns else ()
        event = by_position.get(position)
        if event is None:
            span = None
            if one.get("starts") is not None:
                span = (point_of(one["starts"], 0), point_of(one["ends"], position))
            event = by_position[position] = Event(
                position, one["at"], one["type"], one["payload"], one["id"], one["origin"], one["xid"], None, [], span
            )
        if event.matches is not None and (node.name, key) not in event.matches:
            event.matches.append((node.name, key))
    # What a neighbour detected at one point is taken at one point, too.
    points: dict[Any, int] = {}
    stream = [event._replace(position=points.setdefault(point, event.position)) for point, event in told]
    return sorted([*by_position.values(), *stream], key=lambda event: event.position)


def told_event(job: dict[str, Any], one: dict[str, Any], position: Optional[int]) -> tuple[Any, Event]:
    """Return what a neighbour has detected, and the point at which it did."""
    place, key, point, told = json.loads(one["payload"])["constituents"]
    nodes = job["parts"].get(str(one["leaf"]))
    matches = [(nodes[place], () if key is None else key)] if nodes else []
    event = Event(position or 0, point[0], "", None, one["id"], one["origin"], None, None, matches, None, told)
    return (one["leaf"], *point), event


def comes_from(job: dict[str, Any], one: dict[str, Any], wanted: Optional[dict[str, Any]]) -> bool:
    """Tell whether an event comes from a source; None: from any."""
    if wanted is None:
        return True
    if wanted["broker"] != one["origin"]:
        return False
    return wanted["client"] in (None, client_of(job, one))


def client_of(job: dict[str, Any], one: dict[str, Any]) -> Optional[str]:
    """Return the client that published an event, None when it was none of those that sources name."""
    if "client" in one:
        return one["client"]  # type: ignore[no-any-return]
    # Of the statements around it the one that ends first, as the broker looks it up.
    for xid, first, last, name in job["clients"].get(one["type"], []):
        if xid == one["xid"] and first <= one["id"] <= last:
            return name  # type: ignore[no-any-return]
    return None


def place_of(job: dict[str, Any], one: dict[str, Any]) -> Optional[int]:
    """Return the place of an event in the order of delivery; None when it has not been dispatched."""
    if one.get("batch") is not None:
        return one["batch"] << PLACE_BITS | one["id"]  # type: ignore[no-any-return]
    ranges = job["batches"].get(one["type"], [])
    at = bisect_right(ranges, [one["id"], INFINITE]) - 1
    if at < 0 or not ranges[at][0] <= one["id"] <= ranges[at][1]:
        return None
    return ranges[at][2] << PLACE_BITS | one["id"]  # type: ignore[no-any-return]


def tell_trial(definition: Definition, found: Found) -> dict[str, Any]:
    """Return what would have been published."""
    one = found.occurrence
    return {
        "starts_at": moment(time_of(one[START])),
        "ends_at": moment(time_of(one[END])),
        "detected_at": moment(time_of(found.point)),
        "constituents": write_parts(definition, one),
        "bound": write_given(bind(definition, one)),
    }


class TracedStep(Step):
    """Run steps, and note what becomes of one event."""

    def __init__(self, graph: Graph, conditions: Any, event_id: int) -> None:
        super().__init__(graph, conditions)
        self.event_id = event_id
        self.lines: list[tuple[str, str]] = []

    def concerns(self, occurrence: Occurrence) -> bool:
        """Tell whether an occurrence has the event in it."""
        return any(len(one) == 7 and number_of(one) == self.event_id for one in events_of(occurrence))

    def held(self, state: KeyState) -> Held:
        """Return what is open with the event in it."""
        return {
            (node.name, one[0]): (node, one)
            for node, slot in self.graph.slot_nodes
            for one in state.opened(node, slot)
            if self.concerns(one)
        }

    def note_waiting(self, states: Iterable[KeyState]) -> None:
        """Note that the event has come and is still to be put in order."""
        waiting = [one for state in states for _, _, one in state.held if self.concerns(one)]
        if waiting:
            self.lines += [("matched", one[3].text) for one in waiting]
            self.lines.append(("waits", "for the watermark"))

    def arrive(self, state: KeyState, point: int, events: list[Occurrence]) -> None:
        """Take an event, and note what opens and closes with it."""
        for event in events:
            if self.concerns(event):
                self.lines.append(("matched", event[3].text))
        before = self.held(state)
        super().arrive(state, point, events)
        self.compare(state, before, self.held(state))

    def advance(self, state: KeyState, limit: int) -> None:
        """Let time pass, and note what closes."""
        before = self.held(state)
        super().advance(state, limit)
        self.compare(state, before, self.held(state))

    def compare(self, state: KeyState, before: Held, after: Held) -> None:
        """Note what was opened and closed."""
        for mark in after.keys() - before.keys():
            self.lines.append(("opened", f"in {after[mark][0].text}"))
        given_up = {id(one.occurrence) for one in self.given_up}
        for mark in before.keys() - after.keys():
            node, one = before[mark]
            if id(one) in given_up:
                why = "given up"
            elif one[START] < self.floor:
                why = "expired"
            elif self.context == "recent" and any(other[0] > one[0] for other in state.opened(node)):
                why = "replaced"
            else:
                why = "closed"
            self.lines.append((why, f"in {node.text}, at {moment(time_of(self.point))}"))

    def offer(self, state: KeyState, node: Node, groups: Groups, start: int, end: int) -> bool:
        """Make an occurrence, and note whether it became one."""
        made = super().offer(state, node, groups, start, end)
        if any(self.concerns(one) for group in groups for one in group):
            others = ", ".join(str(number) for number in sorted(self.members(groups)))
            what = "paired" if made else "failed the filter, or takes too long"
            self.lines.append((what, f"in {node.text}, with events {others}"))
            if made and node.roots:
                self.lines.append(("detected", f"at {moment(time_of(self.point))}"))
        return made

    def members(self, groups: Groups) -> Iterator[int]:
        """Return the ids of the other events in groups."""
        for group in groups:
            for one in group:
                for event in events_of(one):
                    number = number_of(event) if len(event) == 7 else None
                    if number is not None and number != self.event_id:
                        yield number


def number_of(event: Occurrence) -> Optional[int]:
    """Return the number of an event; one that never came here has none here."""
    number: Optional[int] = event[4]
    return number if broker_of(event[ORIGIN])[1] is None else None
