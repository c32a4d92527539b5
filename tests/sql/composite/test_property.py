"""What SQL detects does not depend on the cuts: it is what the detector alone makes of the whole history."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.sql.composite.histories import Player, expected
from tests.unit.composite.histories import CONTEXTS

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


@pytest.fixture
def player(connect: Connect, own_database: str, clock: Clock) -> Player:
    return Player(connect(dsn=own_database), clock)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(expression=EXPRESSIONS, context=st.sampled_from(CONTEXTS), steps=STEPS, rest=st.integers(0, 40))
def check(played: Player, expression: str, context: str, steps: list[tuple[str, int, bool]], rest: int) -> None:
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
