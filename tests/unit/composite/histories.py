"""Histories in short, and what the detector finds in them, in a form that can be compared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from composite.definition import define
from composite.detector import Changes, State, detect
from composite.graph import Graph, build
from composite.matching import Matcher
from composite.points import Event, Occurrence, position_of, time_of
from composite.rows import Gone, KeyRow, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from composite.stepping import Found

CONTEXTS = ("unrestricted", "recent", "chronicle", "continuous", "cumulative")


def history(text: str) -> list[Event]:
    """Return the events of `a1@0 b1@3`: type a, payload a1, at 0 microseconds."""
    events = []
    for position, word in enumerate(text.split(), 1):
        name, time = word.split("@")
        events.append(Event(position, int(time), name.rstrip("0123456789"), name, id=position))
    return events


def graph_of(expression: str, context: str, **arguments: Any) -> Graph:
    """Return the graph of one definition, with room for all that opens."""
    (graph,) = build([define("it", expression, context=context, **({"max_open": 100_000} | arguments))])
    return graph


def detected(expression: str, context: str, text: str, now: int | None = None, **arguments: Any) -> str:
    """Return what is found in a history, as `2:(a1,b1) 4:({a1,a2},c1)`."""
    graph = graph_of(expression, context, **arguments)
    _, found = detect(State(graph, matcher=Matcher(graph, {})), history(text), now)
    return " ".join(f"{time_of(one.point)}:{show(one.occurrence)}" for one in found)


def show(one: Occurrence) -> str:
    """Return an occurrence in short: constituents in the order of the operands, ticks as their times."""
    if one[3] is None:
        return ",".join(map(str, range(time_of(one[1]), time_of(one[2]) + 1, one[4] or 1)))
    if len(one) == 7:
        return str(one[6])
    parts = [(group, ",".join(show(member) for member in group)) for group in one[4] if group]
    shown = [text if len(group) == 1 and group[0][3] is not None else "{" + text + "}" for group, text in parts]
    return shown[0] if one[3].op == "or" else "(" + ",".join(shown) + ")"


def canonical(one: Occurrence) -> Any:
    """Return an occurrence without serials and nodes."""
    if one[3] is None:
        return ("ticks", time_of(one[1]), time_of(one[2]), one[4])
    if len(one) == 7:
        return ("event", position_of(one[2]), time_of(one[2])) if one[4] is not None else ("tick", time_of(one[2]))
    return (one[3].op, tuple(tuple(canonical(member) for member in group) for group in one[4]))


def outcome(found: Iterable[Found]) -> list[Any]:
    """Return what was detected, with its interval and when, in order."""
    return [(one.key, one.point, one.occurrence[1], one.occurrence[2], canonical(one.occurrence)) for one in found]


class Store:
    """Keep state as a database would: rows that are added and removed as sets, and nothing else."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.keys: dict[Any, KeyRow] = {}
        self.timers: set[tuple[Any, int]] = set()
        self.ordering: dict[str, Any] | None = None

    def apply(self, changes: Changes) -> None:
        """Write what a batch changed; what is removed has to be there, what is added not."""
        for gone in changes.closed:
            del self.rows[tuple(gone)]
        for row in changes.opened:
            assert tuple(row[:4]) not in self.rows
            self.rows[tuple(row[:4])] = row
        for key in changes.keys:
            self.keys[key.key] = key
        for key in changes.dropped:
            self.keys.pop(key, None)
        assert set(changes.timers_removed) <= self.timers
        self.timers -= set(changes.timers_removed)
        assert not set(changes.timers_added) & self.timers
        self.timers |= set(changes.timers_added)
        self.ordering = changes.ordering

    def state(self, make: Callable[[], State], keys: set[Any] | None = None) -> State:
        """Return a state loaded from what was written, through JSON, for all keys or only those."""
        state = make()
        if self.ordering is not None:
            chosen = [key for key in self.keys if keys is None or key in keys]
            load = [KeyRow(*json.loads(json.dumps(self.keys[key]))) for key in chosen]
            rows = [Row(*json.loads(json.dumps(row))) for row in reversed(self.rows.values()) if row.key in set(chosen)]
            state.load(json.loads(json.dumps(self.ordering)), load, rows)
        return state


def run_batches(
    make: Callable[[], State],
    batches: Sequence[tuple[Sequence[Any], int | None]],
    crash: Callable[[int], bool] = lambda _: False,
    *,
    concerned: bool = False,
) -> tuple[list[Any], State]:
    """Return what batches bring; where it crashes, and for each batch if only the keys concerned are loaded,
    the state is made again from what was stored, and a batch that was done but not stored is done again."""
    store, state, found = Store(), make(), []
    for number, (batch, now) in enumerate(batches):
        if crash(number):
            detect(state, batch, now)
            state = store.state(make)
        if concerned:
            due = {key for key, time in store.timers if now is None or time <= now}
            keys = {key for event in batch for _, key in (event.matches or [])} | due
            state = store.state(make, keys)
        changes, more = detect(state, batch, now)
        store.apply(changes)
        found += outcome(more)
    assert sorted(key for key, _ in store.timers) == sorted(
        key for key, row in store.keys.items() if row.due is not None
    )
    return found, store.state(make)


__all__ = [
    "CONTEXTS",
    "Gone",
    "Store",
    "canonical",
    "detected",
    "graph_of",
    "history",
    "outcome",
    "run_batches",
    "show",
]
