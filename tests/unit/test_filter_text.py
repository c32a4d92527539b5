"""Filters taken apart: the tokens, the normal form, the shape, what is safe."""

import importlib
import re
import string
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "sql" / "python"))
tokenize = importlib.import_module("lexer").tokenize
SqlTextError = importlib.import_module("lexer").SqlTextError
parse_filter = importlib.import_module("filter_text").parse_filter

ATTRIBUTES = ["symbol", "price", "qty", "at", "note", "ok", "Odd", "and", "date"]


def parse(text: str, type_name: str = "security") -> dict[str, Any]:
    result: dict[str, Any] = parse_filter(text, type_name, ATTRIBUTES)
    return result


def shape(text: str) -> str:
    return str(parse(text)["shape"]).replace('"security".', "")


def literals(text: str) -> list[str]:
    return [parameter["literal"] for parameter in parse(text)["parameters"]]


def tokens(text: str) -> list[tuple[str, str]]:
    return [(token.kind, token.value) for token in tokenize(text)]


# Tokens


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("'it''s'", "it's"),
        (r"'a\b'", r"a\b"),
        (r"E'a\\b\'c\n\x41\101\u00e9\U0001F600'", "a\\b'c\nAA\u00e9\U0001f600"),
        (r"E'\uD83D\uDE00'", "\U0001f600"),
        (r"E'\xc3\xa9'", "\u00e9"),
        (r"U&'d\0061t\+000061\\'", "data\\"),
        ("U&'d!0061t!!' /* by */ UESCAPE '!'", "dat!"),
        ("$$it's$$", "it's"),
        ("$a$ $$ $b$ $a$", " $$ $b$ "),
        ("'con'\n'tin'  -- and so on\n\t 'ued'", "continued"),
        ("E'a\\n'\n'b\\n'", "a\nb\n"),
        ("''", ""),
    ],
)
def test_strings_are_decoded(source: str, value: str) -> None:
    assert tokens(source) == [("string", value)]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("Price", "price"),
        ('"Price"', "Price"),
        ('"a""b"', 'a"b'),
        (r'U&"\0061"', "a"),
        ("\u00c4\u00d6x$1", "\u00c4\u00d6x$1"),
    ],
)
def test_names_are_folded_by_ascii_rules_unless_quoted(source: str, value: str) -> None:
    assert [token.value for token in tokenize(source)] == [value]


def test_names_are_cut_at_63_bytes_between_characters() -> None:
    assert tokenize("a" * 70)[0].value == "a" * 63
    assert tokenize('"' + "\u00e9" * 40 + '"')[0].value == "\u00e9" * 31


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1", "1"),
        ("1.5", "1.5"),
        (".5", ".5"),
        ("5.", "5."),
        ("1E10", "1e10"),
        ("1.e-3", "1.e-3"),
        ("0x1F", "31"),
        ("0o17", "15"),
        ("0b101", "5"),
        ("1_000", "1000"),
        ("1_0.2_5e1_0", "10.25e10"),
    ],
)
def test_numbers_lose_their_decoration(source: str, value: str) -> None:
    assert [token.value for token in tokenize(source)] == [value]


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("a>=-1", ["a", ">=", "-", "1"]),
        ("a<>-1", ["a", "<>", "-", "1"]),
        ("a@-1", ["a", "@-", "1"]),
        ("a*-+1", ["a", "*", "-", "+", "1"]),
        ("a~-1", ["a", "~-", "1"]),
        ("a+/*c*/1", ["a", "+", "1"]),
        ("a+--c\n1", ["a", "+", "1"]),
        ("a!=b", ["a", "<>", "b"]),
        ("a::int:=b=>c", ["a", "::", "int", ":=", "b", "=>", "c"]),
        ("1..2", ["1", "..", "2"]),
        ("a.b.5", ["a", ".", "b", ".5"]),
        ("/* /* ' */ */ a -- '", ["a"]),
        ("n'x'", ["nchar", "x"]),
        ("a$b$c", ["a$b$c"]),
    ],
)
def test_operators_and_comments_end_where_postgresql_ends_them(source: str, values: list[str]) -> None:
    assert [token.value for token in tokenize(source)] == values


