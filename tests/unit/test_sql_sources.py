"""The SQL sources as text: PL/pgSQL looks a function up only when it is called, which may be a rare branch."""

from __future__ import annotations

import re

from pgps._resources import sql_dir

_CODE = sorted((sql_dir() / "code").rglob("*.sql"))
_MADE = re.compile(
    r"create (?:or replace )?(?:unlogged )?(?:function|procedure|view|table|type|sequence) (?:if not exists )?"
    r"((?:pgps_internal|pgps)\.\w+)"
)
_CALLED = re.compile(r"\b((?:pgps_internal|pgps)\.[a-z]\w*)\(")


def _without_comments(text: str) -> str:
    return re.sub(r"^\s*--.*$", "", text, flags=re.MULTILINE)


def test_every_function_that_is_called_is_made() -> None:
    sources = {str(path): _without_comments(path.read_text()) for path in _CODE}
    functions = "\n".join(sources.values()) + (sql_dir() / "generated" / "python.sql").read_text()
    # Tables and types of the schema are followed by brackets, too: insert into t (…), numeric(…).
    tables = "\n".join(path.read_text() for path in (sql_dir() / "schema").glob("*.sql"))
    made = set(_MADE.findall(functions)) | {
        name for name in _MADE.findall(tables) if not re.search(rf"create (or replace )?function {name}\b", tables)
    }
    missing = {
        f"{place}: {name}"
        for place, text in sources.items()
        for name in _CALLED.findall(text)
        # Generated names go on: 'pgps_internal.match_' || number.
        if name not in made and not name.endswith("_")
    }
    assert missing == set()
