"""Events are read in portions, which come in any order; their keys are made once for each value."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from composite.gathering import PORTION, Events, Hits, keys_of, portions_of, read_events
from composite.keys import KEY_BYTES, key_of, key_of_text

TEXTS = st.one_of(st.none(), st.text(max_size=20), st.text(alphabet='a"\\\x01é\U0001f600', min_size=100, max_size=400))


class Log:
    """Answers the queries for events from a dictionary of ids and keys, with the portions in an order that is given."""

    def __init__(self, keys: dict[int, str | None], name: str, order: list[int]) -> None:
        self.keys, self.name, self.order = keys, name, order
        self.text = ""

    def plan(self, text: str, types: list[str]) -> Log:
        self.text = text
        return self

    def execute(self, values: list[list[int]]) -> list[dict[str, Any]]:
        portions = [[one for one in sorted(self.keys) if one in values[0]]]
        if self.text == "ranges":
            bounds = zip(*values, strict=True)
            portions = [[one for one in sorted(self.keys) if low <= one < high] for low, high in bounds]
        rows = [self.row(portion) for portion in portions if portion]
        return [rows[place] for place in sorted(range(len(rows)), key=lambda place: self.order[place % 7])]

    def row(self, ids: list[int]) -> dict[str, Any]:
        keys: list[Any] = [self.keys[one] for one in ids]
        if self.name.startswith("key"):
            keys = [json.dumps([key]) for key in keys]
        return {"ids": ids, "xids": [-one for one in ids], "payloads": [str(one) for one in ids], self.name: keys}


@given(TEXTS)
def test_the_key_of_one_text_is_that_of_an_array_of_it(text: str | None) -> None:
    assert key_of_text(text) == key_of(json.dumps([text]))
    assert len(key_of_text(text).encode()) <= KEY_BYTES


@given(st.lists(TEXTS, max_size=30), st.lists(TEXTS, max_size=30))
def test_keys_of_texts_are_those_of_arrays(before: list[str | None], texts: list[str | None]) -> None:
    memory: dict[str, Any] = {}
    for given_ in (before, texts):
        wanted = [key_of(json.dumps([text])) for text in given_]
        assert keys_of(memory, given_, is_text=True) == wanted
        assert keys_of(memory, [json.dumps([text]) for text in given_], is_text=False) == wanted


@given(
    keys=st.dictionaries(st.integers(1, 400), st.sampled_from([None, "x", "y", '["x"]'])),
    lows=st.lists(st.integers(1, 400), max_size=4),
    alone=st.lists(st.integers(1, 400), max_size=12),
    name=st.sampled_from(["text_0", "key_0"]),
    order=st.permutations(range(7)),
)
def test_events_are_in_order_of_their_ids_however_they_come(
    keys: dict[int, str | None], lows: list[int], alone: list[int], name: str, order: list[int]
) -> None:
    hits = Hits(1, [1], [0], alone, lows, [low + 30 for low in lows], [], [])
    events = Events("a")
    log: Any = Log(keys, name, order)
    read_events(log, {}, events, ("ranges", "alone"), [("k",)], [hits])
    asked = {one for low in lows for one in range(low, low + 30)} | set(alone)
    assert set(events.ids) >= asked & set(keys)
    assert events.ids == sorted(set(events.ids))
    assert events.xids == [-one for one in events.ids]
    assert events.payloads == [str(one) for one in events.ids]
    assert events.keys[("k",)] == [key_of(json.dumps([keys[one]])) for one in events.ids]


def test_a_portion_of_a_range_has_a_limited_size() -> None:
    assert portions_of([(5, 9), (10, 11 + 2 * PORTION)]) == [
        (5, 9), (10, 10 + PORTION), (10 + PORTION, 10 + 2 * PORTION), (10 + 2 * PORTION, 11 + 2 * PORTION)
    ]  # fmt: skip