@pytest.mark.parametrize(
    "source",
    [
        "'a",
        "E'a\\'",
        "b'12'",
        "x'fg'",
        '"a',
        "$$a",
        "$a$ $$",
        "/* /* */",
        "1a",
        "1.5x",
        "0x",
        "1e",
        "1_",
        '""',
        "$1a",
        "$",
        "{a}\\",
        r"E'\u12'",
        r"E'\uD800'",
        r"E'\uDC00'",
        r"E'\xff'",
        r"E'\0'",
        r"U&'\12'",
        "U&'a' uescape 'ab'",
        "U&'a' uescape",
        "a\x00",
        "a\ud800",
        "a \x0b b",
        "@" * 64,
        "0x" + "1" * 2000,
    ],
)
def test_what_is_no_sql_token_is_refused(source: str) -> None:
    with pytest.raises(SqlTextError):
        tokenize(source)


@given(st.text(alphabet=string.printable + "\u00e9\u2028", max_size=40))
def test_tokens_cover_the_text_in_order(source: str) -> None:
    try:
        found = tokenize(source)
    except SqlTextError:
        return
    end = 0
    for token in found:
        assert token.position - 1 >= end
        assert source[token.position - 1 : token.end] == token.text
        end = token.end


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


# IN (SELECT ..)


def test_in_select_becomes_exists_with_parameters() -> None:
    result = parse("symbol IN (SELECT symbol FROM portfolios WHERE portfolio_id = 7)")
    assert result["in_select"]
    assert result["shape"] == (
        'exists (select 1 from portfolios where portfolio_id = $1 and (symbol) = "security"."symbol")'
    )
    assert [parameter["value"] for parameter in result["parameters"]] == ["7"]
    assert not result["safe"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("symbol in (select p.symbol as s from portfolios p)", "from portfolios p where (p.symbol) ="),
        ("symbol in (select distinct symbol from p where a = 1 or b = 2)", "where (a = $1 or b = $2) and (symbol) ="),
        ("security.symbol in (select symbol from p, q)", "from p, q where (symbol) ="),
        ("symbol in (select s from p where k in (select 3))", "where k in (select 3) and (s) ="),
        ("symbol in (select s from p where a is distinct from 4)", "where a is distinct from $1 and (s) ="),
    ],
)
def test_simple_sub_selects_are_rewritten(source: str, expected: str) -> None:
    assert parse(source)["in_select"]
    assert expected in parse(source)["shape"]


@pytest.mark.parametrize(
    "source",
    [
        "symbol not in (select s from p where k = 7)",
        "not symbol in (select s from p where k = 7)",
        "symbol in (select s from p where k = 7) or ok",
        "symbol in (select s from p where k = 7) is not false",
        "symbol || 'x' in (select s from p where k = 7)",
        "symbol in (select s from p limit 7)",
        "symbol in (select s from p group by s having count(*) > 7)",
        "symbol in (select s from p union select 'x')",
        "symbol in (select s from p order by s fetch first 7 rows only)",
        "symbol in (select s from p where k = 7 for update)",
        "symbol in (select max(s) from p where k = 7)",
        "symbol in (select lower(s) from p where k = 7)",
        "symbol in (select distinct on (k) s from p where k = 7)",
        "symbol in (select s from security where k = 7)",
        "symbol in (select s from p as Security where k = 7)",
        "symbol in (select s from (select 1) security (s) where k = 7)",
        "symbol in (select * from p where k = 7)",
        "symbol in (with q as (select 7) select s from q)",
        "symbol in (values ('a'))",
        "symbol in (select 'a')",
        "symbol in ((select s from p where k = 7))",
        "other in (select s from p where k = 7)",
    ],
)
def test_other_sub_selects_stay_with_their_constants(source: str) -> None:
    result = parse(source)
    assert not result["in_select"]
    assert "7" not in [parameter["value"] for parameter in result["parameters"]]


# Safe or not


