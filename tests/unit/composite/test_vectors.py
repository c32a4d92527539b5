"""Known histories and what the contexts make of them: the vectors of the literature, one table an operator."""

from __future__ import annotations

import pytest

from composite.detector import State, detect
from composite.matching import Matcher
from composite.points import Event, time_of
from tests.unit.composite.histories import CONTEXTS, detected, graph_of, show

H1 = "a1@0 a2@1 b1@2 b2@3 a3@4"
H2 = "a1@0 a2@1 c1@2 a3@3 b1@4 c2@5 a4@6 c3@7 c4@8"
H3 = "a1@0 b1@1 a2@2 b2@3 c1@4 b3@5 c2@6 b4@7"
H4 = "a1@1 a2@2 b1@3 c1@4 a3@5"
H5 = "a1@5 a2@6 a3@12"
H6 = "a1@0 a2@4 c1@8 c2@11"
# Ticks of one time meet: of what must not come with what ends it, at 3, and with what begins it.
H9 = "a1@0 b1@1 c1@2 a2@10 c2@11"
H10 = "a1@0 b1@1 c1@5 a2@10 c2@14"
VECTORS: list[tuple[str, str, tuple[str, ...]]] = [
    ("a ; b", H1, (
        "2:(a1,b1) 2:(a2,b1) 3:(a1,b2) 3:(a2,b2)", "2:(a2,b1) 3:(a2,b2)", "2:(a1,b1) 3:(a2,b2)",
        "2:(a1,b1) 2:(a2,b1)", "2:({a1,a2},b1)",
    )),
    ("a and b", H1, (
        "2:(a1,b1) 2:(a2,b1) 3:(a1,b2) 3:(a2,b2) 4:(a3,b1) 4:(a3,b2)", "2:(a2,b1) 3:(a2,b2) 4:(a3,b2)",
        "2:(a1,b1) 3:(a2,b2)", "2:(a1,b1) 2:(a2,b1) 4:(a3,b2)", "2:({a1,a2},b1) 4:(a3,b2)",
    )),
    ("a or b", H1, ("0:a1 1:a2 2:b1 3:b2 4:a3",) * 5),
    ("not(b)[a, c]", H2, (
        "2:(a1,c1) 2:(a2,c1) 7:(a4,c3) 8:(a4,c4)", "2:(a2,c1) 7:(a4,c3) 8:(a4,c4)", "2:(a1,c1) 7:(a4,c3)",
        "2:(a1,c1) 2:(a2,c1) 7:(a4,c3)", "2:({a1,a2},c1) 7:(a4,c3)",
    )),
    ("A(a, b, c)", H3, (
        "1:(a1,b1) 3:(a1,b2) 3:(a2,b2)", "1:(a1,b1) 3:(a2,b2)", "1:(a1,b1) 3:(a1,b2) 3:(a2,b2) 5:(a2,b3)",
        "1:(a1,b1) 3:(a1,b2) 3:(a2,b2)", "4:({a1,a2},{b1,b2},c1)",
    )),
    ("A*(a, b, c)", H3, (
        "4:(a1,{b1,b2},c1) 4:(a2,b2,c1)", "4:(a2,b2,c1)", "4:(a1,{b1,b2},c1) 6:(a2,{b2,b3},c2)",
        "4:(a1,{b1,b2},c1) 4:(a2,b2,c1)", "4:({a1,a2},{b1,b2},c1)",
    )),
    ("any(2, a, b, c)", H4, (
        "3:(a1,b1) 3:(a2,b1) 4:(a1,c1) 4:(a2,c1) 4:(b1,c1) 5:(a3,b1) 5:(a3,c1)", "3:(a2,b1) 4:(b1,c1) 5:(a3,c1)",
        "3:(a1,b1) 4:(a2,c1)", "3:(a1,b1) 3:(a2,b1) 5:(a3,c1)", "3:({a1,a2},b1) 5:(a3,c1)",
    )),
    ("plus(a, '4 us')", H5, (
        "9:(a1,{9}) 10:(a2,{10}) 16:(a3,{16})", "10:(a2,{10}) 16:(a3,{16})", "9:(a1,{9}) 10:(a2,{10}) 16:(a3,{16})",
        "9:(a1,{9}) 10:(a2,{10}) 16:(a3,{16})", "9:({a1,a2},{9}) 16:(a3,{16})",
    )),
    ("P(a, '3 us', c)", H6, (
        "3:(a1,{3}) 6:(a1,{6}) 7:(a2,{7})", "3:(a1,{3}) 7:(a2,{7})",
        "3:(a1,{3}) 6:(a1,{6}) 7:(a2,{7}) 10:(a2,{10})", "3:(a1,{3}) 6:(a1,{6}) 7:(a2,{7})",
        "8:({a1,a2},c1,{3,6,7})",
    )),
    ("P*(a, '3 us', c)", H6, (
        "8:(a1,c1,{3,6}) 8:(a2,c1,{7})", "8:(a2,c1,{7})", "8:(a1,c1,{3,6}) 11:(a2,c2,{7,10})",
        "8:(a1,c1,{3,6}) 8:(a2,c1,{7})", "8:({a1,a2},c1,{3,6,7})",
    )),
    ("not(plus(b, '2 us'))[a, plus(c, '1 us')]", H9, ("12:(a2,(c2,{12}))",) * 5),
    ("not(plus(b, '2 us'))[plus(a, '3 us'), c]", H10, ("14:((a2,{13}),c2)",) * 5),
    ("not(plus(b, '2 us'))[plus(a, '3 us'), + '4 us']", H10, ("17:((a2,{13}),{17})",) * 5),
]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "text", "context", "expected"),
    [(e, h, context, result) for e, h, results in VECTORS for context, result in zip(CONTEXTS, results, strict=True)],
)
def test_each_context_makes_of_a_history_what_it_should(
    expression: str, text: str, context: str, expected: str
) -> None:
    assert detected(expression, context, text, now=100) == expected


