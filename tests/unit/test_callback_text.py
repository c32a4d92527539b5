"""The text of a callback: a function, or a call of one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "sql" / "python"))
SqlTextError = importlib.import_module("lexer").SqlTextError
parse_callback = importlib.import_module("callback_text").parse_callback


@pytest.mark.parametrize(
    ("text", "function", "name", "arguments", "types"),
    [
        ("f", "f", "f", None, None),
        (" My . F ", "my.f", "f", None, None),
        ('"My S"."F x"', '"My S"."F x"', "F x", None, None),
        ("f()", "f", "f", "", None),
        ("f( price , symbol );", "f", "f", "price , symbol", None),
        ("f(g(h(1)), ')', array[(1)], $$;)$$ -- )\n)", "f", "f", "g(h(1)), ')', array[(1)], $$;)$$", None),
        ("f(b => 1, a := 2)", "f", "f", "b => 1, a := 2", None),
        ("f(RECORD)", "f", "f", "RECORD", ["record"]),
        ('f("record")', "f", "f", '"record"', None),
        ("f(pgps_event.Quote)", "f", "f", "pgps_event.Quote", ["pgps_event", "quote"]),
        ('f(pgps_event."Q" [ ])', "f", "f", 'pgps_event."Q" [ ]', ["pgps_event", "Q", "[]"]),
        ("f(a.b[1])", "f", "f", "a.b[1]", None),
        ("f(a.b, c)", "f", "f", "a.b, c", None),
    ],
)
def test_a_callback_is_a_name_and_what_it_is_given(
    text: str, function: str, name: str, arguments: str | None, types: list[str] | None
) -> None:
    found = parse_callback(text)
    assert (found["function"], found["name"]) == (function, name)
    assert (found["arguments"], found["types"]) == (arguments, types)


@pytest.mark.parametrize(
    "text",
    [
        "", ";", "1", "f(", "f)", "f(price", "f(price))", "f(price]", "f[1]", "f(price); drop table x", "f; select 1",
        "f(price)) from x; drop table x; --", "f(price) over ()", "f(price), g(price)", "f(price) + 1", "1 + f(price)",
        "f(price; select 1)", "f($1)", "f(') --", "f(/* )", "select", "f.", ".f", "f(price) from x", "f g",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SqlTextError) as caught:
        parse_callback(text)
    assert caught.value.hint
