"""What a condition is asked about when jsonb does not take all of an event."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composite.bared import bare, members

BAD = ('"\\u0000"', '["\\ud800", {"a": 1}]', "1e400000")
NUMBER = "9" * 5000  # Python makes no integer of as many digits


def takes(value: str) -> bool:
    """Answer as jsonb would, of the values above."""
    return value not in BAD


@pytest.mark.parametrize(
    ("condition", "asked"),
    [
        ("x.k = 1", True),
        ('x."k" = 1', True),
        ("x.k = 'body'", True),
        ("x.k = (select max(t.k) from t)", True),
        ("other.x.k = 1", True),
        ("x.body is null", False),
        ('(x)."body" is null', False),
        ("f(x)", False),
        ("x.* is null", False),
        ("x.k = 1 or x is null", False),
        ("x.k = any (select body from t)", False),
    ],
)
def test_it_is_asked_without_what_it_does_not_read(condition: str, asked: bool) -> None:
    given = f'{{"x": {{"k":1,\n "body":{BAD[0]}, "n":{NUMBER}}}, "y": [{{"k": 2, "body": []}}]}}'
    found = bare(condition, given, takes)
    expected = f'{{"x": {{"k": 1, "body": null, "n": {NUMBER}}}, "y": [{{"k": 2, "body": []}}]}}'
    assert found == (expected if asked else None)


def test_where_all_is_json_nothing_is_left_out() -> None:
    assert bare("x.k = 1", '{"x": {"k": 1}, "y": []}', takes) is None
    assert bare("x.k = 1", '{"x": {}}', takes) is None


def test_of_what_is_too_deep_nothing_is_told() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert bare("x.k = 1", f'{{"x": {{"k": {deep}, "body": {BAD[0]}}}}}', takes) is None


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
                      | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8)  # fmt: skip
EVENTS = st.dictionaries(st.text(min_size=1), VALUES, max_size=4)


@given(EVENTS, st.lists(EVENTS, max_size=3), st.integers(min_value=0, max_value=3), st.data())
def test_all_else_stays_as_it_is(one: dict[str, Any], many: list[dict[str, Any]], indent: int, data: Any) -> None:
    text = json.dumps({"x": one, "y": many}, indent=indent)
    bad = data.draw(st.sets(st.sampled_from([event_value for event in [one, *many] for event_value in event.items()]
                                            or [("", 0)]).map(lambda item: json.dumps(item[1]))))  # fmt: skip
    found = bare("true", text, lambda value: json.dumps(json.loads(value)) not in bad)

    def without(event: dict[str, Any]) -> dict[str, Any]:
        return {name: None if json.dumps(part) in bad else part for name, part in event.items()}

    expected = {"x": without(one), "y": [without(event) for event in many]}
    if any(json.dumps(part) in bad for event in [one, *many] for part in event.values()):
        assert found is not None
        assert json.loads(found) == expected
    else:
        assert found is None
    assert {name: json.loads(part) for name, part in members(text)} == {"x": one, "y": many}
