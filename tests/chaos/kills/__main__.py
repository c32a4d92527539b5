"""Kills on one broker under load, from seeds, until stopped: `make kills ARGS='--from 1 --journal FILE'`.

Of consumers of events, or with `--groups` of members of process groups with their spools.

    python -m tests.chaos.kills                                       fresh seeds until stopped
    python -m tests.chaos.kills --seed 7                              the story of seed 7
    python -m tests.chaos.kills --groups --seed 7 --count 20          process groups, seeds 7 to 26
    python -m tests.chaos.kills --from 1 --count 10 --journal FILE    the next ten that are not clean yet
    python -m tests.journal FILE                                      what was run so far

Exit status: 0 all clean, 1 something was lost, repeated, out of order, or did not come to rest.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.kills import groups, story
from tests.chaos.kills.story import Outcome
from tests.journal import Entry, Journal, commit
from tests.links.fleet import make_fleet


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.kills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", action="store_true", help="process groups with their spools, and no consumers")
    parser.add_argument("--seed", type=int, help="the first seed; fresh ones without it")
    parser.add_argument(
        "--from", dest="first", type=int, help="the first seed, of those that the journal has not clean"
    )
    parser.add_argument("--count", type=int, help="how many seeds; 1 with --seed, else until stopped")
    parser.add_argument("--journal", type=Path, help="append each story to this file; see tests/journal.py")
    parser.add_argument("--kills", type=int, default=12, help="how many kills in each story")
    parser.add_argument("--rate", type=float, default=150.0, help="events a second")
    parser.add_argument("--for", dest="limit", type=float, default=0.0, help="begin no story after so many seconds")
    parser.add_argument("--reports", type=Path, help="a directory for the reports of stories that were not clean")
    args = parser.parse_args()
    if args.first is not None and (args.journal is None or args.seed is not None):
        parser.error("--from goes with --journal, and without --seed")
    return args


def _rig(args: argparse.Namespace) -> str:
    return "kills groups" if args.groups else "kills"


def _options(args: argparse.Namespace) -> str:
    return " ".join([f"--kills {args.kills}"] * (args.kills != 12) + [f"--rate {args.rate:g}"] * (args.rate != 150.0))


def _seeds(args: argparse.Namespace) -> Iterator[int]:
    count = args.count or (1 if args.seed is not None else 1_000_000)
    if args.first is not None:
        yield from Journal(args.journal).left(_rig(args), args.first, count, _options(args))
        return
    for made in range(count):
        yield args.seed + made if args.seed is not None else random.SystemRandom().randrange(1_000_000)


def main() -> int:
    """Tell stories and say what came of them."""
    args, began, unclean = _arguments(), time.monotonic(), 0
    at, tell = commit(), groups.tell if args.groups else story.tell
    with tempfile.TemporaryDirectory(prefix="pgps-kills-") as home, suppress(KeyboardInterrupt):
        Path(home).chmod(0o711)
        fleet = make_fleet(Path(home), "kills", 1)
        try:
            for seed in _seeds(args):
                if args.limit and time.monotonic() - began > args.limit:
                    break
                try:
                    outcome = tell(fleet, seed, kills=args.kills, rate=args.rate)
                except (Exception, pytest.fail.Exception):
                    outcome = Outcome(seed, problems=["the story broke off"], told=traceback.format_exc().splitlines())
                    # Whatever it has left behind must not break the next ones.
                    with suppress(Exception):
                        fleet.close()
                    fleet = make_fleet(Path(home), f"kills-{seed}", 1)
                print(outcome.line, flush=True)
                unclean += not outcome.is_clean
                _keep(args, outcome, at)
        finally:
            fleet.close()
    return 1 if unclean else 0


def _keep(args: argparse.Namespace, outcome: Outcome, at: str) -> None:
    if args.journal:
        counts = {"events": outcome.events, "deliveries": outcome.deliveries, "kills": sum(outcome.kills.values())}
        entry = Entry(_rig(args), outcome.seed, at, outcome.result, round(outcome.seconds, 1), counts, _options(args))
        Journal(args.journal).note(entry)
    if not outcome.is_clean and args.reports:
        args.reports.mkdir(parents=True, exist_ok=True)
        (args.reports / f"kills-{outcome.seed}.txt").write_text(outcome.report())
    elif not outcome.is_clean:
        print(outcome.report(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
