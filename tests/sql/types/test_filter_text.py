"""Filters taken apart mean to PostgreSQL what they meant before."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3] / "sql" / "python"))
tokenize = importlib.import_module("lexer").tokenize
SqlTextError = importlib.import_module("lexer").SqlTextError
parse_filter = importlib.import_module("filter_text").parse_filter

ATTRIBUTES = ["symbol", "price", "qty", "ok", "Odd Name", "between"]
SETUP = """
create temp table security (symbol text, price numeric, qty integer, ok boolean, "Odd Name" integer, "between" integer);
insert into security
select symbol, price, qty, ok, odd, qty - odd
from (values ('a'), ('b'), ('a%'), ('it''s'), ('\\'), (null)) as s (symbol),
    (values (-1.5), (0), (2), (null)) as p (price),
    (values (-2), (0), (1), (3), (null)) as q (qty),
    (values (true), (false), (null)) as o (ok),
    (values (1), (null)) as n (odd);
create temp table portfolio (symbol text, owner integer, qty integer);
insert into portfolio values ('a', 1, 1), ('a', 1, 2), ('b', 2, null), (null, 1, 3), ('\\', 3, 0);
analyze security, portfolio
"""


@pytest.fixture
def market(admin: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A connection that sees events of a type and a table of the subscriber's."""
    for statement in SETUP.split(";"):
        run(admin, statement)
    yield admin
    run(admin, "drop table if exists security, portfolio")


def run(connection: psycopg.Connection, statement: str) -> psycopg.Cursor[Any]:
    return connection.execute(statement)


def matches(connection: psycopg.Connection, condition: str) -> list[Any]:
    """Return the events for which a condition holds."""
    return run(connection, f"select ctid::text from security where ({condition}\n) order by 1").fetchall()


def filled(result: dict[str, Any]) -> str:
    """Return a shape with its constants put in again."""
    return re.sub(r"\$(\d+)", lambda match: result["parameters"][int(match[1]) - 1]["literal"], result["shape"])


# Filters, as lists of words; those on one line of a strategy have the same type.

GAPS = st.sampled_from([" ", "  ", "\n", "\t", " /* a comment */ ", " -- it's\n", "/**/ "])
NUMBERS = st.sampled_from([*"0 1 2 3 -1 -2 1.5 -1.5 2. .5 1e0".split(), "- 1", "-  2", "+ 1"]).map(str.split)
STRINGS = st.sampled_from(
    ["'a'", "'b'", "$$a$$", "E'it\\'s'", r"'\'", r"E'\\'", "U&'\\0061'", "'a%'", "'%'", "''"]
).map(lambda string: [string])
QUOTED_NAMES = ['"qty"', 'Security."qty"', '"Odd Name"', 'security."Odd Name"', '"between"']
PLAIN_NAMES = "price PRICE qty security.price security.between between".split()
NUMERIC_NAMES = st.sampled_from(QUOTED_NAMES + PLAIN_NAMES).map(lambda name: [name])
TEXT_NAMES = st.sampled_from(["symbol", "Symbol", '"symbol"', "security.symbol"]).map(lambda name: [name])
TEXTS = TEXT_NAMES | STRINGS | TEXT_NAMES.map(lambda name: ["lower", "(", *name, ")"])
COMPARISONS = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]).map(lambda operator: [operator])


def joined(*parts: Any) -> Any:
    """Return a strategy of word lists that are made of several."""
    return st.tuples(*parts).map(lambda lists: [word for words in lists for word in words])


def words(text: str) -> Any:
    return st.just(text.split())


