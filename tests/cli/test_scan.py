"""Where the shell cuts a text into statements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgps.cli.shell.scan import has_words, is_language, split

WHOLE = [
    "select 1",
    "select ';'",
    "select 'it''s; fine'",
    r"select e'it\'s; fine'",
    r"select 'C:\'",
    'select 1 as "a;b"',
    "select $$a;b$$",
    "do $body$ begin; $x$; end $body$",
    "select 1 -- not; here\n",
    "select /* not; /* even; */ here; */ 1",
    "create rule r as on insert to t do (delete from a; delete from b)",
    "create function f() returns int begin atomic select 1; select case when true then 1 end; end",
    "create or replace procedure f() begin atomic insert into t values (1); end",
    "create event type t as (a text, b numeric(10, 2))",
    "publish t ('a;b', $1)",
    "values (1), ('naïve; ünïcode')",
]


@pytest.mark.parametrize("statement", WHOLE)
def test_a_semicolon_inside_something_does_not_end_a_statement(statement: str) -> None:
    found, rest = split(f"{statement};select 2;")
    assert [one.text for one in found] == [statement.rstrip(), "select 2"]
    assert rest == ""


@pytest.mark.parametrize("text", ["select 'open", 'select "open', "select $x$ open $$", "select /* open", "select (1;"])
def test_what_is_not_closed_is_left_over(text: str) -> None:
    assert split(f"select 1; {text}")[0][0].text == "select 1"
    assert split(f"select 1; {text}")[1].strip() == text
    assert has_words(text)


def test_empty_statements_and_comments_are_left_out() -> None:
    found, rest = split(";; -- nothing\n ; select 1 ; /* nothing */")
    assert [one.text for one in found] == ["select 1"]
    assert not has_words(rest)


def test_a_statement_knows_its_line() -> None:
    found, _ = split("-- first\nselect 1;\n\n/* two\nlines */ select\n2; select 3;")
    assert [one.line for one in found] == [2, 5, 6]


def test_a_backslash_command_ends_with_its_line() -> None:
    found, rest = split("\\dt\nselect 1;\n  \\d t\nselect '\\n';")
    assert [(one.text, one.line) for one in found] == [
        ("\\dt", 1),
        ("select 1", 2),
        ("\\d t", 3),
        ("select '\\n'", 4),
    ]
    assert rest == ""


@pytest.mark.parametrize(
    "text",
    [
        "publish t (1)",
        "PUBLISH IMMEDIATE t (1)",
        "/* why */ create -- what\n event\ttype t as (a int)",
        "create global subscription s on t",
        "Grant Subscribe On event type t to bob",
        "drop rule r",
    ],
)
def test_statements_of_the_language_are_recognised(text: str) -> None:
    assert is_language(text)


@pytest.mark.parametrize(
    "text",
    ["", "select publish from t", "create type t as (a int)", "grant select on t to bob", "'publish'", '"publish" t'],
)
def test_sql_is_not_taken_for_the_language(text: str) -> None:
    assert not is_language(text)


@given(st.lists(st.sampled_from(WHOLE), max_size=6))
def test_statements_put_together_come_apart_again(statements: list[str]) -> None:
    found, rest = split("".join(f"{statement};\n" for statement in statements))
    assert [one.text for one in found] == [statement.rstrip() for statement in statements]
    assert not has_words(rest)


@given(st.text(alphabet="ab;'\"$/*-\\ \n()e", max_size=40))
def test_no_text_is_lost_or_raises(text: str) -> None:
    found, rest = split(text)
    assert all(one.text in text for one in found)
    assert text.endswith(rest)
