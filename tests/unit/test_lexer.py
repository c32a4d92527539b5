"""The tokens of SQL text."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.filters import SqlTextError, tokenize


def tokens(text: str) -> list[tuple[str, str]]:
    return [(token.kind, token.value) for token in tokenize(text)]


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


def test_only_ascii_letters_spell_uescape() -> None:
    spelled = "ue\u017fcape"  # its long s is an s to whoever ignores case as Unicode has it
    assert tokens(f"U&'a' {spelled} '!'") == [("string", "a"), ("ident", spelled), ("string", "!")]


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
