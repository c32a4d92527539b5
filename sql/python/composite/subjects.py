"""Composite events for the time of a step, and what a session keeps of them from one to the next."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional

from composite.definition import Definition
from composite.described import define_from, leaf_nodes
from composite.detector import Changes, State
from composite.gathering import EVENT_BITS, Gathered, PartArrival
from composite.graph import Graph, build
from composite.keys import share_of
from composite.points import Event
from composite.rows import KeyRow, Row
from composite.sequence import Moment, Pair, sequence_of
from composite.stepping import Found
from composite.syntax import leaves
from composite.told import Heads

GRAPHS_KEPT = 5000
KEPT_BYTES = 128_000_000  # of all states of a session; what is closed counts, too, until they are read again
ROW_BYTES = 800  # of an open occurrence, besides what is stored of it


class Known(NamedTuple):
    """Hold what a session keeps of a composite event: it is the same until the definition changes.

    is_of_one: its first two leaves are of one event type. heads: of its constituents, as JSON; see PairTeller.
    """

    version: str
    definition: Definition
    graph: Graph
    nodes: list[str]
    columns: list[tuple[str, ...]]
    is_sequence: bool
    is_of_one: bool
    heads: Heads


class Kept(NamedTuple):
    """Hold the state that a step has left behind, for as long as no other session takes one.

    step: the number of that step. keys: what is stored of the keys in it. is_whole: there are no other keys.
    size: about how many bytes it takes.
    """

    step: int
    state: State
    keys: dict[str, dict[str, Any]]
    is_whole: bool
    size: int


class Subject:
    """Hold one composite event, or one share of its keys, for the time of a step."""

    def __init__(self, job: dict[str, Any], known: Known) -> None:
        self.job = job
        self.id: int = job["composite_id"]
        self.share: int = job["share"]
        self.shares: int = job["shares"]
        self.owned: dict[Any, bool] = {}
        self.state_id: int = job["state_id"]
        self.known = known
        self.arrivals: list[Gathered] = []
        self.part_arrivals: list[PartArrival] = []
        self.moments: Optional[list[Moment]] = None
        self.events: list[Event] = []
        self.stream: list[Any] = []
        self.ordering = job["ordering"]
        # The last event that was taken of a batch behind the last one that was taken as a whole.
        self.taken: Optional[int] = self.ordering.get("taken") if self.ordering is not None else None
        # What was set aside out of a batch behind this one is taken there, and not where it comes; what former releases
        # have passed is not.
        self.in_place: int = (self.ordering or {}).get("in_place", job["reached"])
        self.keys: dict[str, dict[str, Any]] = {}
        self.loaded: list[KeyRow] = []
        self.kept: Optional[State] = None
        # Before the first step nothing is stored.
        self.is_whole: bool = job["step"] is None
        self.size = 0
        self.rows: list[Row] = []
        self.state: Optional[State] = None
        self.changes: Optional[Changes] = None
        self.found: list[Found] = []
        self.pairs: list[Pair] = []
        # Why a detection, by its place, is not published.
        self.refused: dict[int, str] = {}
        self.heard: Optional[dict[str, int]] = job.get("heard")
        self.idle_at: Optional[int] = None
        self.more = False
        # Where a step ends that would have too many bytes: it takes events up to this position.
        self.cut: Optional[int] = None

    def place_of(self, batch: int, held: int) -> Optional[int]:
        """Return where what is in one batch and was set aside out of another is taken: None for not in this step."""
        if held <= self.in_place:
            return batch
        return held if self.job["reached"] < held <= self.job["upto"] else None

    @property
    def owner(self) -> int:
        """Return whose it is."""
        owner: int = self.job["owner"]
        return owner

    @property
    def partitioned(self) -> bool:
        """Tell whether each key is detected for itself."""
        return self.known.graph.frame.partitioned

    @property
    def has_one_clock(self) -> bool:
        """Tell whether a clock ticks for it as a whole, from its beginning on."""
        return not self.partitioned and bool(self.known.graph.ticking)

    @property
    def beginning(self) -> int:
        """Return when that clock begins, where nothing of it is stored: before the first step, or reset.

        What begins with the earliest event (`since` is null) begins with one from before its creation, if there is one.
        """
        frontier: Optional[int] = self.ordering["frontier"] if self.job["step"] is not None else None
        began: int = self.job["began"]
        if frontier is not None:
            return frontier
        first = self.events[0].time if self.events and self.by_arrival and self.job["since"] is None else None
        return began if first is None else min(began, first)

    @property
    def is_sequence(self) -> bool:
        """Tell whether it is taken as a sequence: neighbours neither detect in it nor ask for it."""
        return self.known.is_sequence and self.job["parts"] is None and self.job["asked"] is None

    def touched_keys(self) -> set[Any]:
        """Return the keys of the events, those of other shares left out."""
        keys = {arrival[2] for arrival in self.arrivals}
        if self.part_arrivals:
            keys.update(key for event in self.events for _, key in event.matches or ())
        return keys if self.shares == 1 else {key for key in keys if self.owns(key)}

    def owns(self, key: Any) -> bool:
        """Tell whether a key is detected here, and not in another share."""
        if self.shares == 1:
            return True
        owned = self.owned.get(key)
        if owned is None:
            owned = self.owned[key] = share_of(key, self.shares) == self.share
        return owned

    def leave_others(self) -> None:
        """Let the events of other shares match nothing here; they tell the time, as all do."""
        if self.shares > 1:
            self.events = [
                event._replace(matches=[match for match in event.matches or () if self.owns(match[1])])
                for event in self.events
            ]

    def leave_taken(self) -> None:
        """Leave out the events of a batch that a step before has taken, which could not take all of it."""
        if self.taken is not None:
            self.events = [event for event in self.events if event.position > self.taken]

    def leave_later(self, time: int) -> bool:
        """Leave the events behind a time to another step, and stay at the batch before them; tell whether there are.

        Time never goes back along the events: whatever comes behind one that is later is later. All are taken or none
        where transactions are to be whole, and where several events stand at the point of the first.
        """
        place = next((i for i, event in enumerate(self.events) if event.time is not None and event.time > time), None)
        if place is None or (place > 0 and (self.known.graph.transactional or self.part_arrivals)):
            self.taken = None
            return False
        batch = self.events[place].position >> EVENT_BITS
        self.events = self.events[:place]
        # So no key is touched but by these.
        self.arrivals = [arrival for arrival in self.arrivals if place and arrival[0] <= self.events[-1].position]
        if place == 0:
            self.part_arrivals = []
        last = self.events[-1].position if place else self.taken
        self.taken = last if last is not None and last >> EVENT_BITS == batch else None
        self.job["upto"] = max(batch - 1, self.job["reached"])
        return True

    @property
    def takes_whole_batches(self) -> bool:
        """Tell whether a step may not end inside a batch."""
        return bool(self.known.graph.transactional) or self.job["parts"] is not None

    def stop_behind(self, position: int) -> None:
        """Take nothing behind a position: neither events nor time."""
        self.cut = position
        self.job["now"] = None

    def note_cut(self) -> None:
        """Note where the step ends, unless time does so before that."""
        if self.more:
            return
        if self.cut is None:
            self.taken = None
            return
        self.more = True
        # A step may end before what this one has taken: others are behind it.
        taken = (self.job["ordering"] or {}).get("taken")
        last = max(self.cut, taken or 0)
        batch = last >> EVENT_BITS
        if batch > self.job["reached"]:
            self.job["upto"], self.taken = batch - 1, last
        else:
            self.job["upto"], self.taken = self.job["reached"], taken

    def first_touches(self) -> Iterator[tuple[int, Any]]:
        """Yield the keys that its events touch, each with the position of the first that does."""
        if self.part_arrivals:
            pairs = ((event.position, key) for event in self.events for _, key in event.matches or ())
        else:
            pairs = ((arrival[0], arrival[2]) for arrival in self.arrivals)
        seen = set()
        for position, key in pairs:
            if key not in seen and position > (self.taken or 0) and self.owns(key):
                seen.add(key)
                yield position, key

    def at_hand(self) -> int:
        """Return about how many bytes its events and open occurrences have."""
        if self.moments is not None:
            return self.size + sum(len(moment[5]) for moment in self.moments)
        return self.size + sum(len(event.payload or "") for event in self.events)

    @property
    def size_of_batch(self) -> int:
        """Return how many events it takes."""
        return len(self.moments if self.moments is not None else self.events)

    @property
    def detections(self) -> int:
        """Return how many occurrences were detected."""
        return len(self.pairs) or len(self.found)

    @property
    def by_arrival(self) -> bool:
        """Tell whether events are taken as they come."""
        return self.known.graph.frame.time_basis == "arrival"


def recall(memory: dict[str, Any], subject: Subject) -> None:
    """Take the state over that this session has left behind, unless another one has taken a step since."""
    states: dict[tuple[int, int], Kept] = memory.setdefault("states", {})
    # Taken out: what fails in this step spoils it.
    kept = states.pop((subject.id, subject.share), None)
    if kept is not None and kept.step == subject.job["step"] and kept.state.graph is subject.known.graph:
        subject.kept, subject.keys, subject.is_whole, subject.size = kept[1:]


def keep(memory: dict[str, Any], subjects: Iterable[Subject], steps: dict[tuple[int, int], int]) -> None:
    """Keep the states for the next step, as long as they are not too large.

    Conditions are asked again and again from the same beginning, so a state with conditions is not kept. Whether the
    transaction commits is told by the number of the step: nobody else gets the same one.
    """
    states: dict[tuple[int, int], Kept] = memory["states"]
    for subject in subjects:
        state = subject.state
        if state is not None and not state.step.conditions and subject.size < KEPT_BYTES:
            state.step.forget()
            name = (subject.id, subject.share)
            states[name] = Kept(steps[name], state, subject.keys, subject.is_whole, subject.size)
    if sum(kept.size for kept in states.values()) > KEPT_BYTES:
        states.clear()


def unknown_of(memory: dict[str, Any], jobs: list[dict[str, Any]]) -> list[int]:
    """Return the composite events whose graphs this session has not made yet; it lets all go where it has too many."""
    graphs: dict[int, Known] = memory.setdefault("graphs", {})
    versions = {one["composite_id"]: one["version"] for one in jobs}
    found = [number for number in versions if number not in graphs or graphs[number].version != versions[number]]
    if found and len(graphs) + len(found) > GRAPHS_KEPT:
        graphs.clear()
        return [*versions]
    return found


def learn(memory: dict[str, Any], job: dict[str, Any], given: dict[int, str], intervals: list[str]) -> None:
    """Make the graphs of composite events from the arguments of their definitions.

    intervals: event types whose events have a beginning of their own.
    """
    for one in job["composites"]:
        text = given.pop(one["composite_id"], None)
        if text is not None:
            definition = define_from(json.loads(text))
            # What comes in parts does not end where it comes.
            (graph,) = build([definition], [*intervals, *(one["part_types"] or ())])
            memory["graphs"][one["composite_id"]] = known_as(one["version"], definition, graph)


def known_as(version: str, definition: Definition, graph: Graph) -> Known:
    """Return what a session keeps of a composite event."""
    nodes = leaf_nodes(definition, graph)
    names, columns = [node.name for node in nodes], [node.columns for node in nodes]
    kinds = [leaf.type for leaf in leaves(definition.expression)]
    is_sequence = sequence_of(graph) is not None
    return Known(version, definition, graph, names, columns, is_sequence, kinds[:1] == kinds[1:2], ({}, {}))
