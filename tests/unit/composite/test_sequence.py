"""A sequence of two events is paired without a walk through the graph: the same is found, opened and given up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composite.definition import define
from composite.detector import State, detect
from composite.graph import build
from composite.points import Event
from composite.sequence import sequence_of
from tests.unit.composite.histories import CONTEXTS, canonical, graph_of

KEYS = ("x", "y")
EVENTS = st.lists(
    st.tuples(st.sampled_from([(0,), (1,), (0, 1)]), st.sampled_from(KEYS), st.integers(0, 4), st.booleans()),
    max_size=40,
)


def play(state: State, batches: list[list[Event]], *, general: list[bool]) -> list[Any]:
    """Return what batches give, each taken the general way or not, and what is open at the end."""
    told: list[Any] = []
    sequence = state.sequence
    for batch, walks in zip(batches, general, strict=True):
        state.sequence = None if walks else sequence
        changes, found = detect(state, batch)
        told.append([(one.key, one.point, canonical(one.occurrence)) for one in found])
        told.append([(one.key, one.node.name, canonical(one.occurrence)) for one in changes.given_up])
        told.append(sorted((row.key, row.node, row.slot, row.start) for row in changes.opened))
        told.append((sorted(row.key for row in changes.keys), sorted(changes.dropped), len(changes.closed)))
        told.append((changes.ordering, {row.key: row.clock for row in changes.keys}))
    told.append({key: [canonical(one) for one in one_key.slots.get(0, [])] for key, one_key in state.keys.items()})
    return told


def batches_of(steps: list[tuple[tuple[int, ...], str, int, bool]], leaves: list[str]) -> list[list[Event]]:
    batches: list[list[Event]] = [[]]
    time = 0
    for position, (matched, key, wait, is_cut) in enumerate(steps, 1):
        time += wait
        matches = list(dict.fromkeys((leaves[leaf], key) for leaf in matched))
        batches[-1].append(Event(position, time, "a", f"e{position}", position, matches=matches))
        if is_cut:
            batches.append([])
    return batches


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    steps=EVENTS,
    expression=st.sampled_from(["a ; b", "a ; a", "a(k = 1) x ; a y"]),
    context=st.sampled_from(CONTEXTS),
    within=st.sampled_from([None, "3 us"]),
    max_open=st.sampled_from([1, 2, 100]),
    ways=st.lists(st.booleans(), min_size=41, max_size=41),
)
def test_a_sequence_gives_what_the_walk_through_the_graph_gives(
    steps: list[Any], expression: str, context: str, within: str | None, max_open: int, ways: list[bool]
) -> None:
    (graph,) = build([define("it", expression, context=context, within=within, max_open=max_open, partition_by="k")])
    root = sequence_of(graph)
    assert root is not None
    batches = batches_of(steps, [child.name for child in root.children])
    wanted = play(State(graph), batches, general=[True] * len(batches))
    assert play(State(graph), batches, general=[False] * len(batches)) == wanted
    assert play(State(graph), batches, general=ways[: len(batches)]) == wanted


@pytest.mark.parametrize(
    "expression", ["a", "a and b", "a ; b ; c", "(a or b) ; c", "a ; every('5 s')", "a ; plus(b, '1 s')"]
)
def test_other_expressions_are_no_sequences(expression: str) -> None:
    assert sequence_of(graph_of(expression, "recent")) is None


def test_filters_event_time_and_intervals_make_no_sequence() -> None:
    assert sequence_of(graph_of("a ; b", "recent", filter="a.k = b.k")) is None
    assert sequence_of(graph_of("a ; b", "recent", time_basis="event")) is None
    (graph,) = build([define("it", "a ; b")], ["b"])
    assert sequence_of(graph) is None


def test_an_event_with_a_beginning_of_its_own_takes_the_walk() -> None:
    graph = graph_of("a ; b", "recent")
    names = [node.name for node in graph.leaves]
    events = [
        Event(1, 5, "a", "a1", 1, matches=[(names[0], ())]),
        Event(2, 9, "b", "b2", 2, start=(3, 0), matches=[(names[1], ())]),
    ]
    assert detect(State(graph), events)[1] == []


def test_what_a_neighbour_has_detected_takes_the_walk() -> None:
    (graph,) = build([define("it", "a ; b", partition_by="k")])
    root = sequence_of(graph)
    assert root is not None
    told = [[[[3, 1, None, "a1"]], [[4, 2, None, "b2"]]]]
    event = Event(9, 5, "", None, 9, "there", matches=[(root.name, "x")], told=told)
    ((key, node, _, occurrence),) = detect(State(graph), [event])[1]
    assert (key, node, [one[6] for group in occurrence[4] for one in group]) == ("x", root, ["a1", "b2"])
