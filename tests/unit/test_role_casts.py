"""A name becomes a role only when it is quoted: the text "10" is a number to regrole, and "Alice" is alice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
# Columns and variables that hold an OID.
NUMBERS = {
    "oid", "relowner", "nspowner", "usesysid", "grantee", "v_role", "require_advertised.publisher", "a.grantee",
    "x.usesysid", "n.nspowner", "c.relowner", "v_owner", "nullif(a.grantee, 0)",
    # Written by format from a regrole.
    "%3$L",
}  # fmt: skip
CAST = re.compile(r"::(?:pg_catalog\.)?regrole\b(?!\[)")


def sources() -> list[Path]:
    found = [
        path
        for directory in ("sql/code", "sql/python", "pgps", "worker", "console", "spark")
        for path in sorted((_ROOT / directory).rglob("*"))
        if path.suffix in (".sql", ".py")
    ]
    assert len(found) > 300
    return found


def operand(text: str, end: int) -> str:
    """Return what stands before a cast: a word, or a call or parenthesis with its contents."""
    if text[end - 1] == "'":
        return text[text.rindex("'", 0, end - 1) : end]
    start, depth = end, 0
    while start > 0 and (depth or re.match(r"[\w.%$]", text[start - 1]) or text[start - 1] == ")"):
        start -= 1
        depth += {")": 1, "(": -1}.get(text[start], 0)
        if not depth and text[start] == "(" and not re.match(r"\w", text[start - 1]):
            break
    return text[start:end]


def unquoted(text: str) -> list[str]:
    """Return the casts to regrole of what may be a name that is not quoted, and of a role back to a name."""
    found = []
    for cast in CAST.finditer(text):
        what = operand(text, cast.start())
        word = text[: cast.start()]
        if what.startswith(("quote_ident(", "'")) or word.endswith(("::oid", "::pg_catalog.oid")):
            continue
        if what.startswith(("pgps_internal.find_role(", "pgps_internal.grantee(", "0")) or what in NUMBERS:
            continue
        if re.search(r"else quote_ident\(\w+\) end$", word):
            continue
        found.append(what + cast[0])
    # What regrole prints is compared only with its number: equal, the role is gone.
    found += re.findall(r"::text::name\b", text)
    for comparison in re.finditer(r"(=|<>) \(?([\w.()]*(?:owner|role|publisher))\)?::text\b(?!::)", text):
        found.append(comparison[0])
    return found


def test_no_name_is_cast_to_a_role_without_quotes() -> None:
    casts = sum(len(CAST.findall(path.read_text())) for path in sources())
    assert casts > 50
    found = {path.relative_to(_ROOT).as_posix(): unquoted(path.read_text()) for path in sources()}
    assert {name: casts for name, casts in found.items() if casts} == {}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("f(caller::regrole)", ["caller::regrole"]),
        ("quote_ident(caller)::regrole", []),
        ("quote_ident(case when a then b(c) else d end)::regrole", []),
        ("(args ->> 'role')::regrole", ["(args ->> 'role')::regrole"]),
        ("'pgps_neighbour'::regrole", []),
        ("x::oid::regrole, y.owner::text::name", ["::text::name"]),
        ("caller = (acts_for.owner)::text or", ["= (acts_for.owner)::text"]),
        ("s.owner::text = s.owner::oid::text", []),
        ("case when a then 'x' else quote_ident(caller) end::regrole", []),
    ],
)
def test_a_cast_of_a_name_is_found(text: str, wanted: list[str]) -> None:
    assert unquoted(text) == wanted