def intervals(expression: str, context: str, **types: list[tuple[int, int]]) -> str:
    """Return what is found in events with a beginning and an end, as `[4,10]`."""
    graph = graph_of(expression, context)
    given = sorted((end, start, name) for name, found in types.items() for start, end in found)
    events = [
        Event(number, end, name, f"{name}{start}", number, start=(start, 0) if start < end else None)
        for number, (end, start, name) in enumerate(given, 1)
    ]
    events = [event._replace(start=event.start and (event.start[0], event.position)) for event in events]
    _, found = detect(State(graph, matcher=Matcher(graph, {})), events)
    return " ".join(f"[{time_of(one.occurrence[1])},{time_of(one.occurrence[2])}]" for one in found)


A, B = [(3, 5), (4, 6), (8, 9)], [(1, 2), (7, 10), (11, 12)]


def test_a_sequence_asks_for_the_end_of_the_first_before_the_start_of_the_second() -> None:
    assert intervals("a ; b", "recent", a=A, b=B) == "[8,12]"


def test_what_touches_the_end_of_the_first_lies_between() -> None:
    # Of two events of one time the later in position is the later: x comes behind the a that ends with it.
    assert intervals("not(x)[a, b]", "unrestricted", a=A, b=B, x=[(5, 5)]) == "[4,10] [4,12] [8,12]"
    assert intervals("not(x)[a, b]", "recent", a=A, b=B, x=[(5, 5)]) == "[8,12]"


def test_nesting_keeps_the_order_of_the_intervals() -> None:
    given = {"e1": [(1, 2)], "e2": [(3, 4)], "e3": [(5, 6)]}
    for context in CONTEXTS:
        assert intervals("e1 ; (e2 ; e3)", context, **given) == "[1,6]"
        assert intervals("e2 ; (e1 ; e3)", context, **given) == ""


@pytest.mark.parametrize("context", CONTEXTS)
def test_an_empty_window_gives_nothing(context: str) -> None:
    assert detected("A*(a, b, c)", context, "a1@0 c1@5 b1@6 c2@7") == ""
    assert detected("P*(a, '3 us', c)", context, "a1@0 c1@3", now=50) == ""  # the tick of 3 comes behind c1


@pytest.mark.parametrize("context", CONTEXTS)
def test_one_event_fills_one_role(context: str) -> None:
    assert detected("a ; a", context, "a1@0") == ""
    assert detected("a and a", context, "a1@0") == ""
    assert detected("any(2, a, a, b)", context, "a1@0") == ""
    assert detected("not(a)[a, b]", context, "a1@0 b1@1") == "1:(a1,b1)"


@pytest.mark.parametrize("context", CONTEXTS)
def test_absence_is_known_when_its_time_is_over(context: str) -> None:
    expression = "not(b)[a, + '5 us']"
    assert detected(expression, context, "a1@0", now=5) == ""
    assert detected(expression, context, "a1@0", now=6) == "5:(a1,{5})"
    assert detected(expression, context, "a1@0 b1@5", now=50) == ""  # what comes at that time is in time
    assert detected(expression, context, "a1@0 b1@6", now=50) == "5:(a1,{5})"


def test_ticks_of_the_clock_come_once_and_in_order_after_a_pause() -> None:
    assert detected("every('10 us')", "recent", "", now=5) == ""
    graph = graph_of("a ; every('10 us')", "chronicle")
    state = State(graph, matcher=Matcher(graph, {}))
    state.start(0)
    found = detect(state, [Event(1, 3, "a", "a1", 1), Event(2, 25, "a", "a2", 2)], 61)[1]
    assert [f"{time_of(one.point)}:{show(one.occurrence)}" for one in found] == ["10:(a1,None)", "30:(a2,None)"]


def test_repetition_is_in_a_row() -> None:
    text = "a1@0 a2@1 a3@2 a4@3"
    assert detected("repeat(a, 2)", "unrestricted", text) == "1:({a1,a2}) 2:({a2,a3}) 3:({a3,a4})"
    assert detected("repeat(a, 2)", "recent", text) == "1:({a1,a2}) 2:({a2,a3}) 3:({a3,a4})"
    assert detected("repeat(a, 2)", "chronicle", text) == "1:({a1,a2}) 3:({a3,a4})"
    assert detected("repeat(a, 2, 3)", "recent", text) == "1:({a1,a2}) 2:({a1,a2,a3}) 3:({a2,a3,a4})"
    assert detected("repeat(a, 2, 3)", "cumulative", text) == "1:({a1,a2}) 2:({a1,a2,a3})"
