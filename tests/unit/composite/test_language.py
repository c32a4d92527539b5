"""Expressions: every spelling, the normal form, and errors that say where and what to do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composite.parser import parse_expression
from composite.syntax import Expression, leaves, print_expression
from lexer import SqlTextError


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("a", "a"),
        ("A OR b", "a or b"),
        ("a | b ^ c << d", "a or b and c ; d"),
        ("a or b and c ; d", "a or b and c ; d"),
        ("((a or b)) ; c", "(a or b) ; c"),
        ("a ; b ; c", "a ; b ; c"),
        ("a ; (b ; c)", "a ; (b ; c)"),
        ("seq(a, b or c)", "a ; (b or c)"),
        ("a and (b or c)", "a and (b or c)"),
        ("ANY(2, a, b ; c, d)", "any(2, a, b ; c, d)"),
        ("not(b)[a, c]", "not(b)[a, c]"),
        ("NOT ( b ) [ a , + '300 seconds' ]", "not(b)[a, + '5 min']"),
        ("a(x, y, z)", "A(x, y, z)"),
        ("a * (x, y, z)", "A*(x, y, z)"),
        ("p(x, '00:00:10', z)", "P(x, '10 s', z)"),
        ("P*(x, '1.5 s', z)", "P*(x, '1 s 500 ms', z)"),
        ("a + '4 s' ; b", "plus(a, '4 s') ; b"),
        ("plus(a or b, '1 day 1 hour')", "plus(a or b, '1 d 1 h')"),
        ("repeat(a, 3)", "repeat(a, 3)"),
        ("repeat(a, 3, 5)", "repeat(a, 3, 5)"),
        ("repeat(a, 3, 3)", "repeat(a, 3)"),
        ("at('2026-12-24 18:00+01')", "at('2026-12-24 17:00:00+00')"),
        ("every('5 min') ; cron('0 8 * * 1-5')", "every('5 min') ; cron('0 8 * * 1-5')"),
        ("begin_transaction ; a ; commit", "begin_transaction ; a ; commit"),
        ("begin a ; END a x", "begin a ; end a x"),
        ("e2::Rain__client2", "e2@rain__client2"),
        ('quote@"Juice"(price>1.5)q', 'quote@"Juice" (price > 1.5) q'),
        ("a(price > 3 and note = 'it''s')", "a (price > 3 and note = 'it''s')"),
        ("any(price > 3)", '"any" (price > 3)'),  # one argument: a type
        ("repeat(price > 3) x", '"repeat" (price > 3) x'),
        ("plus ; at", '"plus" ; "at"'),
        ("at(price > 3)", '"at" (price > 3)'),
        ("every('5 min')", "every('5 min')"),
        ('"a"(b)', "a (b)"),
        ('"A" ; "or" x', '"A" ; "or" x'),
        ('a "and" ; b', 'a "and" ; b'),
        ("a /* one */ ; -- two\n b", "a ; b"),
        ("a a ; b p", "a a ; b p"),
    ],
)
def test_an_expression_has_one_normal_form(text: str, normal: str) -> None:
    found = parse_expression(text)
    assert print_expression(found) == normal
    assert parse_expression(normal) == found


def test_the_hour_of_a_time_without_an_offset_is_that_of_the_zone() -> None:
    assert parse_expression("at('2026-07-01 12:00')", "Europe/Vienna") == parse_expression("at('2026-07-01 10:00+00')")
    assert parse_expression("cron('0 8 * * *')", "Asia/Tokyo").zone == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("text", "position", "sqlstate", "message"),
    [
        ("", 1, "42601", "at the end"),
        ("a ;", 4, "42601", "at the end"),
        ("a ; ; b", 5, "42601", '";"'),
        ("a b c", 5, "42601", '"c"'),
        ("a , b", 3, "42601", '","'),
        ("(a ; b", 1, "42601", "unclosed"),
        ("a)", 2, "42601", "unbalanced"),
        ("a x ; b x", 9, "42710", "alias x is given twice"),
        ("a x (n > 1)", 5, "42601", r'"\("'),
        ("a or", 5, "42601", "at the end"),
        ("begin ; a", 1, "42601", '"begin"'),
        ("a repeat", 3, "42601", '"repeat"'),
        ("a@ ; b", 4, "42601", '";"'),
        ("a()", 2, "42601", r'"\("'),
        ("a(x, y)", 3, "42601", '"x"'),
        ("a(x; drop table y)", 4, "42601", '";"'),
        ("a(x = $1)", 7, "42601", r'"\$1"'),
        ("not(b)", 7, "42601", "at the end"),
        ("not(b)[a]", 9, "42601", r'"\]"'),
        ("not(b)[a, + 5]", 13, "42601", '"5"'),
        ("any(0, a)", 1, "22023", "any asks for 0 of 1"),
        ("any(3, a, b)", 1, "22023", "any asks for 3 of 2"),
        ("any(a, b)", 5, "42601", '"a"'),
        ("repeat(a, 3, 2)", 1, "22023", "from 3 to 2"),
        ("repeat(a, 0)", 1, "22023", "from 0 to 0"),
        ("plus(a, '1 month')", 9, "22023", "no fixed length"),
        ("plus(a, 'soon')", 9, "22023", '"soon" is no interval'),
        ("a + '0 s'", 5, "22023", "no time at all"),
        ("a + '-1 s'", 5, "22023", "no interval"),
        ("P(a, b, c)", 6, "42601", '"b"'),
        ("every('9999999 days')", 7, "22023", "thousand years"),
        ("at('tomorrow')", 4, "22023", '"tomorrow" is no time'),
        ("cron('61 * * * *')", 6, "22023", '"61" is no minute'),
        ("cron('* * * *')", 6, "22023", "4 fields"),
        ("cron('0 0 30 2 *')", 6, "22023", "never comes"),
        ("a\x00", 2, "42601", "cannot store"),
        ("'a'", 1, "42601", "'a'"),
        ("a || b", 3, "42601", r"\|\|"),
        ("(" * 101 + "a" + ")" * 101, 101, "54000", "deeper"),
        (" ; ".join("a" * 200), None, "54000", "deeper"),
        ("a" * 100_001, 1, "54000", "too long"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_a_hint(
    text: str, position: int | None, sqlstate: str, message: str
) -> None:
    with pytest.raises(SqlTextError, match=message) as caught:
        parse_expression(text)
    assert caught.value.sqlstate == sqlstate
    assert caught.value.position == (position or caught.value.position)
    assert caught.value.hint


def test_who_writes_a_predicate_behind_the_alias_is_told_where_it_belongs() -> None:
    with pytest.raises(SqlTextError) as caught:
        parse_expression('b ; "Rain" x (mm > 1) ; c')
    assert caught.value.hint == 'A predicate stands before the alias: "Rain" (...) x'


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(SqlTextError, match="no time zone"):
        parse_expression("cron('0 8 * * *')", "Nowhere/Land")


WORDS = st.sampled_from(
    "a b x or and ; | ^ << ( ) ( ) [ ] , + * @ :: not any( seq( A( A*( P( P*( plus( repeat( at( every( cron( 2 3"
    " '5 min' '10 s' '2026-12-24 18:00+01' '0 8 * * 1-5' begin end commit begin_transaction \"or\" price > 1.5 =".split(
        " "
    )
)


@given(st.lists(WORDS, max_size=16).map(" ".join) | st.text(max_size=40))
@settings(max_examples=600, deadline=None)
def test_any_text_is_parsed_or_refused_with_a_place_in_it(text: str) -> None:
    found: Expression | SqlTextError
    try:
        found = parse_expression(text)
    except SqlTextError as error:
        found = error
    if isinstance(found, Expression):
        assert parse_expression(print_expression(found)) == found
    else:
        assert 1 <= found.position <= len(text) + 1
        assert found.hint
        assert found.sqlstate in ("42601", "22023", "42710", "54000")


NAMES = st.sampled_from(["a", "quote", "Odd", "or", "every", 'q"q', "été", "select", "p"])
LEAVES = st.builds(
    lambda name, moment, source, predicate: Expression(
        "leaf", type=name, moment=moment, source=source, predicate=predicate
    ),
    NAMES,
    st.sampled_from(["", "begin", "end"]),
    st.just("") | NAMES,
    st.sampled_from(["", "price > 1.5", "symbol = 'IBM' and n in (1, 2)", "f(x, y)", "E'a\\\\b' = note"]),
)
AMOUNTS = st.integers(1, 10**13)
EXPRESSIONS = st.recursive(
    LEAVES
    | AMOUNTS.map(lambda amount: Expression("every", amount=amount))
    | AMOUNTS.map(lambda amount: Expression("at", amount=amount))
    | st.sampled_from([Expression("commit"), Expression("begin_transaction")]),
    lambda part: st.one_of(
        st.builds(lambda op, x, y: Expression(op, (x, y)), st.sampled_from(["or", "and", "seq"]), part, part),
        st.builds(lambda op, x, y, z: Expression(op, (x, y, z)), st.sampled_from(["not", "a", "a*"]), part, part, part),
        st.builds(
            lambda op, x, y, n: Expression(op, (x, y), amount=n),
            st.sampled_from(["p", "p*", "absence"]),
            part,
            part,
            AMOUNTS,
        ),
        st.builds(lambda x, n: Expression("plus", (x,), amount=n), part, AMOUNTS),
        st.builds(lambda x, n: Expression("repeat", (x,), amount=n, upper=n + 1), part, st.integers(1, 9)),
        st.lists(part, min_size=1, max_size=4).map(lambda parts: Expression("any", tuple(parts), amount=1)),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
@settings(max_examples=300, deadline=None)
def test_what_is_printed_is_parsed_to_the_same(expression: Expression) -> None:
    assert parse_expression(print_expression(expression)) == expression


def test_leaves_come_in_the_order_of_the_text() -> None:
    found = leaves(parse_expression("not(b)[a, c] ; P(d, '1 s', e) or any(1, f)"))
    assert [leaf.type for leaf in found] == list("bacdef")