NUMERICS = st.recursive(
    NUMERIC_NAMES | NUMBERS,
    lambda inner: (
        joined(words("("), inner, st.sampled_from([["+"], ["-"], ["*"]]), inner, words(")"))
        | joined(words("( -"), inner, words(")"))
        | joined(words("coalesce ("), inner, words(","), inner, words(")"))
        | joined(words("("), inner, words(") :: numeric ( 10 , 2 )"))
    ),
    max_leaves=4,
)
SUB_SELECTS = st.sampled_from(
    [
        "select symbol from portfolio where owner = 1",
        "select p . symbol as s from portfolio p where p . owner = 2 or p . qty > 1",
        "select distinct symbol from portfolio where owner between 1 and 2",
        "select symbol from portfolio where portfolio . qty = security . qty",
        "select symbol from portfolio",
        "select symbol from portfolio order by owner limit 2",
        "select max ( symbol ) from portfolio where owner = 1",
        "select symbol from portfolio where owner in ( select 1 )",
        "select symbol end from portfolio where ok and owner = 1",
        "values ( 'a' ) , ( null )",
    ]
).map(str.split)
LEAVES = (
    joined(NUMERICS, COMPARISONS, NUMERICS)
    | joined(NUMBERS, COMPARISONS, NUMERIC_NAMES)
    | joined(TEXTS, COMPARISONS, TEXTS)
    | joined(NUMERICS, words("between"), NUMERICS, words("and"), NUMERICS)
    | joined(NUMERIC_NAMES, words("between"), NUMBERS, words("and"), NUMBERS)
    | joined(NUMERICS, words("not between symmetric"), NUMERICS, words("and"), NUMERICS)
    | joined(TEXTS, st.sampled_from(["like", "not like", "ilike", "~~", "~"]).map(str.split), st.just(["'a%'"]))
    | joined(TEXTS, st.sampled_from(["in (", "not in ("]).map(str.split), STRINGS, words(","), STRINGS, words(")"))
    | joined(TEXT_NAMES, st.sampled_from(["in (", "in (", "not in ("]).map(str.split), SUB_SELECTS, words(")"))
    | joined(NUMERICS, st.sampled_from(["is null", "is not null", "isnull", "notnull"]).map(str.split))
    | joined(NUMERICS, st.sampled_from(["is distinct from", "is not distinct from"]).map(str.split), NUMERICS)
    | joined(NUMERIC_NAMES, COMPARISONS, st.sampled_from(["numeric '1.5'", "'1' :: numeric"]).map(str.split))
    | st.sampled_from(["ok", "security . ok", "true", "null :: boolean", "ok is not true", "ok = false"]).map(str.split)
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: (
        joined(inner, words("and"), inner)
        | joined(words("("), inner, words(")"))
        | joined(words("("), inner, words("or"), inner, words(")"))
        | joined(inner, words("or"), inner)
        | joined(words("not ("), inner, words(")"))
        | joined(words("case when"), inner, words("then"), inner, words("else"), inner, words("end"))
    ),
    max_leaves=6,
)


@st.composite
def written(draw: st.DrawFn, filters: Any = FILTERS) -> str:
    """Draw a filter with gaps between its words."""
    return "".join(word + draw(GAPS) for word in draw(filters))


@given(condition=written())
def test_a_shape_with_its_constants_selects_what_the_filter_selects(market: psycopg.Connection, condition: str) -> None:
    result = parse_filter(condition, "security", ATTRIBUTES)
    expected = matches(market, condition)
    assert matches(market, result["text"]) == expected
    assert matches(market, filled(result)) == expected
    assert parse_filter(result["text"], "security", ATTRIBUTES) == result


@given(condition=written(FILTERS), others=st.lists(GAPS, min_size=80, max_size=80), upper=st.booleans())
def test_formatting_makes_no_difference(condition: str, others: list[str], upper: bool) -> None:
    again = "".join(
        (word.text.upper() if upper and word.kind == "ident" else word.text) + others[i % len(others)]
        for i, word in enumerate(tokenize(condition))
    )
    first, second = (parse_filter(text, "security", ATTRIBUTES) for text in (condition, again))
    assert first == second


@given(conditions=st.lists(LEAVES, min_size=2, max_size=4), data=st.data())
def test_order_makes_no_difference_to_conditions_that_cannot_fail(
    conditions: list[list[str]], data: st.DataObject
) -> None:
    harmless = [c for c in conditions if not {"lower", "coalesce", "select", "+", "-", "*", "~", "::"} & set(c)]
    texts = [" and ".join(" ".join(c) for c in order) for order in (harmless, data.draw(st.permutations(harmless)))]
    if harmless:
        first, second = (parse_filter(text, "security", ATTRIBUTES) for text in texts)
        assert first["shape"] == second["shape"]
        assert sorted(p["value"] for p in first["parameters"]) == sorted(p["value"] for p in second["parameters"])


@given(condition=written(FILTERS.filter(lambda words: "select" not in words and "values" not in words)))
def test_safe_filters_need_nothing_but_the_event(market: psycopg.Connection, condition: str) -> None:
    result = parse_filter(condition, "security", ATTRIBUTES)
    assert result["safe"] == ("~" not in condition.replace("~~", ""))
    if result["safe"]:
        run(market, "set search_path = pg_catalog")
        rows = "(select ctid, * from pg_temp.security)"
        found = run(market, f"select ctid::text from {rows} as security where ({filled(result)}) order by 1").fetchall()
        run(market, "reset search_path")
        assert found == matches(market, condition)


# Hostile text

FRAGMENTS = st.sampled_from(
    [
        *r"""' '' " "" \ \' E' e'\ U&' u&" N' B' X' $$ $a$ $ a$ -- /* */ ( ) [ ] ; , . .. : :: := => ?""".split(),
        *"+ - * / < > = ~ ! @ # % ^ & | ` 1 1. .5 1e 0x1 1_0 'a' \u00e9".split(),
        *"a true or and not select case end union as uescape is null row array[ true)or(true 1])or([1".split(),
        *["1); drop table security; --", "\n", "\r", "\f", "\v", "\0", " ", "\u00a0", "\u2028", "\ufeff"],
    ]
)
HOSTILE = st.lists(FRAGMENTS, max_size=12).map("".join) | st.lists(FRAGMENTS, max_size=8).map(" ".join)


