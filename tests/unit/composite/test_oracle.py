"""Against the oracle: the same occurrences, for any expression, history, cut, crash and order of arrival."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from composite.definition import define
from composite.detector import State, detect
from composite.graph import build
from composite.matching import Matcher
from composite.points import Event
from composite.syntax import Expression, leaves, print_expression
from tests.unit.composite.histories import CONTEXTS, graph_of, outcome, run_batches
from tests.unit.composite.oracle import Oracle

if TYPE_CHECKING:
    from composite.graph import Graph

EXAMPLES = int(os.environ.get("PGPS_COMPOSITE_EXAMPLES", "60"))
TYPES = "abcd"
# A seed stands for a whole story: shrinking expressions of this size takes minutes.
stories = settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
SEEDS = st.integers(0, 2**32)


def random_expression(random: Random, depth: int) -> Expression:
    """Return an expression of at most a depth."""
    if depth == 0 or random.random() < 0.25:
        if random.random() < 0.12:
            return Expression(random.choice(["every", "at"]), amount=random.randint(4, 60))
        return Expression("leaf", type=random.choice(TYPES))
    op = random.choice("or and seq seq not not a a* p p* absence plus any repeat".split())
    count = {"not": 3, "a": 3, "a*": 3, "plus": 1, "repeat": 1, "any": random.randint(2, 4)}.get(op, 2)
    parts = tuple(random_expression(random, depth - 1) for _ in range(count))
    if op == "any":
        return Expression(op, parts, amount=random.randint(1, count))
    if op == "repeat":
        least = random.randint(1, 3)
        return Expression(op, parts, amount=least, upper=random.choice([0, least + 1, least + 2]))
    return Expression(op, parts, amount=random.randint(1, 12) if op in ("p", "p*", "absence", "plus") else 0)


def story_of(random: Random, longest: int = 10) -> tuple[Expression, list[Event], int | None]:
    """Return an expression of depth one to four, a history and what `within` is."""
    expression = random_expression(random, random.randint(1, 4))
    while not expression.parts:
        expression = random_expression(random, random.randint(1, 4))
    events, time = [], 10
    for position in range(1, random.randint(1, longest) + 1):
        time += random.choice([0, 0, 1, 1, 2, 3, 5])
        name = random.choice(TYPES)
        events.append(Event(position, time, name, f"{name}{position}", id=position))
    return expression, events, within_of(expression, random.choice([None, None, 0, 3, 8, 15]))


def run_whole(graph: Graph, events: list[Event], now: int) -> list[Any]:
    state = State(graph, matcher=Matcher(graph, {}))
    state.start(events[0].time or 0)
    return outcome(detect(state, events, now)[1])


def oracle_of(expression: Expression, context: str, events: list[Event], now: int, within: int | None) -> list[Any]:
    oracle = Oracle(context, events, now, events[0].time or 0, within)
    return [((), one.at, one.start, one.end, one.tree) for one in oracle.all(expression)]


def within_of(expression: Expression, within: int | None) -> int | None:
    longest = max((part.amount for part in walk(expression) if part.op in ("plus", "absence", "p", "p*")), default=0)
    return None if within is None else within + longest


def walk(expression: Expression) -> list[Expression]:
    return [expression, *(one for part in expression.parts for one in walk(part))]


# A row of intervals of which an old one is the last that ends before the next begins.
@pytest.mark.parametrize("context", CONTEXTS)
@example(seed=2275)
# A row of ticks, of which two are one point.
@example(seed=23311)
@given(seed=SEEDS)
@stories
def test_the_detector_finds_what_the_definitions_say(context: str, seed: int) -> None:
    random = Random(seed)
    expression, events, within = story_of(random)
    assert_as_defined(random, expression, context, events, within)


def assert_as_defined(
    random: Random, expression: Expression, context: str, events: list[Event], within: int | None
) -> None:
    now = (events[-1].time or 0) + random.choice([0, 1, 5, 20])
    graph = graph_of(print_expression(expression), context, within=f"{within} us" if within else None)
    expected = oracle_of(expression, context, events, now, within or None)
    assert sorted(run_whole(graph, events, now), key=repr) == sorted(expected, key=repr)


def random_tick(random: Random) -> Expression:
    """Return an event, or what is likely to tick at the same time as others."""
    leaf = Expression("leaf", type=random.choice(TYPES))
    kind = random.choices(["every", "at", "plus", "seq", "leaf"], [3, 1, 3, 1, 2])[0]
    if kind == "seq":
        return Expression("seq", (leaf, random_tick(random)))
    if kind == "plus":
        return Expression("plus", (leaf,), amount=random.randint(1, 4))
    return leaf if kind == "leaf" else Expression(kind, amount=random.choice([2, 3, 4, 6, 12]))


# An E2 that is a part of an E3 which comes later: the window is still open for it, and for no other.
@pytest.mark.parametrize("context", CONTEXTS)
@example(seed=831)
@given(seed=SEEDS)
@stories
def test_the_interval_without_another_event_is_closed_also_where_ticks_of_one_time_meet(
    context: str, seed: int
) -> None:
    random = Random(seed)
    op, count = random.choice([("not", 3), ("not", 3), ("absence", 2)])
    amount = random.randint(1, 8) if op == "absence" else 0
    expression = Expression(op, tuple(random_tick(random) for _ in range(count)), amount=amount)
    assert_as_defined(random, expression, context, story_of(random)[1], None)


def cuts(random: Random, items: list[Any]) -> list[list[Any]]:
    """Return items cut into batches, some of them empty."""
    marks = sorted(random.randint(0, len(items)) for _ in range(random.randint(0, 4)))
    return [items[low:high] for low, high in zip([0, *marks], [*marks, len(items)], strict=True)]


@pytest.mark.parametrize("context", CONTEXTS)
@given(seed=SEEDS)
@stories
def test_neither_cuts_nor_crashes_change_anything(context: str, seed: int) -> None:
    random = Random(seed)
    expression, events, within = story_of(random, 14)
    now = (events[-1].time or 0) + 20
    graph = graph_of(print_expression(expression), context, within=f"{within} us" if within else None)
    batches: list[tuple[list[Event], int | None]] = [(batch, None) for batch in cuts(random, events)] + [([], now)]
    for number in range(len(batches) - 1):  # and time passes, never beyond the next event
        following = [event.time for batch, _ in batches[number + 1 :] for event in batch]
        if following and random.random() < 0.5:
            batches[number] = (batches[number][0], following[0])
    if not batches[0][0]:
        batches = batches[1:]

    def make() -> State:
        return State(graph, matcher=Matcher(graph, {}))

    crashes = {number for number in range(len(batches)) if random.random() < 0.4}
    expected = outcome(detect(make(), events, now)[1])
    assert run_batches(make, batches, crashes.__contains__)[0] == expected


@pytest.mark.parametrize("context", CONTEXTS)
@given(seed=SEEDS)
@stories
def test_keys_are_worlds_of_their_own_and_are_loaded_alone(context: str, seed: int) -> None:
    random = Random(seed)
    expression, events, within = story_of(random, 20)
    arguments: dict[str, Any] = {"within": f"{within} us"} if within else {}
    text = print_expression(expression)
    graph = graph_of(text, context, partition_by="k", **arguments) if leaves(expression) else None
    if graph is None:
        return
    matcher = Matcher(graph, {})
    keyed = [event._replace(payload={"k": random.choice("xyz")}) for event in events]
    keyed = [event._replace(matches=matcher(event)) for event in keyed]
    now = (events[-1].time or 0) + 20
    batches = [(batch, now if i == 0 else None) for i, batch in enumerate(cuts(random, keyed)[::-1])][::-1]
    found, _ = run_batches(lambda: State(graph), batches, concerned=True)
    alone = [
        one
        for key in "xyz"
        for one in outcome(detect(State(graph), [e for e in keyed if e.payload["k"] == key], now)[1])
    ]
    assert found == sorted(alone, key=lambda one: (one[1], repr(one[0])))


@pytest.mark.parametrize("context", CONTEXTS)
@given(seed=SEEDS)
@stories
def test_within_the_lateness_the_order_of_arrival_changes_nothing(context: str, seed: int) -> None:
    random = Random(seed)
    expression, events, within = story_of(random, 14)
    lateness = random.randint(1, 12)
    arguments: dict[str, Any] = {"within": f"{within} us"} if within else {}
    arguments |= {"time_basis": "event", "lateness": f"{lateness} us"}
    graph = graph_of(print_expression(expression), context, **arguments)

    def make() -> State:
        state = State(graph, matcher=Matcher(graph, {}))
        state.start(events[0].time or 0)
        return state

    now = (events[-1].time or 0) + 30
    in_order = [event for _, event in sorted((event.time, event) for event in events)]
    shuffled = [event for _, event in sorted(((e.time or 0) + random.random() * lateness, e) for e in events)]
    expected = outcome(detect(make(), in_order, now)[1])
    batches: list[tuple[list[Event], int | None]] = [(batch, None) for batch in cuts(random, shuffled)] + [([], now)]
    state, found = make(), []
    for batch, until in batches:
        changes, more = detect(state, batch, until)
        assert not changes.late
        found += outcome(more)
    assert found == expected


@pytest.mark.parametrize("context", CONTEXTS)
@given(seed=SEEDS)
@stories
def test_within_the_lateness_a_key_begins_with_its_earliest_event_in_any_order(context: str, seed: int) -> None:
    random = Random(seed)
    _, events, within = story_of(random, 20)
    # Something in it ticks.
    ticks = Expression("every", amount=random.randint(2, 9))
    part = random_expression(random, 2)
    expression = Expression(random.choice(["or", "and", "seq"]), (ticks, part)[:: random.choice([1, -1])])
    if not leaves(expression):
        return
    lateness = random.randint(1, 12)
    arguments: dict[str, Any] = {"within": f"{within_of(expression, within)} us"} if within else {}
    arguments |= {"time_basis": "event", "lateness": f"{lateness} us", "partition_by": "k"}
    graph = graph_of(print_expression(expression), context, **arguments)
    matcher = Matcher(graph, {})
    keyed = [event._replace(payload={"k": random.choice("xyz")}) for event in events]
    keyed = [event._replace(matches=matcher(event)) for event in keyed]
    order = [((one.time or 0) + random.random() * lateness, one.position, one) for one in keyed]
    now = (events[-1].time or 0) + 30
    batches: list[tuple[list[Event], int | None]] = [
        (batch, None) for batch in cuts(random, [e for *_, e in sorted(order)])
    ]
    crashes = {number for number in range(len(batches) + 1) if random.random() < 0.5}
    found, _ = run_batches(lambda: State(graph), [*batches, ([], now)], crashes.__contains__)
    expected = outcome(detect(State(graph), keyed, now)[1])
    assert sorted(found, key=lambda one: (one[1], repr(one[0]))) == expected


# What two operands bring in one step, of which another definition has the second one first.
@example(seed=11133)
@given(seed=SEEDS)
@stories
def test_one_graph_for_many_definitions_finds_what_each_would_alone(seed: int) -> None:
    random = Random(seed)
    context = random.choice(CONTEXTS)
    stories_told = [story_of(random, 14) for _ in range(4)]
    events, now = stories_told[0][1], (stories_told[0][1][-1].time or 0) + 20
    texts = [print_expression(expression) for expression, _, _ in stories_told]
    (shared,) = build(define(f"d{i}", text, context=context, max_open=1000) for i, text in enumerate(texts))
    state = State(shared, matcher=Matcher(shared, {}))
    state.start(events[0].time or 0)
    found = detect(state, events, now)[1]
    for i, text in enumerate(texts):
        own = [one for one in found if f"d{i}" in [root.name for root in one.node.roots]]
        graph = graph_of(text, context, max_open=1000)
        expected = run_whole(graph, events, now)
        assert sorted(outcome(own), key=repr) == sorted(expected, key=repr)
        assert len(shared.nodes) <= sum(len(walk(expression)) for expression, _, _ in stories_told)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(
    "told",
    [
        test_the_detector_finds_what_the_definitions_say,
        test_neither_cuts_nor_crashes_change_anything,
        test_keys_are_worlds_of_their_own_and_are_loaded_alone,
        test_within_the_lateness_the_order_of_arrival_changes_nothing,
        test_within_the_lateness_a_key_begins_with_its_earliest_event_in_any_order,
    ],
)
def test_many_more_stories(told: Any, context: str) -> None:
    for seed in range(2000):
        told.hypothesis.inner_test(context, seed)
