"""Definitions: what belongs to an expression, and what is refused without a look at a database."""

from __future__ import annotations

from typing import Any

import pytest

from composite.definition import define, find_cycle
from composite.parser import parse_expression
from lexer import SqlTextError

TYPES = {"a": {"symbol": "text", "day": "date", "n": "integer"}, "b": {"ticker": "text", "day": "date", "n": "bigint"}}


def test_a_definition_has_its_parts_in_one_normal_form() -> None:
    found = define(
        "pair", "a x ; b", context="chronicle", partition_by="(symbol, day), (ticker, DAY)", within="1 hour",
        filter="b.n > 1.05*x.n and x.n between 1 and 2 and (b.n=3 or b.n=4)",
        attributes="symbol text = x.symbol, rise numeric(10, 2) = b.n - x.n", types=TYPES | {"b": TYPES["b"]},
    )  # fmt: skip
    assert found.text == "a x ; b"
    assert found.partition == (("symbol", "day"), ("ticker", "day"))
    assert found.within == 3600 * 10**6
    assert [(one.text, one.names) for one in found.conditions] == [
        ("b.n > 1.05 * x.n", ("b", "x")),
        ("x.n between 1 and 2", ("x",)),
        ("(b.n = 3 or b.n = 4)", ("b",)),
    ]
    assert [(one.name, one.type, one.text) for one in found.attributes] == [
        ("symbol", "text", "x.symbol"),
        ("rise", "numeric(10, 2)", "b.n - x.n"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "x.n::a_schema.t = b.n::x.t",
        "cast(x.n as a_schema.t) = b.n",
        "x.n operator(a_schema.=) b.n",
        "x.n > b.n collate a_schema.c",
    ],
)
def test_a_schema_before_a_type_an_operator_or_a_collation_is_no_alias(text: str) -> None:
    found = define("pair", "a x ; b", filter=text, attributes=f"n integer = {text}")
    assert [one.names for one in found.conditions] == [one.names for one in found.attributes] == [("b", "x")]


def test_names_stand_for_sets_where_several_events_are_taken_together() -> None:
    def aliases(expression: str, context: str = "recent") -> dict[str, tuple[bool, str]]:
        return {one.name: (one.many, one.bound) for one in define("x", expression, context=context, max_open=9).aliases}

    assert aliases("A*(a, b, c)") == {"a": (False, "always"), "b": (True, "always"), "c": (False, "always")}
    assert aliases("a ; b", "cumulative") == {"a": (True, "always"), "b": (True, "always")}
    assert aliases("not(b)[a, c or d]")["b"] == (False, "never")
    assert aliases("not(b)[a, c or d]")["d"] == (False, "maybe")
    assert aliases("A(a, b, c)")["c"] == (False, "never")
    assert aliases("repeat(a, 2)") == {"a": (True, "always")}


@pytest.mark.parametrize(
    ("expression", "arguments", "sqlstate", "message"),
    [
        ("a ; b", {"context": "sometimes"}, "22023", '"sometimes" is no context'),
        ("a ; b", {"context": "chronicle"}, "22023", "a ; b would keep events for ever in chronicle"),
        ("A(a, b ; c, d)", {"context": "continuous"}, "22023", "b ; c would keep events"),
        ("not(b)[a, c]", {"context": "unrestricted"}, "22023", "for ever"),
        ("a ; b", {"max_open": 0}, "22023", "leaves nothing open"),
        ("a ; b", {"within": "0 s"}, "22023", "within"),
        ("a ; b", {"within": "1 year"}, "22023", "no fixed length"),
        ("plus(a, '1 min')", {"within": "1 s"}, "22023", "takes longer than within"),
        ("a ; b", {"lateness": "1 s"}, "22023", "lateness is of no use"),
        ("a ; commit", {"time_basis": "event"}, "22023", "commit has no place"),
        ("a ; b", {"time_basis": "lunar"}, "22023", "lunar"),
        ("a ; b", {"filter": "z.n > 1"}, "42704", "alias z in the filter does not exist"),
        ("a ; a", {"filter": "a.n > 1"}, "42702", "several leaves"),
        ("not(b)[a, c]", {"filter": "b.n > 1"}, "42704", "never bound"),
        ("a ; b", {"filter": "a.n > 1; drop table x"}, "42601", '";"'),
        ("a ; b", {"filter": ""}, "42601", "empty"),
        ("a ; b", {"attributes": "n = a.n"}, "42601", '"n"'),
        ("a ; b", {"attributes": "n int = a.n, n int = b.n"}, "42701", "n is there already"),
        ("a ; b", {"attributes": "starts_at int = a.n"}, "42701", "starts_at"),
        ("a ; b", {"attributes": "n int = a.n,"}, "42601", "between two commas"),
        ("a ; b", {"partition_by": "x, y, z"}, "22023", "3 partition keys for 2 leaves"),
        ("a ; b", {"partition_by": "(x, y), z"}, "22023", "several lengths"),
        ("a ; b", {"partition_by": "lower(x)"}, "42601", "syntax error"),
        ("a ; b", {"partition_by": "n", "types": TYPES}, "42804", "keys of several types: integer and bigint"),
        ("a ; b", {"partition_by": "symbol", "types": TYPES}, "42703", "b has no attribute symbol"),
        ("a ; z", {"partition_by": "n", "types": TYPES}, "42704", "event type z does not exist"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(
    expression: str, arguments: dict[str, Any], sqlstate: str, message: str
) -> None:
    with pytest.raises(SqlTextError, match=message) as caught:
        define("x", expression, **arguments)
    assert caught.value.sqlstate == sqlstate
    assert caught.value.hint


@pytest.mark.parametrize(
    "expression", ["A(a, b, c)", "P*(a, '1 s', c)", "not(b)[a, c]", "a or b", "not(b)[a, + '1 s']"]
)
def test_what_a_closing_event_bounds_needs_no_limit(expression: str) -> None:
    define("x", expression, context="continuous")


def test_a_composite_event_cannot_be_made_of_itself() -> None:
    known = {"b": parse_expression("c or d"), "d": parse_expression("a ; e")}
    assert find_cycle("a", parse_expression("b ; f"), known) == ["a", "b", "d", "a"]
    assert find_cycle("a", parse_expression("a ; f"), known) == ["a", "a"]
    assert find_cycle("z", parse_expression("b ; f"), known) is None
