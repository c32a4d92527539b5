"""Filters taken apart: the normal form, the shape, what is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.filters import SqlTextError, parse, parse_filter, shape, tokenize


def literals(text: str) -> list[str]:
    return [parameter["literal"] for parameter in parse(text)["parameters"]]


# The normal form


@pytest.mark.parametrize(
    "source",
    [
        "price > 5 and symbol = 'A'",
        "PRICE>5 AND \"symbol\"='A'",
        "((price > 5 and symbol = $$A$$))",
        "price /* the */ > -- price\n 5 and symbol = E'A'",
    ],
)
def test_formatting_vanishes(source: str) -> None:
    assert parse(source)["text"] == "price > 5 and symbol = 'A'"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('"Odd" = 1', '"Odd" = 1'),
        ("(symbol, price) in (('a', 1))", "(symbol, price) in (('a', 1))"),
        ("(select true)", "(select true)"),
        ("((values (true)) limit 1)", "((values (true)) limit 1)"),
        (r"note = 'a\b'", r"note = E'a\\b'"),
        ("note = 'a'\n'b'", "note = 'ab'"),
        ("qty = - 5", "qty = -5"),
        ("qty = - 5::int2", "qty = - 5::int2"),
        ("qty - 5 = 0", "qty - 5 = 0"),
        ("security . price>0x10", "security.price > 16"),
        ("f ( a,b ) [ 1 ]", "f(a, b)[1]"),
        ("x in (1,2) and case when a then b end", "x in (1, 2) and case when a then b end"),
        ("B'1' = b'01'", "b'1' = b'01'"),
    ],
)
def test_normal_form_means_the_same(source: str, text: str) -> None:
    assert parse(source)["text"] == text


# The shape


def test_constants_become_parameters() -> None:
    result = parse("symbol = 'A''B' and price > -1.50")
    assert result["shape"] == '"security"."price" > $1 and "security"."symbol" = $2'
    assert result["parameters"] == [
        {"literal": "-1.50", "value": "-1.50", "kind": "decimal"},
        {"literal": "'A''B'", "value": "A'B", "kind": "string"},
    ]
    assert result["keys"] == [
        {"attribute": "price", "operator": ">", "parameter": 1},
        {"attribute": "symbol", "operator": "=", "parameter": 2},
    ]


def test_quotes_in_names_are_doubled() -> None:
    assert parse_filter('"a""b" = 1', 'x"y', ['a"b'])["shape"] == '"x""y"."a""b" = $1'


def test_a_dollar_before_a_digit_is_a_parameter() -> None:
    source = r"""a = '$5' and "b$1\" = any(array['$1\', '$$2', $$it's $3$$])"""
    result = parse_filter(source, "t$1", ["a"])
    assert re.findall(r"\$[0-9]", result["text"] + result["shape"]) == ["$1"]
    assert [t.value for t in tokenize(result["text"]) if t.kind in ("string", "quoted")] == [
        *["$5", "b$1\\", "$1\\", "$$2", "it's $3"],
    ]
    assert parse_filter("a = '$5'", "t$1", ["a"])["shape"] == r'U&"t\00241"."a" = $1'


def test_integers_beyond_bigint_are_decimals() -> None:
    kinds = [
        parameter["kind"] for parameter in parse("qty in (9223372036854775807, 9223372036854775808)")["parameters"]
    ]
    assert kinds == ["integer", "decimal"]


@pytest.mark.parametrize(
    "source",
    [
        "price > 1 and symbol = 'A' and ok",
        "ok and symbol = 'B' and 2 < price",
        "(ok and price > 3) and (('C' = symbol))",
    ],
)
def test_order_of_conditions_does_not_matter(source: str) -> None:
    assert shape(source) == '"ok" and "price" > $1 and "symbol" = $2'


def test_conditions_that_may_fail_stay_in_order_behind_the_others() -> None:
    assert (
        shape("1 / qty > 2 and 1 / price > 3 and qty <> 0") == '"qty" <> $1 and $2 / "qty" > $3 and $4 / "price" > $5'
    )


