"""Composite events detected in one transaction: over what it has published, by order, before it commits.

Nothing is stored in tables. What is open stays with the session, for the next statement of the same transaction;
where a savepoint was rolled back to in between, it is made again from the transaction's events.
"""

import json
from typing import Any, NamedTuple, Optional

from composite.described import define_from, tests_of
from composite.detector import Changes, State, detect
from composite.graph import build
from composite.keys import canonical_key
from composite.limits import combinations_allowed
from composite.memo import Memo, write_given
from composite.occurrences import bind
from composite.points import Event, position_of, time_of
from composite.queries import Queries
from composite.rows import KeyRow, Row
from composite.stepping import Found
from composite.subjects import GRAPHS_KEPT, Known, known_as
from composite.told import write_parts


class Chain:
    """Hold how far a composite event is in a transaction."""

    def __init__(self, transaction: str, version: str, done: int) -> None:
        self.transaction = transaction
        self.version = version
        self.done = done
        self.ordering: Optional[dict[str, Any]] = None
        self.keys: dict[Any, KeyRow] = {}
        self.rows: dict[Any, dict[tuple[str, int, int], Row]] = {}

    def continues(self, transaction: str, version: str, reached: int) -> bool:
        """Tell whether this is what was known when the transaction had got to an event id."""
        return (self.transaction, self.version, self.done) == (transaction, version, reached)

    def take(self, changes: Changes) -> None:
        """Note what a batch has changed."""
        self.ordering = changes.ordering
        for gone in changes.closed:
            self.rows.get(gone.key, {}).pop((gone.node, gone.slot, gone.serial), None)
        for row in changes.opened:
            self.rows.setdefault(row.key, {})[row.node, row.slot, row.serial] = row
        for key in changes.keys:
            self.keys[key.key] = key
        for key in changes.dropped:
            self.keys.pop(key, None)
            self.rows.pop(key, None)


class Task(NamedTuple):
    """Hold one composite event for a run."""

    job: dict[str, Any]
    known: Known
    chain: Chain
    is_new: bool
    events: list[Event]


