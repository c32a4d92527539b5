"""Write the synchronous twin of the client, pgps/client/_sync from pgps/client/_async, and that of its tests.

`--check` compares instead of writing. The runtime module is written by hand on both sides.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

ROOT = Path(__file__).resolve().parent.parent
PAIRS = {
    ROOT / "pgps" / "client" / "_async": ROOT / "pgps" / "client" / "_sync",
    ROOT / "tests" / "client" / "asynchronous": ROOT / "tests" / "client" / "synchronous",
}
BY_HAND = {"__init__.py", "runtime.py"}

HEADER = "# Made by tools/unasync_client.py from {}: change that, then `make generate`.\n"

NAMES = {
    "AsyncExitStack": "ExitStack",
    "AsyncRetrying": "Retrying",
    "_async": "_sync",
    "asynchronous": "synchronous",
    "aclosing": "closing",
}
# Words that differ between the two clients, in docstrings and annotations.
TEXTS = (
    (r"async (with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAwaitable\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", r"\1"),
    (r"\bAsync(?=[A-Z]\w)", ""),
    (r"\bobject \| object\b", "object"),
    (r"from collections\.abc import ([^\n]*?)\bAwaitable(?:, )?", r"from collections.abc import \1"),
)


def main() -> int:
    """Write the twins, or compare them with `--check`; return the exit code."""
    classes = {
        name
        for source in PAIRS
        for path in source.glob("*.py")
        for name in re.findall(r"\bAsync[A-Z]\w*", path.read_text())
    }
    names = {name: name.removeprefix("Async") for name in classes} | NAMES
    stale = [one for source, target in PAIRS.items() for one in brought_up_to_date(source, target, names)]
    if stale and "--check" in sys.argv[1:]:
        print(f"out of date: {', '.join(stale)}; run: make generate", file=sys.stderr)
        return 1
    return 0


def brought_up_to_date(source: Path, target: Path, names: dict[str, str]) -> list[str]:
    """Write the files that differ, or only report them."""
    made = generated([path for path in source.glob("*.py") if path.name not in BY_HAND], target, names)
    stale = [path for path in target.glob("*.py") if path.name not in BY_HAND and path.name not in made]
    wrong = [target / name for name, text in made.items() if not _has(target / name, text)]
    if "--check" not in sys.argv[1:]:
        for path in stale:
            path.unlink()
        for path in wrong:
            path.write_text(made[path.name])
    return [str(path.relative_to(ROOT)) for path in stale + wrong]


def generated(sources: list[Path], target: Path, names: dict[str, str]) -> dict[str, str]:
    """Return the texts of the twin by file name, formatted as all code here."""
    texts = {}
    with tempfile.TemporaryDirectory() as directory:
        copied, made = Path(directory) / "before", Path(directory) / "after"
        copied.mkdir()
        for path in sources:
            (copied / path.name).write_text(path.read_text())
        rule = unasync.Rule(fromdir=str(copied), todir=str(made), additional_replacements=names)
        unasync.unasync_files([str(copied / path.name) for path in sources], [rule])
        for path in sources:
            text = (made / path.name).read_text()
            for pattern, replacement in TEXTS:
                text = re.sub(pattern, replacement, text)
            texts[path.name] = _in_shape(HEADER.format(path.relative_to(ROOT)) + text, target / path.name)
    return texts


def _in_shape(text: str, path: Path) -> str:
    """Return a text as ruff corrects and formats it in a file of that name."""
    for command in (
        ["check", "--fix", "--unsafe-fixes", "--quiet", "--exit-zero", "--select", "I,F401,RUF022,SIM117,UP028"],
        ["format", "--quiet"],
    ):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=text,
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
        ).stdout
    return text


def _has(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
