"""Write docs/decisions/README.md: the decisions by number and title. `--check` compares instead."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "decisions"
TARGET = FOLDER / "README.md"

INTRODUCTION = """\
# Decisions

Why it is as it is: one page each, with the figures of the day it was taken and what was rejected. They are
history; how things are now stands in [concepts](../concepts.md) and under internals
([links](../internals/links.md), [clients](../internals/clients.md)). A new one has the next free number and a
title that says what was chosen. `make generate` writes this list.
"""


def main() -> int:
    """Write the list, or compare it with `--check`; return the exit code."""
    text = generate()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    print("docs/decisions/README.md is out of date; run: make generate", file=sys.stderr)
    return 1


def generate() -> str:
    """Return the list; a title begins with the number of its file."""
    lines = []
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        number = int(path.name.partition("-")[0])
        if not title.startswith(f"{number}. "):
            raise SystemExit(f'{path.name}: the first line has to begin with "# {number}. "')
        lines.append(f"- [{title}]({path.name})")
    return "\n".join([INTRODUCTION, *lines]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