def test_equal_conditions_keep_their_order() -> None:
    assert literals("qty > 2 and qty > 1 and price > 0") == ["0", "2", "1"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("price between 1 and 2", '"price" <= $1 and "price" >= $2'),
        ("price between 1 and qty", '"price" between $1 and "qty"'),
        ("price not between 1 and 2", '"price" not between $1 and $2'),
        ("not price between 1 and 2", 'not "price" between $1 and $2'),
        ("price between symmetric 1 and 2", '"price" between symmetric $1 and $2'),
        ("price between 1 and 2 is true and ok", '"ok" and "price" between $1 and $2 is true'),
        ("price between 1 and case when ok and qty > 2 then 3 end", None),
        ("ok or price = 1 and qty = 2", '"ok" or "price" = $1 and "qty" = $2'),
        ("(ok or price = 1) and qty = 2", '("ok" or "price" = $1) and "qty" = $2'),
        ("not ok and qty = 2", '"qty" = $1 and not "ok"'),
        ("5 <> qty", '"qty" <> $1'),
        ("5 >= qty", '"qty" <= $1'),
        ("5 = qty is true", '$1 = "qty" is true'),
        ("qty -5 > -qty", '"qty" - $1 > - "qty"'),
        ("case when ok and qty = 1 then true end", 'case when "ok" and "qty" = $1 then true end'),
    ],
)
def test_conditions_are_normalised(source: str, expected: str | None) -> None:
    if expected is not None:
        assert shape(source) == expected
    assert shape(parse(source)["text"]) == shape(source)


@pytest.mark.parametrize(
    ("source", "inline"),
    [
        ("at > date '2020-01-01'", ["date '2020-01-01'"]),
        ("at > timestamp with time zone '2020-01-01'", ["timestamp with time zone '2020-01-01'"]),
        ("at > now() - interval '1 day'", ["interval '1 day'"]),
        ("price = numeric(10,2) '1.5'", ["numeric(10, 2) '1.5'"]),
        ("price::numeric(10,2) = 1", ["::numeric(10, 2)"]),
        ("cast(price as numeric(10,2)) = 1", ["as numeric(10, 2)"]),
        ("tags[1] = 'a'", ["tags[1]"]),
        ("symbol = any(array['a', 'b'])", ["array['a', 'b']"]),
        ("extract('year' from at) > 2000", ["'year'"]),
        ("note like 'a!%' escape '!'", ["escape '!'"]),
        ("at at time zone 'utc' > now()", ["zone 'utc'"]),
        ("qty > (select 5 from t)", ["select 5 from t"]),
        ("qty > ((select 5) union select 6)", ["select 5", "select 6"]),
        ("qty in (values (1), (2))", ["(1), (2)"]),
        ("symbol = nchar 'a'", ["nchar 'a'"]),
        ("symbol = mytype 'a' and b'1' = b'1'", ["mytype 'a'", "b'1' = b'1'"]),
        ("current_time(3) > '1:00'", ["current_time(3)"]),
    ],
)
def test_constants_that_belong_to_something_stay(source: str, inline: list[str]) -> None:
    for part in inline:
        assert part in shape(source)


def test_equal_shapes_mean_equal_but_for_constants() -> None:
    assert shape("note like 'a%'") == shape("note LIKE $$b%$$")
    assert shape("qty + 1 > 2") != shape("qty - 1 > 2")
    assert shape("symbol in ('a', 'b')") != shape("symbol in ('a', 'b', 'c')")


# What is refused


