"""Names: as SQL writes them, and as Python can."""

from __future__ import annotations

import pytest

from pgps.client._wire import Attribute, Shape, folded
from pgps.client.events import class_source, event_class
from pgps.errors import BadArgument


@pytest.mark.parametrize("wrong", ["a b", "class", "1st", 'quo"te'])
def test_an_attribute_that_can_be_no_field_is_told_of(wrong: str) -> None:
    shape = Shape("tick", (Attribute(wrong, "integer", "integer", 23, "b", 0, False),), True)
    for made in (event_class, class_source):
        with pytest.raises(BadArgument, match="tick"):
            made(shape)


def test_the_source_of_a_class_of_any_name_can_be_run() -> None:
    shape = Shape('A "type"', (Attribute("ü", "integer", "integer", 23, "b", 0, False),), True)
    exec(compile(class_source(shape), "source", "exec"), {})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("Quote", "quote"),
        ("ÄRGER", "Ärger"),
        ('"Quote"', "Quote"),
        ('"a""b"', 'a"b'),
        ("Two words", "Two words"),
        ("Sec*", "sec*"),
        ('"Sec"*', "Sec*"),
    ],
)
def test_a_name_is_folded_as_the_broker_folds_it(given: str, kept: str) -> None:
    assert folded(given) == kept
