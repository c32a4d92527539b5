"""What a hint tells to type is typed as it stands: a name in it is quoted as the function takes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CODE = Path(__file__).parents[2] / "sql/code"
TOLD = re.compile(r"pgps\.(\w+)\(%(?:1\$)?L")
# What is not there is told as it was typed; settings, identifiers of brokers and parts of a service are not folded.
AS_TYPED = {"create_spool", "create_network", "configure", "set_network_role", "alter_service", "grant_service"}


def untold(text: str) -> list[str]:
    """Return the calls in hints whose first argument is not quoted; a variable that is quoted is declared so."""
    quoted = "|".join(["quote_ident", *re.findall(r"(\w+) text := quote_ident\(", text)])
    # What is put in place of %L stands within a few lines behind it; semicolons stand in literals, too.
    return [
        match[0]
        for match in TOLD.finditer(text)
        if match[1] not in AS_TYPED and not re.search(rf"\b({quoted})\b", text[match.end() : match.end() + 250])
    ]


@pytest.mark.parametrize("path", sorted(CODE.rglob("*.sql")), ids=lambda path: str(path.relative_to(CODE)))
def test_a_name_in_a_hint_is_quoted(path: Path) -> None:
    assert untold(path.read_text(encoding="utf-8")) == []


def test_one_that_is_not_is_found() -> None:
    assert untold("hint = format('First: select pgps.drop_rule(%L)', v_name);") == ["pgps.drop_rule(%L"]
    assert untold("hint = format('First: select pgps.drop_rule(%L)', quote_ident(v_name));") == []
