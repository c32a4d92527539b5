"""The detector in the server: reads what a step of the history concerns, runs it, and writes what has changed, as sets.

One call takes a step of each of several composite events, in the caller's transaction. `job` says which; all that is
kept is in tables (sql/schema/0019_composite.sql), and only the graphs stay with the session.
"""

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple, Optional

from composite.definition import Definition
from composite.described import define_from, leaf_nodes, tests_of
from composite.detector import Changes, State, detect
from composite.graph import Graph, build
from composite.keys import EVERYTHING, key_of, live_ranges, read_ranges, write_ranges
from composite.memo import Memo, write_given
from composite.occurrences import bind
from composite.ordering import Ordering
from composite.points import BEFORE, Event, Idle, point_of, time_of
from composite.queries import DUE_KEYS, KEYS, OPEN_ROWS, Queries
from composite.rows import HELD, KeyRow, Row
from composite.stepping import Found
from composite.told import tell_part, write_parts

EVENT_BITS = 48  # of a position; above them is the number of the batch
GRAPHS_KEPT = 5000
TICKS_AT_ONCE = 20_000


class Known(NamedTuple):
    """Hold what a session keeps of a composite event: it is the same until the definition changes."""

    version: str
    definition: Definition
    graph: Graph
    nodes: list[str]
    columns: list[tuple[str, ...]]


class Subject:
    """Hold one composite event for the time of a step."""

    def __init__(self, job: dict[str, Any], known: Known) -> None:
        self.job = job
        self.id: int = job["composite_id"]
        self.state_id: int = job["state_id"]
        self.known = known
        self.events: list[Event] = []
        self.points: dict[tuple[int, ...], int] = {}
        self.stream: list[Any] = []
        self.ordering = job["ordering"]
        self.frontier = 0
        self.keys: dict[str, dict[str, Any]] = {}
        self.rows: list[Row] = []
        self.state: Optional[State] = None
        self.changes: Optional[Changes] = None
        self.found: list[Found] = []
        self.heard: Optional[dict[str, int]] = job.get("heard")
        self.idle_at: Optional[int] = None
        self.more = False

    @property
    def partitioned(self) -> bool:
        """Tell whether each key is detected for itself."""
        return self.known.graph.frame.partitioned

    @property
    def by_arrival(self) -> bool:
        """Tell whether events are taken as they come."""
        return self.known.graph.frame.time_basis == "arrival"