@pytest.mark.parametrize(
    ("source", "position", "message"),
    [
        ("price > 1; drop table t", 10, '";"'),
        ("price > 1) or (true", 10, '")"'),
        ("(price > 1", 1, '"("'),
        ("price > 1]", 10, '"]"'),
        ("(price > 1]", 11, '"]"'),
        ("symbol = 'a", 10, "'a"),
        ("price > 1 /* ", 11, "/*"),
        ("symbol = $x$a$y$", 10, "$x$"),
        ("price > $1", 9, '"$1"'),
        ("price > :limit", 9, '":"'),
        ("price > 1, qty > 2", 10, '","'),
        ("select price > 1", 1, '"select"'),
        ("values (true)", 1, '"values"'),
        ("with a as (select 1) select true", 1, '"with"'),
        ("where price > 1", 1, '"where"'),
        ("(select true) union select true", 15, '"union"'),
        ("price > 1 order by 1", 11, '"order"'),
        ("price > {1}", 9, '"{"'),
        ("price > 1..2", 10, '".."'),
        ("price > 1\\", 10, "\\"),
    ],
)
def test_errors_say_what_and_where(source: str, position: int, message: str) -> None:
    with pytest.raises(SqlTextError) as raised:
        parse(source)
    assert raised.value.sqlstate == "42601"
    assert raised.value.position == position
    assert message in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize("source", ["", "  \n", "-- nothing", "/* nothing */"])
def test_an_empty_filter_is_a_bad_argument(source: str) -> None:
    with pytest.raises(SqlTextError, match="empty") as raised:
        parse(source)
    assert raised.value.sqlstate == "22023"


@pytest.mark.parametrize(
    "source",
    [
        "ok and " * 20_000 + "ok",
        "(" * 101 + "ok" + ")" * 101,
        "case when " * 101 + "ok",
        "end " * 300 + "(" * 300 + ")" * 300,
    ],
)
def test_limits(source: str) -> None:
    with pytest.raises(SqlTextError) as raised:
        parse(source)
    assert raised.value.sqlstate == "54000"


def test_a_long_filter_within_the_limits_is_taken() -> None:
    assert len(parse(" and ".join(f"qty <> {i}" for i in range(6000)))["parameters"]) == 6000


WORDS = st.sampled_from(
    "price symbol and or not in between like is null true case when then end select from where exists as distinct"
    " date cast ( ) [ ] , ; . :: := : + - * / = <> <= || ~ ' '' E' U&' \" $$ $a$ $1 -- /* */ \n \\ 1 1.5 'a' e f( {"
    " values union with time zone security security. array[ row( any( limit left( position( interval"
    .split(" ")
)  # fmt: skip


@given(st.lists(WORDS, max_size=25).map(" ".join) | st.lists(WORDS, max_size=15).map("".join))
def test_a_filter_taken_apart_is_whole_or_refused(source: str) -> None:
    try:
        result = parse(source)
    except SqlTextError:
        return
    for written in (result["text"], result["shape"]):
        depth = 0
        for token in tokenize(written):
            depth += token.symbol("(", "[") - token.symbol(")", "]")
            assert depth >= 0
            assert not token.symbol(";")
        assert depth == 0
    again = parse(result["text"])
    assert again == result


# The event as a whole


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("e is not null", "(e.a is distinct from null and e.b is distinct from null)"),
        ('not "e" is null', "not (e.a is not distinct from null and e.b is not distinct from null)"),
        ("e.* notnull or a = 1", "(e.a is distinct from null and e.b is distinct from null) or a = 1"),
        ("f(e, a)", "f(row(e.a, e.b, e._producer, e._producer_seq)::pgps_event.e, a)"),
        ("e.a is not null", "e.a is not null"),
        ("x.e = 1 and a::e = b and e(a) and e 'x'", "x.e = 1 and a::e = b and e(a) and e 'x'"),
        ("a in (select e from e) and e is null", "a in (select e from e) and e is null"),
    ],
)
def test_the_name_of_the_type_stands_for_its_attributes(source: str, text: str) -> None:
    written = str(parse_filter(source, "e", ["a", "b"])["text"]).removeprefix("(").removesuffix(")")
    assert written == text.removeprefix("(").removesuffix(")")


def test_an_attribute_of_the_types_name_is_the_attribute() -> None:
    assert parse_filter("e is not null", "e", ["e", "b"])["text"] == "e is not null"
