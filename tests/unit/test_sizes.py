"""What a stranger has to read at a time: no file over 400 lines, no function over 60, but for what is generated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.migration.releases import schema_of, versions

_ROOT = Path(__file__).parents[2]
_SOURCES = ("bench", "console", "examples", "migrations", "pgps", "spark", "sql", "tests", "tools", "worker")
_GENERATED = {"sql/generated/python.sql"}
_MAKES = re.compile(r"^(?:create or replace (?:function|procedure) ([\w.]+)\(|do (?=\$))", re.MULTILINE)
_QUOTE = re.compile(r"\$\w*\$")
_ATOMIC = re.compile(r"^begin atomic$", re.MULTILINE)


def files(*endings: str) -> list[Path]:
    """Return the sources of this project, without what is made from them."""
    found = [
        path
        for folder in _SOURCES
        for path in (_ROOT / folder).rglob("*")
        if path.suffix in endings and path.relative_to(_ROOT).as_posix() not in _GENERATED
    ]
    assert len(found) > 50
    return sorted(found)


def of_sql(text: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the length of each function and anonymous block of a script."""
    starts = list(_MAKES.finditer(text))
    for start, after in zip(starts, [*starts[1:], None], strict=False):
        end = after.start() if after else len(text)
        quote, atomic = _QUOTE.search(text, start.start(), end), _ATOMIC.search(text, start.start(), end)
        if atomic and (quote is None or atomic.start() < quote.start()):
            last = text.index("\nend;", atomic.start()) + 1
        elif quote:
            last = text.index(quote[0], quote.end())
        else:  # return …;
            last = text.index(";", start.end())
        yield (start[1] or "do").removeprefix("pgps_internal."), text.count("\n", start.start(), last) + 1


def of_python(text: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the length of each function of a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or 0) - node.lineno + 1


def test_no_file_is_longer_than_four_hundred_lines() -> None:
    lengths = {path.relative_to(_ROOT).as_posix(): path.read_text().count("\n") for path in files(".sql", ".py")}
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}


def test_no_line_of_sql_is_wider_than_a_screen_but_in_released_revisions_which_stay_as_they_were() -> None:
    released: dict[str, str] = {}
    for version in versions():
        released |= schema_of(version)
    wide = []
    for path in files(".sql"):
        name = path.relative_to(_ROOT).as_posix()
        if name in released:
            assert path.read_text() == released[name], f"{name} is released"
        else:
            lines = path.read_text().splitlines()
            wide += [f"{name}:{number}" for number, line in enumerate(lines, start=1) if len(line) > 120]
    assert len(released) >= 4
    assert wide == []


def test_no_function_is_longer_than_a_screen() -> None:
    sql = [found for path in files(".sql") if path.parent.name != "schema" for found in of_sql(path.read_text())]
    python = [found for path in files(".py") for found in of_python(path.read_text())]
    assert len(sql) > 500
    assert len(python) > 1000
    assert {name for name, lines in [*sql, *python] if lines > 60} == set()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("create or replace function pgps_internal.a() returns int\nlanguage sql\nas $$\nselect 1\n$$;\n", [("a", 5)]),
        ("create or replace function pgps.b() returns int\nbegin atomic\n    select 1;\nend;\n", [("pgps.b", 4)]),
        ("create or replace function pgps_internal.c() returns int\nlanguage sql\nreturn 1;\n", [("c", 3)]),
        ("do $do$\nbegin\n    execute $f$\n$f$;\nend\n$do$;\ncomment on function x is 'y';\n", [("do", 6)]),
    ],
)
def test_how_long_a_function_is(text: str, wanted: list[tuple[str, int]]) -> None:
    assert list(of_sql(text)) == wanted