def take_steps(db: Any, memory: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Take a step of each composite event of a job; return what is to be published, and what became of it."""
    queries = Queries(db, memory)
    subjects = {one["composite_id"]: Subject(one, known_of(memory, one)) for one in job["composites"]}
    for source in job["types"]:
        read_events(queries, source, subjects, job["broker"])
    for subject in subjects.values():
        order(subject, job)
    load_keys(queries, subjects)
    born = queries.value("select nextval('pgps_internal.composite_row_seq') as value")
    for subject in subjects.values():
        run(queries, subject)
    write(queries, subjects, born)
    return {
        "more": any(subject.more for subject in subjects.values()),
        "found": {str(subject.id): [*tell(subject)] for subject in subjects.values() if subject.found},
    }


def known_of(memory: dict[str, Any], job: dict[str, Any]) -> Known:
    """Return the graph of a composite event, of this session or made now."""
    graphs: dict[int, Known] = memory.setdefault("graphs", {})
    known = graphs.get(job["composite_id"])
    if known is None or known.version != job["version"]:
        definition = define_from(job["given"])
        # What comes in parts does not end where it comes.
        (graph,) = build([definition], [*job["intervals"], *(job["part_types"] or ())])
        nodes = leaf_nodes(definition, graph)
        known = Known(job["version"], definition, graph, [n.name for n in nodes], [n.columns for n in nodes])
        if len(graphs) >= GRAPHS_KEPT:
            graphs.clear()
        graphs[job["composite_id"]] = known
    return known


def read_events(queries: Queries, source: dict[str, Any], subjects: dict[int, Subject], broker: str) -> None:
    """Add the events of one event type to the composite events that they are leaves of."""
    plan = queries.events_plan(source)
    found = plan.execute([source["composites"], source["leaves"], source["after"], source["upto"]])
    for row in sorted(found, key=lambda row: (row["batch_id"], row["event_id"])) if source["is_part"] else found:
        payload = row["payload"]
        values = None
        position = row["batch_id"] << EVENT_BITS | row["event_id"]
        matches: dict[int, list[tuple[str, Any]]] = {}
        origin = row["origin"] or broker
        for composite_id, leaf in zip(row["composites"], row["leaves"]):
            subject = subjects[composite_id]
            if leaf >= len(subject.known.nodes):
                part_event(subject, leaf, row, position)
                continue
            wanted = subject.job["sources"][leaf]
            if wanted and (wanted["broker"] != origin or wanted["client"] not in (None, row["client"])):
                continue
            columns = subject.known.columns[leaf]
            key: Any = ()
            if columns:
                if values is None:
                    values = json.loads(payload, parse_float=Decimal)
                key = key_of([values.get(column) for column in columns])
            # Leaves that differ in their alias alone are one node.
            named = matches.setdefault(composite_id, [])
            if (subject.known.nodes[leaf], key) not in named:
                named.append((subject.known.nodes[leaf], key))
        for composite_id, matched in matches.items():
            subject = subjects[composite_id]
            at = row["published"] if subject.by_arrival else row["event_time"]
            span = span_of(row, position)
            subject.events.append(
                Event(position, at, source["type"], payload, row["event_id"], origin, row["xid"], None, matched, span)
            )


def part_event(subject: Subject, leaf: int, row: dict[str, Any], position: int) -> None:
    """Add what a neighbour has detected to a composite event, unless its owner may not see what that is made of.

    What it detected at one point is taken at one point, too: rows come in their order.
    """
    nodes = subject.job["parts"].get(str(leaf))
    if nodes:
        place, key, point, told = json.loads(row["payload"])["constituents"]
        position = subject.points.setdefault((leaf, *point), position)
        matches = [(nodes[place], () if key is None else key)]
        subject.events.append(
            Event(position, point[0], "", None, row["event_id"], row["origin"], None, None, matches, None, told)
        )


def span_of(row: dict[str, Any], position: int) -> Optional[tuple[int, int]]:
    """Return beginning and end of a composite event as points; one from elsewhere has only their times."""
    if row["start_at"] is not None:
        return int(row["start_at"]), int(row["end_at"])
    if row["start_time"] is not None:
        return point_of(row["start_time"], 0), point_of(row["end_time"], position)
    return None


def order(subject: Subject, job: dict[str, Any]) -> None:
    """Put the events in order of delivery, note who has been silent for too long, and find how far this will lead."""
    subject.events.sort(key=lambda event: event.position)
    frame = subject.known.graph.frame
    ordering = Ordering(frame.time_basis, frame.lateness)
    if subject.ordering is not None:
        ordering.load(subject.ordering)
    else:
        ordering.frontier = subject.job["since"] if subject.by_arrival else None
        subject.ordering = ordering.dump()
    before = ordering.frontier
    limit_ticks(subject, before)
    subject.stream = [*subject.events]
    if not subject.by_arrival:
        subject.stream += silent_sources(subject, ordering, job)
    copy = Ordering(frame.time_basis, frame.lateness)
    copy.load(json.loads(json.dumps(subject.ordering)))
    copy.take(subject.stream)
    if subject.by_arrival and subject.job["now"] is not None:
        copy.reach(subject.job["now"])
    subject.job["from"] = before
    subject.job["to"] = copy.frontier


def limit_ticks(subject: Subject, since: Optional[int]) -> None:
    """Let time pass only so far that a step without events has a bounded number of ticks."""
    job = subject.job
    period, now = job["period"], job["now"]
    if period is None or now is None or since is None or subject.events or not subject.by_arrival:
        return
    most = since + period * max(1, TICKS_AT_ONCE // max(1, job["open"] or 0))
    if most < now:
        job["now"] = most
        subject.more = True


def silent_sources(subject: Subject, ordering: Ordering, job: dict[str, Any]) -> list[Idle]:
    """Return which sources have been silent for longer than allowed, and note when others will have been."""
    heard = dict(subject.heard or {})
    latest: dict[tuple[Optional[str], str], int] = dict(ordering.sources)
    for event in subject.events:
        if event.time is not None:
            source = (event.origin, event.type)
            heard[json.dumps(source)] = job["now"]
            latest[source] = max(latest.get(source, event.time), event.time)
    limit = job["now"] - job["idle_source"]
    known_idle = {json.dumps(source) for source in ordering.idle}
    fresh = {json.dumps((event.origin, event.type)) for event in subject.events}
    gone = [name for name, at in heard.items() if at < limit and (name not in known_idle or name in fresh)]
    waiting = [at for name, at in heard.items() if name not in gone and (name not in known_idle or name in fresh)]
    subject.heard = heard
    subject.idle_at = min(waiting) + job["idle_source"] + 1 if waiting else None
    most = max(latest.values(), default=0)
    return [Idle(origin, kind, most) for origin, kind in map(json.loads, sorted(gone))]


def load_keys(queries: Queries, subjects: dict[int, Subject]) -> None:
    """Read the keys that have events, or something to do, and what is open in them."""
    by_state = {subject.state_id: subject for subject in subjects.values()}
    wanted = {
        (subject.state_id, stored(key))
        for subject in subjects.values()
        for event in subject.events
        for _, key in event.matches or ()
    }
    timed = [subject for subject in subjects.values() if subject.job["to"] is not None and subject.job["timed"]]
    spans = [[one.state_id, EVERYTHING if one.job["from"] is None else one.job["from"], one.job["to"]] for one in timed]
    for row in queries.rows(DUE_KEYS, *(list(part) for part in zip(*spans))) if spans else ():
        wanted.add((row["state_id"], row["key"]))
    if not wanted:
        return
    pairs = sorted(wanted)
    found = queries.rows(KEYS, [state for state, _ in pairs], [key for _, key in pairs])
    bounds = []
    for row in found:
        subject = by_state[row["state_id"]]
        subject.keys[row["key"]] = {**row, "live": read_ranges(row["live"])}
        reached = subject.ordering["frontier"]
        late = subject.known.graph.frame.lateness == 0
        bounds.append(None if subject.by_arrival else 0 if reached is None else point_of(reached + late, 0, BEFORE))
    open_rows = queries.rows(
        OPEN_ROWS,
        [row["state_id"] for row in found],
        [row["key"] for row in found],
        [row["born"] for row in found],
        [row["live"] for row in found],
        [None if bound is None else str(bound) for bound in bounds],
    )
    for row in open_rows:
        data = json.loads(row["data"])
        serial = row["serial"] if row["slot"] != HELD else data[1]
        subject = by_state[row["state_id"]]
        subject.rows.append(
            Row(unstored(row["key"], subject), row["node"], row["slot"], serial, data[1], data[2], data)
        )


def stored(key: Any) -> str:
    """Return a key as it is stored; without a partition there is one."""
    return "[]" if key == () else str(key)


def unstored(key: str, subject: Subject) -> Any:
    """Return a stored key as the detector has it."""
    return key if subject.partitioned else ()


def run(queries: Queries, subject: Subject) -> None:
    """Run the detector, as often as it asks for conditions whose answer is not known yet."""
    job, graph = subject.job, subject.known.graph
    memo = Memo(tests_of(graph))
    keys = [
        KeyRow(unstored(key, subject), row["version"], row["serial"], int(row["clock"]), row["ticked"], row["due"])
        for key, row in subject.keys.items()
    ]
    while True:
        state = State(graph, memo.callbacks())
        state.step.heed = queries.heed
        state.load(json.loads(json.dumps(subject.ordering)), keys, subject.rows)
        if graph.ticking and not subject.partitioned:
            state.start(subject.job["began"])
        now = job["now"] if subject.by_arrival else None
        subject.changes, subject.found = detect(state, subject.stream, now)
        subject.state = state
        if not memo.asked:
            break
        memo.learn(queries.answers(job, memo.asked))


def write(queries: Queries, subjects: dict[int, Subject], born: int) -> None:
    """Write what has changed."""
    keys: list[tuple[Any, ...]] = []
    opened: list[tuple[Any, ...]] = []
    late: list[tuple[Any, ...]] = []
    steps: list[tuple[Any, ...]] = []
    for subject in subjects.values():
        changes, state = subject.changes, subject.state
        assert changes is not None
        assert state is not None
        closed: dict[Any, list[int]] = {}
        for gone in changes.closed:
            if gone.slot != HELD:
                closed.setdefault(gone.key, []).append(gone.serial)
        keys += [row_of_key(subject, one, closed.get(one.key, []), state, born) for one in changes.keys]
        keys += [
            (subject.state_id, stored(key), born, 0, 0, "0", None, None, "{}")
            for key in changes.dropped
            if stored(key) in subject.keys
        ]
        for row in changes.opened:
            serial = None if row.slot == HELD else row.serial
            data = json.dumps(row.data, ensure_ascii=False, separators=(",", ":"))
            opened.append((subject.state_id, stored(row.key), row.node, row.slot, serial, str(row.start), data))
        late += [(subject.id, one.event.type, one.event.id, one.event.time, one.reason) for one in changes.late]
        kept = sum(1 for one in changes.keys if stored(one.key) not in subject.keys)
        lost = sum(1 for key in changes.dropped if stored(key) in subject.keys)
        steps.append(
            (
                subject.id,
                subject.state_id,
                subject.job["upto"],
                json.dumps(changes.ordering),
                None if subject.heard is None else json.dumps(subject.heard),
                subject.idle_at,
                len(changes.opened) - len(changes.closed),
                kept - lost,
                len(subject.found),
                len(changes.late),
                len(changes.given_up),
                fault_of(changes),
            )
        )
    queries.write(keys, opened, late, steps)


def row_of_key(subject: Subject, one: KeyRow, closed: list[int], state: State, born: int) -> tuple[Any, ...]:
    """Return the row of a key: what of its open occurrences still counts is told by their serials."""
    before = subject.keys.get(stored(one.key))
    serials = sorted(occurrence[0] for opened in state.keys[one.key].slots.values() for occurrence in opened)
    old = before["live"] if before else []
    since = before["serial"] if before else 0
    live = live_ranges(old, closed, since, one.serial, serials)
    first = before["born"] if before else born
    return (
        subject.state_id, stored(one.key), first, one.version, one.serial, str(one.clock), one.ticked, one.due,
        write_ranges(live),
    )  # fmt: skip


def fault_of(changes: Changes) -> Optional[str]:
    """Return the last error of a condition."""
    if not changes.faults:
        return None
    last = changes.faults[-1]
    return f"{last.error} (in the filter: {last.text})"


def tell(subject: Subject) -> Iterable[dict[str, Any]]:
    """Return what was detected, ready to be published; payloads are put into the constituents as they are."""
    definition = subject.known.definition
    named, asked = subject.job["binds"], subject.job["asked"]
    for found in subject.found:
        one = found.occurrence
        if asked is not None:
            yield tell_part(found, asked, subject.job["broker"])
            continue
        told = {
            "span": [str(one[1]), str(one[2])],
            "starts": time_of(one[1]),
            "ends": time_of(one[2]),
            "detected": time_of(found.point),
            "constituents": write_parts(definition, one),
        }
        if named:
            told["bound"] = write_given(bind(definition, one))
        yield told
