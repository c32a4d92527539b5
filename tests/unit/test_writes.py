"""Who writes what: the header of every script of sql/code names the tables that its text writes, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgps._resources import sql_dir

_CODE = sql_dir() / "code"
_TARGET = re.compile(
    r"\b(?:insert into|(?<!for )(?<!key )update|delete from|merge into|truncate(?: table)?|copy)\s+(?:only\s+)?"
    r"((?:pgps_internal|pgps_event|pgps_entry|pgps_link|pgps_load|pg_temp|pgps)\.[\w%${}]+|%\d*\$?[sI]|\{\w+\})",
    re.IGNORECASE,
)
# A segment, or a table for each of something: its name ends in what the text puts there.
_NUMBERED = re.compile(r"_(?:%(?:\d+\$)?[sI]|\{\w+\})$")


def written(text: str) -> tuple[set[str], bool]:
    """Return the tables that a script writes, and whether it writes others whose whole name it puts together."""
    statements = re.sub(r"--.*$", "", text, flags=re.MULTILINE)
    found = {_NUMBERED.sub("", match[1].removeprefix("pgps_internal.")) for match in _TARGET.finditer(statements)}
    return {name for name in found if not re.search("[%{]", name)}, any(re.search("[%{]", name) for name in found)


def declared(text: str) -> tuple[set[str], bool] | None:
    """Return what the header says, `Writes: a, b; by name: what` or `Writes: nothing`; None when it says nothing."""
    header = "\n".join(line[3:] for line in text.split("\n\n", maxsplit=1)[0].splitlines() if line.startswith("-- "))
    said = re.search(r"^Writes: ([^.]*(?:\.\w[^.]*)*)\.$", header, re.MULTILINE | re.DOTALL)
    if said is None:
        return None
    tables, _, others = " ".join(said[1].split()).partition("by name: ")
    names = {name.strip() for name in tables.replace(";", "").split(",")} - {"", "nothing"}
    return names, bool(others)


@pytest.mark.parametrize("script", sorted(_CODE.rglob("*.sql")), ids=lambda path: str(path.relative_to(_CODE)))
def test_the_header_names_the_tables_that_the_text_writes(script: Path) -> None:
    text = script.read_text()
    names, by_name = written(text)
    line = ", ".join(sorted(names)) or ("" if by_name else "nothing")
    wanted = f"-- Writes: {line}{'; ' * bool(names and by_name)}{'by name: …' * by_name}."
    assert declared(text) == (names, by_name), f"as the last lines of the header: {wanted}"


@pytest.mark.parametrize(
    ("text", "names", "by_name"),
    [
        ("insert into pgps_internal.a (b) select 1; delete from pgps_internal.c x using d", {"a", "c"}, False),
        ("update pgps_internal.a x set b = 1; select from pgps_internal.c for no key update of c", {"a"}, False),
        ("insert into pgps_internal.a as t values (1) on conflict (b) do update set c = 1", {"a"}, False),
        ("merge into pgps_internal.a using b on true when matched then delete", {"a"}, False),
        ("truncate only pgps_internal.c; lock table only pgps_internal.d", {"c"}, False),
        ("execute format('insert into pgps_internal.batch_%1$s values (1)', n)", {"batch"}, False),
        ("execute format('delete from pgps_internal.%I', name)", set(), True),
        ("execute format('truncate only %s', segment)", set(), True),
        ("select pgps_internal.render('insert into {log} (event_id) select 1', names)", set(), True),
        ("-- insert into pgps_internal.a\nselect 1; copy pgps_internal.b (c) from stdin", {"b"}, False),
        ("insert into pgps_entry.calls (verb) values ('x')", {"pgps_entry.calls"}, False),
        ("insert into pg_temp.mine values (1)", {"pg_temp.mine"}, False),
    ],
)
def test_what_a_text_writes(text: str, names: set[str], by_name: bool) -> None:
    assert written(text) == (names, by_name)


def test_what_a_header_says() -> None:
    said = "-- Locks: none.\n-- Writes: a, b_c,\n-- pgps_entry.calls; by name: the log of a\n-- type.\n\nselect 1;"
    assert declared(said) == ({"a", "b_c", "pgps_entry.calls"}, True)
    assert declared("-- About it.\n-- Writes: nothing.\n\nselect 1;") == (set(), False)
    assert declared("-- About it.\n\n-- Writes: nothing.\nselect 1;") is None
