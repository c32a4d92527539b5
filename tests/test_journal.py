"""The journal of seeds that rigs keep: what is clean is not run again, what was found is not forgotten."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from tests.journal import Entry, Journal, summary


def entry(seed: int, result: str = "clean", rig: str = "storm", **more: object) -> Entry:
    return Entry(rig, seed, "abc1234", result, 30.0, {"kills": 4}, **more)  # type: ignore[arg-type]


def test_what_is_clean_is_left_out_and_what_is_not_is_run_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert list(journal.left("storm", 1, 3)) == [1, 2, 3]
    for one in (entry(1), entry(2, "3 missing"), entry(4), entry(3, rig="kills"), entry(5, options="--rate 200")):
        journal.note(one)
    assert list(journal.left("storm", 1, 3)) == [2, 3, 5]
    assert list(islice(journal.left("storm", 5, 9, "--rate 200"), 2)) == [6, 7]


def test_a_seed_counts_as_it_was_last_and_each_finding_is_listed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for one in (entry(1, "3 missing"), entry(1), entry(2), entry(7, rig="kills")):
        journal.note(one)
    said = summary(journal.entries())
    assert said[0].startswith("kills: 1 runs of 1 seeds, 1 clean")
    assert "storm: 3 runs of 2 seeds, 2 clean when they were run last; 12 kills, 0.0 hours" in said
    assert "  seed 1 at abc1234: 3 missing" in said
