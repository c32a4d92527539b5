"""What is in the documents: blocks of SQL, of commands, and of what comes out of them.

A block in a fence ```sql is typed into psql, ```sh into a shell, ```python, ```js and ```java are
programs, and a block ```text shows lines of what the block above it prints; … stands for anything.
A comment before a block says more about it:

    <!-- test: error 42501 -->   its last statement fails with that SQLSTATE
    <!-- test: run -->           a ```sh block that is run (others are only checked to exist)
    <!-- test: serve -->         a ```sh block whose lines are programs that run until the document ends
    <!-- test: serve FILE -->    a program of this name, for Node or Java, that runs until the document ends
    <!-- test: until TEXT -->    a ```sh block that is run until it prints that text (… stands for anything on its line)
    <!-- test: spark -->         a program, and what it prints, that a test of Spark runs with a session `spark`
    <!-- test: skip -->          not run: it needs what a test has not
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Block", "blocks_of", "documents"]

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<said>[^>]*?) -->\n)?```(?P<kind>sql|sh|python|text|js|java)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One block; `line` is where it begins, `said` what a comment says about it."""

    kind: str
    text: str
    said: str
    line: int

    @property
    def error(self) -> str | None:
        """The SQLSTATE it is to end with, None when it is to succeed."""
        return self.said.removeprefix("error ") if self.said.startswith("error ") else None

    @property
    def served(self) -> str | None:
        """The file that it is to be, "" for lines of a shell, when it runs until the document ends; None otherwise."""
        return self.said.removeprefix("serve").strip() if self.said.split(" ")[0] == "serve" else None

    @property
    def awaited(self) -> str | None:
        """The text that it is to print in the end, None when it is run but once."""
        return self.said.removeprefix("until ") if self.said.startswith("until ") else None


def documents() -> list[Path]:
    """Return the documents whose blocks are tested; decisions are history."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in found if "decisions" not in path.parts)


def blocks_of(path: Path) -> list[Block]:
    """Return the blocks of a document, in order."""
    text = path.read_text()
    return [
        Block(match["kind"], match["text"], match["said"] or "", text.count("\n", 0, match.start()) + 1)
        for match in _BLOCK.finditer(text)
    ]
