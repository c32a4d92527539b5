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


# How long something takes is measured with the server's clock; everything else is by the broker's (core/clock.sql).
_MEASURES = re.compile(
    r"statement_timestamp\(\)|\b(v_|(v_)?try\.)(began|entered)\b|query_start|state_change"  # since something began
    r"|xact_start|p\.prepared"  # how old transactions of the server are
    # Whether the dispatcher's process has said in the last seconds that it sleeps.
    r"|wake_seq|date_part\('epoch', (pg_catalog\.)?clock_timestamp\(\)\) (-|operator\(pg_catalog\.-\)) 5"
    # What expressions of users may call.
    r"|'(now|transaction_timestamp|clock_timestamp)\(\)'::regprocedure|hint = |^'clock"
)


def test_the_time_is_told_by_the_clock_of_the_broker_unless_it_measures() -> None:
    others = {
        f"{path.name}: {line.strip()}"
        for path in _CODE
        if path.name != "clock.sql"
        for line in _without_comments(path.read_text()).splitlines()
        if re.search(r"\b(clock_timestamp|now|transaction_timestamp)\(\)|\bcurrent_timestamp\b", line)
        and not _MEASURES.search(line.strip())
    }
    assert others == set()
    assert len([path for path in _CODE if path.name == "clock.sql"]) == 1


def test_functions_are_taken_from_public_once_by_the_last_script() -> None:
    """Such a statement writes a new version of every function of the schema (decision 45)."""
    pattern = re.compile(r"^revoke .* on all (?:functions|routines) in schema", re.MULTILINE)
    assert [path.name for path in _CODE if pattern.search(path.read_text())] == ["rebuild.sql"]


def test_no_values_of_users_go_through_jsonb_agg() -> None:
    """It looks for the end of each string in all that follows: 5 MB of short strings take a minute, uninterrupted.

    `to_jsonb(array_agg(…))` is the same otherwise. `jsonb_object_agg` has that, too: it is for scalars and names.
    """
    places = {path.name for path in _CODE if re.search(r"\bjsonb_agg\(", _without_comments(path.read_text()))}
    assert places == set()