def error_of(connection: psycopg.Connection, query: str) -> str | None:
    """Return the SQLSTATE that a query is refused with; it runs in the extended protocol, one statement at a time."""
    try:
        connection.execute("explain " + query.replace("%", "%%"), [])
    except psycopg.Error as error:
        return "two statements" if "multiple commands" in str(error) else error.sqlstate
    return None


@given(condition=HOSTILE)
def test_an_accepted_filter_does_not_leave_its_parentheses(market: psycopg.Connection, condition: str) -> None:
    try:
        result = parse_filter(condition, "security", ATTRIBUTES)
    except SqlTextError:
        return
    for text in (condition, result["text"]):
        # What is one expression in parentheses is one in brackets, too; what leaves the one cannot leave the other.
        errors = [
            error_of(market, f"select {a}{text}\n{b}") for a, b in (("(", ")"), ("(array[", "])[1]"), ("((", "))"))
        ]
        assert len({error == "42601" for error in errors}) == 1
        assert "two statements" not in errors
    if error_of(market, f"select 1 from security where ({result['text']})") == "42601":
        assert error_of(market, f"select 1 from security where ({condition}\n)") == "42601"


STRING_PARTS = st.sampled_from(
    [
        *r"""' '' \ \' \\ \n \x41 \101 \u0061 \0061 \+000061 !0061 a $ $$ $a$ " \uD83D \uDE00 /* */""".split(),
        *["uescape'!'", "\n", "\n'", "--\n'", "' -- x\n  '", " uescape '!'", " ", "\u00e9"],
    ]
)
QUOTED = st.tuples(st.sampled_from(["'", "E'", "U&'", "$$", "$a$"]), st.lists(STRING_PARTS, max_size=8)).map(
    lambda parts: parts[0] + "".join(parts[1]) + parts[0].lstrip("EU&")
)


@given(source=QUOTED)
def test_strings_are_read_as_postgresql_reads_them(market: psycopg.Connection, source: str) -> None:
    try:
        found = tokenize(source)
    except SqlTextError:
        assert error_of(market, f"select {source}") is not None
        return
    if len(found) == 1:
        assert market.execute(f"select {source}".replace("%", "%%"), []).fetchone() == (found[0].value,)
    elif error_of(market, f"select {source}") is None:
        assert [token.kind for token in found[:-1]] == ["string", "ident"][: len(found) - 1]


@given(signs=st.text(alphabet="+-*/<>=~!@#%^&|`?", min_size=1, max_size=6))
def test_operators_are_cut_as_postgresql_cuts_them(market: psycopg.Connection, signs: str) -> None:
    source = f"x {signs} 2"
    try:
        operators = [token.text for token in tokenize(source)[1:] if token.kind == "operator"]
    except SqlTextError:
        operators = []
    message = ""
    try:
        market.execute(f"select {source}\n from (select '(1,1)'::point) as p (x)")
    except psycopg.Error as error:
        message = str(error)
    named = re.search(r"operator does not exist: (?:point )?(\S+)", message)
    assert not named or named[1].replace("<>", "!=") in [operator.replace("<>", "!=") for operator in operators]


# In the database


def test_the_function_returns_the_parts_as_jsonb(admin: psycopg.Connection) -> None:
    query = "select pgps.parse_filter(%s, 'security', %s)"
    condition = "symbol = 'a' and qty in (select qty from portfolio where owner = 7)"
    assert admin.execute(query, [condition, ATTRIBUTES]).fetchone() == (
        parse_filter(condition, "security", ATTRIBUTES),
    )
    assert admin.execute(query, [None, ATTRIBUTES]).fetchone() == (None,)


def test_the_function_for_statements_returns_the_parts_as_jsonb(admin: psycopg.Connection) -> None:
    query = "select pgps.parse_statement(%s)"
    assert admin.execute(query, ["ADVERTISE T;"]).fetchone() == ({"verb": "advertise", "name": "t"},)
    assert admin.execute(query, ["select 1"]).fetchone() == ({"verb": None},)
    assert admin.execute(query, [None]).fetchone() == (None,)
    with pytest.raises(psycopg.errors.SyntaxError, match="at the end of the statement") as raised:
        admin.execute(query, ["ADVERTISE"])
    assert raised.value.diag.message_hint == "Syntax: ADVERTISE t"


@pytest.mark.parametrize(
    ("condition", "sqlstate", "message"),
    [("price > 1) or (true", "42601", 'unbalanced ")" in the filter'), (" ", "22023", "the filter is empty")],
)
def test_the_function_raises_errors_with_detail_and_hint(
    admin: psycopg.Connection, condition: str, sqlstate: str, message: str
) -> None:
    with pytest.raises(psycopg.Error) as raised:
        admin.execute("select pgps.parse_filter(%s, 'security', '{price}')", [condition])
    diagnosis = raised.value.diag
    assert diagnosis.sqlstate == sqlstate
    assert diagnosis.message_primary == message
    assert re.fullmatch(r"At character \d+ of the text\.", diagnosis.message_detail or "")
    assert diagnosis.message_hint
