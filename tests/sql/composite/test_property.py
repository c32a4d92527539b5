"""What SQL detects does not depend on the cuts: it is what the detector alone makes of the whole history."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.sql.composite.histories import Player, expected
from tests.unit.composite.histories import CONTEXTS

MORE = int(os.environ.get("PGPS_COMPOSITE_STORIES", "500"))
LEAVES = st.sampled_from(["a", "b", "c"])
DURATIONS = st.sampled_from(["2 us", "5 us", "9 us"])


def operators(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} ; {})".format, parts, parts),
        st.builds("({} and {})".format, parts, parts),
        st.builds("({} or {})".format, parts, parts),
        st.builds("any(2, {}, {}, {})".format, parts, parts, parts),
        st.builds("not({})[{}, {}]".format, parts, parts, parts),
        st.builds("not({})[{}, + '{}']".format, parts, parts, DURATIONS),
        st.builds("A({}, {}, {})".format, parts, parts, parts),
        st.builds("A*({}, {}, {})".format, parts, parts, parts),
        st.builds("P({}, '{}', {})".format, parts, DURATIONS, parts),
        st.builds("P*({}, '{}', {})".format, parts, DURATIONS, parts),
        st.builds("plus({}, '{}')".format, parts, DURATIONS),
        st.builds("repeat({}, 2, 3)".format, parts),
    )


EXPRESSIONS = st.recursive(LEAVES, operators, max_leaves=5)
STEPS = st.lists(st.tuples(LEAVES, st.integers(0, 4), st.booleans()), min_size=1, max_size=10)
STORIES = given(expression=EXPRESSIONS, context=st.sampled_from(CONTEXTS), steps=STEPS, rest=st.integers(0, 40))


@pytest.fixture
def player(connect: Connect, own_database: str, clock: Clock) -> Player:
    return Player(connect(dsn=own_database), clock)


# One event is open in two operands of equal events: what one of them uses up is still there for the other.
@example("any(2, a, a, c)", "chronicle", [("a", 0, True), ("c", 0, True), ("a", 0, False)], 0)
@example("any(2, a, a, c)", "continuous", [("a", 0, True), ("c", 0, True), ("a", 0, False)], 0)
@example("(a ; b) or (a ; c)", "chronicle", [("a", 0, True), ("b", 1, True), ("c", 1, False)], 0)
@example("(a ; b) and (a ; c)", "cumulative", [("a", 0, True), ("b", 1, True), ("a", 1, True), ("c", 1, False)], 0)
@example("any(2, a ; b, a ; c, a)", "recent", [("a", 0, True), ("b", 1, True), ("a", 1, True), ("c", 1, False)], 0)
@example("A*(a, b, c) or not(b)[a, c]", "chronicle", [("a", 0, True), ("b", 1, True), ("c", 1, True)], 0)
@example("P(a, '2 us', c) or plus(a, '5 us')", "chronicle", [("a", 0, True), ("c", 3, True), ("b", 3, True)], 9)
@example("P(a, '9 us', a)", "unrestricted", [("a", 0, False), ("a", 2, True), ("b", 8, True)], 3)
@settings(max_examples=25, derandomize=True)
@STORIES
def check(played: Player, expression: str, context: str, steps: list[tuple[str, int, bool]], rest: int) -> None:
    play(played, expression, context, steps, rest)


def play(played: Player, expression: str, context: str, steps: list[tuple[str, int, bool]], rest: int) -> None:
    at, words, cuts = 0, [], []
    for place, (kind, wait, is_cut) in enumerate(steps):
        at += wait
        words.append(f"{kind}{place}@{at}")
        if is_cut:
            cuts.append(place)
    played.go_on(1000)
    played.create("it", expression, context=context, max_open=1000, within="1 day")
    text = " ".join(words)
    wanted = expected(expression, text, played.base, at + rest, context=context, max_open=1000, within="1 day")
    try:
        played.play(text, at + rest, cuts)
        assert played.found("it") == wanted
    finally:
        played.drop("it")


def test_any_cut_gives_what_the_whole_gives(player: Player) -> None:
    check(player)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_any_cut_of_other_stories_gives_what_the_whole_gives(player: Player) -> None:
    # The seeds of the test above are always the same; these are always others.
    settings(max_examples=MORE)(STORIES(play))(player)