def detect_in_transaction(db: Any, memory: dict[str, Any], job: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Detect in what a transaction has published since it was called last; return what was found, by composite."""
    queries = Queries(db, memory)
    tasks = {one["composite_id"]: task_of(memory, job, one) for one in job["composites"]}
    for source in job["types"]:
        read_new(queries, source, tasks, job)
    found = {str(task.job["composite_id"]): run_task(queries, job, task) for task in tasks.values()}
    return {composite_id: items for composite_id, items in found.items() if items}


def task_of(memory: dict[str, Any], job: dict[str, Any], one: dict[str, Any]) -> Task:
    """Return what a composite event goes on from: what this session knows, or the beginning of the transaction."""
    known = known_in_transaction(memory, one)
    chains: dict[tuple[str, int], Chain] = memory.setdefault("chains", {})
    place = (job["coupling"], one["composite_id"])
    chain = chains.get(place)
    # What is known of a transaction that has reached nothing was rolled back to a savepoint.
    is_begun = job["reached"] > job["before"]
    is_new = (
        chain is None or one["whole"] or not is_begun or not chain.continues(job["xid"], one["version"], job["reached"])
    )
    if chain is None or is_new:
        # A failed run leaves a chain that nothing continues.
        chain = Chain(job["xid"], one["version"], -1)
    if len(chains) >= GRAPHS_KEPT:
        chains.clear()
    chains[place] = chain
    return Task(one, known, chain, is_new, [])


def known_in_transaction(memory: dict[str, Any], one: dict[str, Any]) -> Known:
    """Return the graph of a composite event, in order of arrival whatever its time basis is elsewhere."""
    graphs: dict[int, Known] = memory.setdefault("coupled graphs", {})
    known = graphs.get(one["composite_id"])
    if known is None or known.version != one["version"]:
        definition = define_from({**one["given"], "time_basis": "arrival", "lateness": "0 s"})
        (graph,) = build([definition], one["intervals"])
        known = known_as(one["version"], definition, graph)
        if len(graphs) >= GRAPHS_KEPT:
            graphs.clear()
        graphs[one["composite_id"]] = known
    return known


def read_new(queries: Queries, source: dict[str, Any], tasks: dict[int, Task], job: dict[str, Any]) -> None:
    """Add the events of one type to the composite events that want them."""
    leaves = {composite_id for composite_id, task in tasks.items() if task.is_new}
    after = job["before"] if leaves else job["reached"]
    for row in queries.rows_taken_back(queries.plan(source["query"], ["bigint"]), [after]):
        keys: dict[tuple[str, ...], str] = {}
        matches: dict[int, list[tuple[str, Any]]] = {}
        for composite_id, leaf in zip(row["composites"], row["leaves"]):
            task = tasks[composite_id]
            wanted = task.job["sources"][leaf]
            if wanted and (wanted["broker"] != job["broker"] or wanted["client"] not in (None, row["client"])):
                continue
            if row["event_id"] <= job["reached"] and not task.is_new:
                continue
            columns = task.known.columns[leaf]
            key: Any = ()
            if columns:
                key = keys.get(columns) or keys.setdefault(columns, canonical_key(row["payload"], columns))
            found = matches.setdefault(composite_id, [])
            if (task.known.nodes[leaf], key) not in found:
                found.append((task.known.nodes[leaf], key))
        for composite_id, matched in matches.items():
            identity = (row["event_id"], job["broker"], row["xid"])
            event = Event(row["event_id"], row["published"], source["type"], row["payload"], *identity, None, matched)
            tasks[composite_id].events.append(event)


def run_task(queries: Queries, job: dict[str, Any], task: Task) -> list[dict[str, Any]]:
    """Run the detector over the new events of one composite event; return what was detected."""
    task.events.sort(key=lambda event: event.position)
    chain, graph = task.chain, task.known.graph
    changes: Optional[Changes] = None
    found: list[Found] = []
    if task.events:
        memo = Memo(tests_of(graph))
        while True:
            state = State(graph, memo.callbacks())
            state.step.heed = queries.heed
            state.step.most = combinations_allowed(len(task.events), len(graph.nodes))
            load(state, task, chain)
            changes, found = detect(state, task.events)
            if not memo.asked:
                break
            memo.learn(queries.answers(task.job, memo.asked))
        if changes.faults:
            raise ValueError(f"the filter of the composite event raised: {changes.faults[-1].error}")
        chain.take(changes)
    chain.done = job["done"]
    reached = job["reached"]
    return [tell_found(task, one) for one in found if not task.is_new or position_of(one.point) > reached]


def load(state: State, task: Task, chain: Chain) -> None:
    """Load the keys that have events, and those that have something to do before the last of these."""
    if chain.ordering is None:
        if task.known.graph.ticking and not task.known.graph.frame.partitioned:
            state.start(task.events[0].time or 0)
        return
    last = max(event.time or 0 for event in task.events)
    keys = {key for event in task.events for _, key in event.matches or ()}
    keys |= {key for key, row in chain.keys.items() if row.due is not None and row.due <= last}
    known = [chain.keys[key] for key in keys if key in chain.keys]
    state.load(json.loads(json.dumps(chain.ordering)), known, [
        row for one in known for row in chain.rows.get(one.key, {}).values()
    ])  # fmt: skip


def tell_found(task: Task, found: Found) -> dict[str, Any]:
    """Return a detection as its event is made of it."""
    definition = task.known.definition
    one = found.occurrence
    told = {
        "starts": time_of(one[1]),
        "ends": time_of(one[2]),
        "detected": time_of(found.point),
        "constituents": write_parts(definition, one),
    }
    if task.job["binds"]:
        told["bound"] = write_given(bind(definition, one))
    return told
