"""The documents hang together: what one points to is there, and decisions are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_points_to_is_there(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
    missing = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert missing == []


def test_every_document_is_reached_from_the_readme() -> None:
    to_do, reached = [ROOT / "README.md"], set()
    while to_do:
        path = to_do.pop()
        if path in reached or not path.exists():
            continue
        reached.add(path)
        if path.suffix == ".md":
            targets = re.findall(r"\]\(([^)#\s]+)", path.read_text())
            to_do += [(path.parent / target).resolve() for target in targets if "://" not in target]
    assert [str(path.relative_to(ROOT)) for path in DOCUMENTS if path not in reached] == []


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_is_a_page(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 66, "what has to be known to use it belongs into the reference, how it works under internals"
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_the_rooms_that_contributing_names_are_those_there_are_and_each_has_a_section_in_install_sql() -> None:
    rooms = {path.name for path in (ROOT / "sql" / "code").iterdir() if path.is_dir()}
    (row,) = [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| `sql/code` |")]
    assert set(re.findall(r"`(\w+)`", row.partition("in rooms")[2])) == rooms
    sections = re.findall(r"^-- (\w+): ", (ROOT / "sql" / "install.sql").read_text(), re.MULTILINE)
    assert rooms - set(sections) == set()


def test_what_the_way_of_an_event_names_is_there() -> None:
    """Files of sql/code or from the root, others beside the one before; functions of the SQL."""
    way = (ROOT / "CONTRIBUTING.md").read_text().partition("## The way of an event")[2].partition("\nThe same rooms")[0]
    code = "\n".join(path.read_text() for path in (ROOT / "sql" / "code").rglob("*.sql"))
    folder = ROOT
    missing = []
    for named in re.findall(r"`([\w./]+)`", way):
        if named.endswith((".sql", ".py")):
            places = [ROOT / "sql" / "code" / named, ROOT / named, folder / named]
            found = next((place for place in places if place.exists()), None)
            folder = found.parent if found else folder
        elif "/" in named:
            found = (ROOT / named).exists()
        else:
            found = re.search(rf"function (?:pgps|pgps_internal)\.{named.removeprefix('pgps.')}\(", code)
        missing += [] if found else [named]
    assert missing == []


def test_tests_that_documents_name_are_there() -> None:
    missing = [
        f"{path.name}: {file}::{test}"
        for path in DOCUMENTS
        for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", path.read_text())
        if not (ROOT / file).exists() or f"def {test}(" not in (ROOT / file).read_text()
    ]
    assert missing == []
