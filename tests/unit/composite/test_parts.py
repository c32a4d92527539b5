"""What is detected in parts at another broker is what is detected at one place, for any expression and context."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from composite.definition import Definition, define
from composite.described import describe_composite
from composite.detector import State, detect
from composite.graph import build
from composite.matching import Matcher
from composite.occurrences import constituents
from composite.points import Event, time_of
from composite.syntax import print_expression
from composite.wire import write_occurrence, write_point
from lexer import SqlTextError
from tests.unit.composite.histories import CONTEXTS
from tests.unit.composite.test_oracle import EXAMPLES, SEEDS, random_expression, stories, walk

THERE = "ab"  # what is published at the neighbour; all else is published here
LEAST = 1000  # positions between two events


def planned(expression: str, barred: dict[int, str] | None = None, **given: Any) -> dict[str, Any]:
    """Return the plan of a composite event whose events a and b come by neighbour 7, and n by 8."""
    definition = define("it", expression, **given)
    types = [part.type for part in walk(definition.expression) if part.op == "leaf"]
    where = {"a": ["7"], "b": ["7"], "n": ["8"], "m": ["", "7"]}
    told = {
        "expression": expression,
        **given,
        "refusing": {},
        "barred": [(barred or {}).get(i) for i in range(len(types))],
    }
    return describe_composite(json.dumps(told | {"places": [where.get(name, [""]) for name in types]}))


class Place:
    """A broker that detects: what is asked, and the names by which it tells what it has found."""

    def __init__(self, definition: Definition, intervals: str = "") -> None:
        self.definition = definition
        (self.graph,) = build([definition], intervals)
        self.state = State(self.graph, matcher=Matcher(self.graph, {}))
        self.found: list[Any] = []

    def take(self, events: list[Event], now: int) -> list[Any]:
        found = detect(self.state, events, now)[1]
        self.found += found
        return found


def told(there: Place, found: list[Any], asked: list[str], position: int) -> list[Event]:
    """Return what has been found there as events for here."""
    points: dict[Any, int] = {}
    events = []
    for place, one in enumerate(found):
        occurrence = one.occurrence
        while occurrence[3].name not in asked:
            (occurrence,) = (member for group in occurrence[4] for member in group)
        wire = json.loads(json.dumps(write_occurrence(occurrence, "there")))
        at = points.setdefault(one.point, position + place)
        time = write_point(one.point)[0]
        events.append(Event(at, time, "", None, place, "there", None, None, [(occurrence[3].name, ())], None, wire))
    return events


def shown(place: Place) -> list[Any]:
    """Return what has been detected in a form that does not depend on where: by numbers and times."""
    return [
        (
            time_of(one.point),
            time_of(one.occurrence[1]),
            time_of(one.occurrence[2]),
            [
                (part["as"], part.get("event_id"), part.get("tick"))
                for part in constituents(place.definition, one.occurrence)
            ],
        )
        for one in place.found
    ]


@pytest.mark.parametrize("context", CONTEXTS)
@settings(stories, max_examples=EXAMPLES // 3, derandomize=True)
@given(seed=SEEDS)
def test_parts_find_what_the_whole_finds(context: str, seed: int) -> None:
    random = Random(seed)
    expression = random_expression(random, random.randint(2, 4))
    text = print_expression(expression)
    plan = planned(text, context=context, max_open=10_000)
    for _ in range(20):
        if plan["parts"]:
            break
        expression = random_expression(random, random.randint(2, 4))
        text = print_expression(expression)
        plan = planned(text, context=context, max_open=10_000)
    else:
        return
    (part,) = plan["parts"]
    whole = Place(define("it", text, context=context, max_open=10_000))
    given = {name: value for name, value in part["given"].items() if name != "expression"}
    there = Place(define("part", part["given"]["expression"], **given))
    here = Place(define("it", text, context=context, max_open=10_000), THERE)
    time = 10
    for position in range(1, random.randint(2, 14)):
        time += random.choice([1, 1, 2, 3, 5])
        kind = random.choice("abcd")
        event = Event(position * LEAST, time, kind, f'"{kind}{position}"', id=position * LEAST, origin="x")
        whole.take([event], time)
        # Each place has all that was before before this comes.
        here.take(
            told(there, there.take([event] if kind in THERE else [], time), part["nodes"], position * LEAST), time
        )
        if kind not in THERE:
            here.take([event], time)
    time += random.choice([0, 3, 30])
    whole.take([], time)
    here.take(told(there, there.take([], time), part["nodes"], 20 * LEAST), time)
    here.take([], time)
    assert shown(here) == shown(whole), text


@pytest.mark.parametrize(
    ("expression", "options", "asked", "reasons"),
    [
        ("a ; b", {}, [("7", "a ; b")], []),
        ("a", {}, [], []),
        ("c ; d", {}, [], []),
        ("(a ; b) and c", {}, [("7", "a ; b")], []),
        ("(a ; n) and c", {}, [], []),
        ("(a or b) ; (n ; n y)", {}, [("7", "a or b"), ("8", "n ; n y")], []),
        ("A*(repeat(a, 2), c, b)", {}, [("7", "repeat(a, 2) or b")], []),
        ("(a ; b) and a x", {}, [("7", "a ; b and a x")], []),
        ("((a ; b) and c) or a x", {}, [], ["its events stand at other places of the expression, too"]),
        (
            "(a ; b) and m",
            {},
            [],
            ["other events of the expression come by that neighbour, too, and are to stay in order"],
        ),
        ("(a ; b) or every('5 s')", {}, [], ["clocks and transactions are those of this broker"]),
        ("(a ; b) or (c and commit)", {}, [], ["clocks and transactions are those of this broker"]),
        ("a ; b", {"time_basis": "event"}, [], ["in event time all sources are put in order at one place"]),
        ("a ; b", {"filter": "a.x < b.x"}, [], ["a condition of its filter is asked here"]),
        ("(a ; b) and c", {"filter": "a.x < c.x"}, [("7", "a ; b")], []),
        ("a ; b", {"barred": {1: "not this one"}}, [], ["not this one"]),
        ("(a ; b) and repeat(n, 2)", {"barred": {1: "not this one"}}, [("8", "repeat(n, 2)")], ["not this one"]),
    ],
)
def test_the_largest_parts_behind_one_neighbour_are_asked_for(
    expression: str, options: dict[str, Any], asked: list[tuple[str, str]], reasons: list[str]
) -> None:
    plan = planned(expression, **options)
    assert [(part["place"], part["given"]["expression"]) for part in plan["parts"]] == asked
    assert sorted(set(plan["reasons"].values())) == reasons


def test_a_part_has_the_keys_of_its_leaves() -> None:
    (part,) = planned("(c ; a) and (b ; b z)", partition_by='k, (l), "M m", j', within="5 s")["parts"]
    assert part["leaves"] == [1, 2, 3]
    assert part["given"]["partition_by"] == '(l), ("M m"), (j)'
    assert part["given"]["within"] == "5 s"


@pytest.mark.parametrize("told", [{"places": 1}, {"places": [[""]], "barred": [None]}, {"places": [[""], [1]]}])
def test_places_that_are_none_are_refused(told: dict[str, Any]) -> None:
    with pytest.raises(SqlTextError, match="places and barred are not arrays"):
        describe_composite(json.dumps({"expression": "a ; b", "barred": [None, None], "refusing": {}} | told))
    with pytest.raises(SqlTextError, match="refusing is not an object"):
        describe_composite(json.dumps({"expression": "a", "places": [[""]], "barred": [None], "refusing": 1}))
