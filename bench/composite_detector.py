"""The speed and memory of the detector of composite events alone, without a database.

Processor time of this process. `a ; b` runs over 100,000 events of 1,000 keys in batches of 10,000, once for each
context, rows of state written and all; 1,000 composite events over one stream are compared with 10; windows, 10,000
open ones with 100. The memory is that of a process of its own, libraries included; occurrences have no payload.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sql" / "python"))

from bench.figures import Figure, Target
from composite.definition import define
from composite.detector import State, detect
from composite.graph import Graph, build
from composite.matching import Matcher, equality_of
from composite.points import Event

if TYPE_CHECKING:
    from bench.house import House

CONTEXTS = ("unrestricted", "recent", "chronicle", "continuous", "cumulative")
# For each kind of window: its expression, and events that open a new window whenever one closes.
WINDOWS = {
    "A*": ("A*(a, b, c)", "bbbbbbbbba"),
    "P*": ("P*(a, '1 s', c)", "bbbbbbbbba"),
    "absence": ("not(c)[a, + '1 s']", "a"),
}
SECOND = 1_000_000


def run(house: House) -> list[Figure]:
    """Measure it."""
    events, opened = (20_000, 100_000) if house.quick else (100_000, 1_000_000)
    spent: dict[str, list[float]] = {context: [] for context in CONTEXTS}
    ratios: dict[str, list[float]] = {name: [] for name in ("definitions", *WINDOWS)}
    memory: list[float] = []
    for _ in house.pairs():
        for context in CONTEXTS:
            house.say(f"composite_detector: {context}")
            spent[context].append(keyed(context, events))
        house.say("composite_detector: definitions and windows")
        ratios["definitions"].append(many(1000, events) / many(10, events))
        for name in WINDOWS:
            ratios[name].append(windows(name, 10_000, events // 5) / windows(name, 100, events // 5))
        memory.append(resident(opened))
    what = f"`a ; b` over {events:,} events of 1,000 keys"
    figures = [Figure(f"{what}, {name}", each, pgps=each, unit="s", note="reported") for name, each in spent.items()]
    limit = Target("at most", 3, "x")
    figures.append(Figure("1,000 composite events over one stream against 10", ratios["definitions"], limit))
    figures += [
        Figure(f"{name}: 10,000 open windows against 100", ratios[name], Target("at most", 2, "x")) for name in WINDOWS
    ]
    figures.append(
        Figure(f"memory with {opened:,} open occurrences", memory, Target("at most", 300, "MB"), memory, unit="MB")
    )
    return figures


def keyed(context: str, events: int) -> float:
    """Return the seconds that a keyed sequence takes."""
    # Without a filter, as many are open as a key has; in unrestricted context each of them is detected with each b.
    (graph,) = build([define("it", "a ; b", context=context, partition_by="symbol", max_open=10)])
    leaf = {node.expression.type: node.name for node in graph.leaves}
    random = Random(1)
    stream = [
        Event(i, i * 1000, "a", None, i, matches=[(leaf[random.choice("ab")], (f"s{random.randrange(1000)}",))])
        for i in range(events)
    ]
    return timed(State(graph), stream)


def timed(state: State, stream: list[Event], size: int = 10_000) -> float:
    """Return the seconds of processor time that a stream takes in batches."""
    start = time.process_time()
    for at in range(0, len(stream), size):
        detect(state, stream[at : at + size])
    return time.process_time() - start


def many(definitions: int, events: int) -> float:
    """Return the seconds that many definitions on one stream take when they are looked up by equality."""
    (graph,) = build(define(f"d{i}", f"a (symbol = 's{i}') ; b (symbol = 's{i}')") for i in range(definitions))
    random = Random(1)
    stream = [
        Event(i, i * 1000, random.choice("ab"), {"symbol": f"s{random.randrange(definitions)}"}, i)
        for i in range(events)
    ]
    return timed(State(graph, matcher=Matcher(graph, {}, equalities(graph))), stream)


def equalities(graph: Graph) -> dict[str, tuple[str, Any]]:
    """Return the equality conditions of the predicates."""
    found = {node.expression.predicate: equality_of(node.expression.predicate) for node in graph.leaves}
    return {text: equality[:2] for text, equality in found.items() if equality}


def windows(name: str, count: int, events: int) -> float:
    """Return the seconds that events take while windows are open."""
    expression, steady = WINDOWS[name]
    (graph,) = build([define("it", expression, context="chronicle", max_open=1_000_000)])
    step = SECOND // count if name == "absence" else 1
    state = State(graph, matcher=Matcher(graph, {}))
    detect(state, [Event(i, i * step, "a", None, i) for i in range(count)])
    stream = [Event(i, i * step, steady[i % len(steady)], None, i) for i in range(count, count + events)]
    return timed(state, stream)


def resident(count: int) -> float:
    """Return the megabytes of a process that holds open occurrences."""
    found = subprocess.run(
        [sys.executable, "-m", "bench.composite_detector", str(count)], check=True, capture_output=True, text=True
    )
    return float(found.stdout)


def fill(count: int) -> float:
    """Keep occurrences open; return the megabytes of this process."""
    (graph,) = build([define("it", "a ; b", context="chronicle", partition_by="symbol", max_open=10_000)])
    leaf = graph.leaves[0].name
    state = State(graph)
    for at in range(0, count, 5_000):
        detect(
            state,
            [Event(i, i * 1000, "a", None, i, matches=[(leaf, (f"s{i % 1000}",))]) for i in range(at, at + 5_000)],
        )
    held = sum(len(opened) for key in state.keys.values() for opened in key.slots.values())
    assert held == count
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    print(fill(int(sys.argv[1])))
