"""A journal of seeds that were run, one line of JSON each: what is worth hundreds of runs is gathered over days.

Rigs append to it themselves; a seed that was clean is not run again when a rig is told to go on from a seed.

    python -m tests.journal FILE        what was run so far, rig by rig and commit by commit
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Entry:
    """A run: `result` is "clean", or says what was wrong; `counts` what there was: events, deliveries, kills."""

    rig: str
    seed: int
    commit: str
    result: str
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)
    options: str = ""
    at: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))

    @property
    def is_clean(self) -> bool:
        return self.result == "clean"


@dataclass(frozen=True)
class Journal:
    """Entries in a file; several processes may append to it."""

    path: Path

    def note(self, entry: Entry) -> None:
        """Append a run."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(entry)) + "\n")

    def entries(self) -> list[Entry]:
        """All runs, the oldest first."""
        if not self.path.exists():
            return []
        return [Entry(**json.loads(line)) for line in self.path.read_text().splitlines() if line.strip()]

    def left(self, rig: str, first: int, count: int, options: str = "") -> Iterator[int]:
        """The seeds from `first` on that have not been clean yet, with the same options; `count` of them."""
        clean = {one.seed for one in self.entries() if one.rig == rig and one.is_clean and one.options == options}
        seed = first
        while count > 0:
            if seed not in clean:
                yield seed
                count -= 1
            seed += 1


def commit() -> str:
    """The commit of this checkout, with a plus when something was changed since."""

    def git(*words: str) -> str:
        said = subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, text=True, check=False)
        return said.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def summary(entries: Iterable[Entry]) -> list[str]:
    """What was run, in lines: for each rig the seeds that are clean now, what was found, and the same by commit."""
    said = []
    rigs: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        rigs[entry.rig].append(entry)
    for rig, runs in sorted(rigs.items()):
        last = {(one.seed, one.options): one for one in runs}
        clean = sum(one.is_clean for one in last.values())
        said.append(
            f"{rig}: {len(runs)} runs of {len(last)} seeds, {clean} clean when they were run last; {_sums(runs)}"
        )
        for commit_, there in _by_commit(runs).items():
            said.append(f"  {commit_}: {len(there)} runs, {sum(one.is_clean for one in there)} clean; {_sums(there)}")
        said += [
            f"  seed {one.seed}{f' {one.options}' if one.options else ''} at {one.commit}: {one.result}"
            for one in runs
            if not one.is_clean
        ]
    return said


def _by_commit(runs: list[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for one in runs:
        found[one.commit].append(one)
    return found


def _sums(runs: list[Entry]) -> str:
    total = sum((Counter(one.counts) for one in runs), Counter[str]())
    seconds = sum(one.seconds for one in runs)
    return ", ".join([*(f"{total[what]} {what}" for what in total), f"{seconds / 3600:.1f} hours"])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print("\n".join(summary(Journal(Path(name)).entries())))