@pytest.mark.parametrize(
    "source",
    [
        "symbol = 'A' and (price > 5 or not ok) and qty is not null",
        'security.price * 2 <= qty % 3 and security."Odd" + -1 <> 0 and security.and is distinct from 3',
        "symbol like 'a%' and note not ilike '%b' and symbol ~~ 'c' and symbol || 'x' <> note",
        "symbol in ('a', 'b') and qty not in (1, -2, null) and price between 1 and 2 and qty not between 3 and 4",
        "case when ok then 1 else 2 end = 1 and case qty when 1 then true end and coalesce(ok, true, 1 = 2)",
        "nullif(qty, 0) = greatest(1, least(2, qty)) and lower(symbol) = left(note, 2)",
        "position('a' in lower(symbol)) > 1 and substring(note, 2, 3) = btrim(note)",
        "price::numeric(10,2) = cast(qty as double precision) and at::timestamp with time zone > date '2020-01-01'",
        "at > timestamp(3) without time zone '2020-01-01' and date = date '2020-01-01' and date > '2020-01-01'",
        "ok is true and ok is not unknown and qty isnull or note notnull",
        "ok",
    ],
)
def test_filters_over_the_event_alone_are_safe(source: str) -> None:
    result = parse(source)
    assert result["safe"]
    assert all(name in ATTRIBUTES for name in result["attributes"])


@pytest.mark.parametrize(
    "source",
    [
        "exists (select 1)",
        "(select true)",
        "pg_sleep(10) is null",
        "lower(pg_read_file('x')) = 'a'",
        "public.lower(symbol) = 'a'",
        "\"lower\"(symbol) = 'a'",
        "symbol ~ '^(a+)+$'",
        "symbol similar to 'a'",
        "symbol operator(public.=) 'a'",
        "tags[1] = 1",
        "array[1] = null",
        "(symbol, price) = ('a', 1)",
        "row(1) = row(1)",
        "current_user = 'a'",
        "user = 'a'",
        "other = 1",
        "other.price = 1",
        "security = null",
        "ctid is null",
        "price.lower = 1",
        "symbol like 'a' escape 'b'",
        "symbol collate \"C\" = 'a'",
        "price::regclass = 1",
        "price::int[] = null",
        "price::mytype = null",
        "repeat(symbol, 100) = 'a'",
        "qty ^ 2 = 1",
        "qty = any ('{1,2}')",
        "interval '1' day > at",
        "mytype '1' = price",
        "symbol is document",
        "qty in (select 1)",
        "cast(qty as text) = overlay(note placing 'a' from 1)",
        "b'1' = b'1'",
        "substring(note from 2) = 'a'",
        "qty 1",
        "position(note, 'a') = 1",
    ],
)
def test_whatever_else_is_not_safe(source: str) -> None:
    assert not parse(source)["safe"]


def test_key_words_are_attributes_only_behind_the_type() -> None:
    assert shape("security.and = 1 and security.AND > 2") == '"and" = $1 and "and" > $2'


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("length(note) != 3", {"functions": ["length"], "operators": ["<>"], "attributes": ["note"]}),
        ("note like 'a' or note not in ('b')", {"operators": ["<>", "~~"]}),
        ("price::int = 4", {"types": ["int4"]}),
        ("qty::double precision = 4.0::decimal", {"types": ["float8", "numeric"]}),
        ("now() > at and x.f(price::mytype) ~ 'a'", {"functions": ["f", "now"], "operators": [">", "~"]}),
        ("x.f(price::my.type) and 'a' = other '2'", {"types": ["other", "type"], "attributes": ["price"]}),
        ("exists (select 1 from t where t.price = security.qty)", {"attributes": ["qty"], "functions": []}),
        ("trim(both 'x' from note) = ''", {"functions": ["btrim"], "safe": False}),
        ("cast(at as varchar(3)) = ''", {"functions": [], "types": ["varchar"]}),
    ],
)
def test_names_are_those_of_the_catalogue(source: str, names: dict[str, list[str]]) -> None:
    result = parse(source)
    assert {key: result[key] for key in names} == names


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
