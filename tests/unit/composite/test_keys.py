"""Partition keys as text: values that are equal in SQL have one key, others have several, and any value has one."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composite.gathering import keys_of
from composite.keys import KEY_BYTES, canonical_key

VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=9), st.decimals(allow_nan=False, allow_infinity=False)
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


def written(value: Any, zeros: int = 0) -> str:
    """Return a value as JSON, numbers with so many zeros behind a point."""
    if isinstance(value, list):
        return "[ " + ", ".join(written(one, zeros) for one in value) + " ]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} : {written(one, zeros)}" for name, one in value.items()) + "}"
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        plain = format(Decimal(value), "f")
        return plain + ("." if zeros and "." not in plain else "") + "0" * zeros
    return json.dumps(value)


def key_of_column(text: str) -> str:
    """Return the key of a column as it is read from a log."""
    (key,) = keys_of({}, [f"[{text}]"], is_text=False)
    return key


def key_in_payload(text: str) -> str:
    """Return the key of the same attribute in the payload of an event."""
    return canonical_key(f'{{"other": [1.5, {{"k": "}}"}}], "k": {text}, "last": "\\\\"}}', ("k",))


@given(VALUES)
def test_the_key_of_a_column_is_that_of_the_attribute_in_the_payload(value: Any) -> None:
    assert key_of_column(written(value)) == key_in_payload(written(value))


@given(VALUES, st.integers(1, 3))
def test_zeros_behind_the_point_are_not_in_the_key_however_deep_the_number_is(value: Any, zeros: int) -> None:
    if key_of_column(written(value)) != key_of_column("-0"):
        assert key_of_column(written(value)) == key_of_column(written(value, zeros))


@given(st.one_of(st.integers(), st.decimals(allow_nan=False, allow_infinity=False, places=40)), st.integers(1, 60))
def test_numbers_that_differ_in_any_digit_have_different_keys(number: Any, place: int) -> None:
    other = format(Decimal(number), "f")
    other += ("" if "." in other else ".") + "0" * place + "1"
    for form in ("{}", "[{}]", '{{"a": {}}}'):
        assert key_of_column(form.format(other)) != key_of_column(form.format(format(Decimal(number), "f")))


# What the former code has written; it had no key for a fraction inside a value.
FORMER = {
    "null": "[null]",
    "0": "[0]",
    "-0": "[0]",
    "-0.0": "[0]",
    "1.50": "[1.5]",
    "1e3": "[1000]",
    "1.5e-7": "[0.00000015]",
    "-12345678901234567890": "[-12345678901234567890]",
    "0.1234567890123456789012345678": "[0.1234567890123456789012345678]",
    "1e+300": f"[1{'0' * 300}]",
    '"\\u00e9\\"\\u0001\\/"': '["é\\"\\u0001/"]',
    "[1, 2, [3]]": "[[1,2,[3]]]",
    "[]": "[[]]",
    "{}": "[{}]",
    '{"b": 1, "a": [true, false, null, "x"]}': '[{"b":1,"a":[true,false,null,"x"]}]',
}


@pytest.mark.parametrize("text", FORMER)
def test_keys_that_were_written_before_are_written_the_same(text: str) -> None:
    assert key_of_column(text) == key_in_payload(text) == FORMER[text]


def test_a_long_key_is_a_digest_as_before() -> None:
    text = json.dumps(["é" * KEY_BYTES, 1])
    wanted = "#" + hashlib.sha256(f'[["{"é" * KEY_BYTES}",1]]'.encode()).hexdigest()
    assert key_of_column(text) == key_in_payload(text) == wanted


def test_several_columns_make_one_key() -> None:
    assert canonical_key('{"a": 1.0, "b": null, "c": [0.50]}', ("c", "a", "gone")) == "[[0.5],1,null]"
    assert keys_of({}, ["[[0.50], 1.0, null]"], is_text=False) == ["[[0.5],1,null]"]


@pytest.mark.parametrize(
    "texts",
    [
        ("[1.5]", "[1.50]"),
        ("123456789012345678901234567890", "123456789012345678901234567890.0"),
        ("9" * 5000, "9" * 5000 + ".0"),
        ("[" * 5000 + "1.0" + "]" * 5000, "[" * 5000 + "1" + "]" * 5000),
        ('{"a":' * 5000 + "1.0" + "}" * 5000, '{"a" : ' * 5000 + "1" + "}" * 5000),
        # Only the type json takes what follows.
        ("1e999999999", "1e999999999"),
        ("1e99999999999999999999", "1e99999999999999999999"),
        ('"\\ud800"', '"\\ud800"'),
        ('"\\u0000"', '"\\u0000"'),
    ],
    ids=lambda texts: texts[0][:20],
)
def test_whatever_an_event_has_as_key_has_one(texts: tuple[str, str]) -> None:
    keys = {key(text) for text in texts for key in (key_of_column, key_in_payload)}
    assert len(keys) == 1
    (key,) = keys
    assert len(key.encode()) <= KEY_BYTES
    # PostgreSQL reads a key as jsonb, unless it is a digest.
    assert key.startswith("#") or "\\u0000" not in key
    assert key != key_of_column('"x"')
