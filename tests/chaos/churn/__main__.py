"""Churn on one broker: types, subscriptions, filters and owners change while publishers and consumers go on.

    python -m tests.chaos.churn                                           fresh seeds until stopped
    python -m tests.chaos.churn --seed 7 --count 20                       the stories of seeds 7 to 26
    python -m tests.chaos.churn --from 1 --count 10 --journal FILE        the next ten that are not clean yet
    python -m tests.journal FILE                                          what was run so far

What a seed draws is always the same; what meets what is the concern of the moment.
Exit status: 0 all clean, 1 something was lost, repeated, out of order, did not come to rest, or was said to who should
not be told.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos.churn.stage import ready
from tests.chaos.churn.story import Outcome, tell
from tests.journal import Entry, Journal, commit
from tests.links.fleet import Fleet, make_fleet

SECONDS, RATE = 15.0, 60.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.churn", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="the first seed; fresh ones without it")
    parser.add_argument(
        "--from", dest="first", type=int, help="the first seed, of those that the journal has not clean"
    )
    parser.add_argument("--count", type=int, help="how many seeds; 1 with --seed, else until stopped")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long things change in each story")
    parser.add_argument("--rate", type=float, default=RATE, help="events a second")
    parser.add_argument("--for", dest="limit", type=float, default=0.0, help="begin no story after so many seconds")
    parser.add_argument("--journal", type=Path, help="append each story to this file; see tests/journal.py")
    parser.add_argument("--reports", type=Path, help="a directory for the reports of all stories")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each story on the output")
    parser.add_argument("--stop", action="store_true", help="stop at the first that is not clean")
    args = parser.parse_args()
    if args.first is not None and (args.journal is None or args.seed is not None):
        parser.error("--from goes with --journal, and without --seed")
    return args


def _options(args: argparse.Namespace) -> str:
    words = [f"--seconds {args.seconds:g}"] * (args.seconds != SECONDS)
    return " ".join(words + [f"--rate {args.rate:g}"] * (args.rate != RATE))


def _seeds(args: argparse.Namespace) -> Iterator[int]:
    count = args.count or (1 if args.seed is not None else 1_000_000)
    if args.first is not None:
        yield from Journal(args.journal).left("churn", args.first, count, _options(args))
        return
    for made in range(count):
        yield args.seed + made if args.seed is not None else random.SystemRandom().randrange(1_000_000)


def make_ready_fleet(home: Path, name: str) -> Fleet:
    fleet = make_fleet(home, name, 1)
    ready(fleet.sites[0])
    return fleet


class _Run:
    """All stories of one call of the program."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.console = Console(stderr=True)
        self.commit = commit() if args.journal else ""
        self.began = time.monotonic()
        self.told = self.unclean = 0

    def stories(self, home: Path, progress: Progress) -> None:
        """Tell one story after the other."""
        args = self.args
        bar = progress.add_task("the server starts", total=None)
        fleet = make_ready_fleet(home, "churn")
        if args.reports:
            args.reports.mkdir(parents=True, exist_ok=True)
        try:
            for seed in _seeds(args):
                if args.limit and time.monotonic() - self.began > args.limit:
                    break

                def say(what: str, seed: int = seed) -> None:
                    progress.update(bar, description=f"seed {seed}: {what}")

                try:
                    outcome = tell(fleet, seed, seconds=args.seconds, rate=args.rate, say=say, logs=args.reports)
                except (Exception, pytest.fail.Exception):
                    outcome = Outcome(seed, problems=["the story broke off"], told=traceback.format_exc().splitlines())
                    # Whatever it has left behind must not break the next ones.
                    with suppress(Exception):
                        fleet.close()
                    fleet = make_ready_fleet(home, f"churn-{seed}")
                self.note(outcome)
                if args.stop and not outcome.is_clean:
                    break
        finally:
            progress.remove_task(bar)
            fleet.close()

    def note(self, outcome: Outcome) -> None:
        """Say what came of a story, and keep it."""
        args = self.args
        self.told += 1
        self.unclean += not outcome.is_clean
        if args.journal:
            entry = Entry(
                "churn", outcome.seed, self.commit, outcome.result, round(outcome.seconds, 1), outcome.counts,
                _options(args),
            )  # fmt: skip
            Journal(args.journal).note(entry)
        if args.json:
            print(json.dumps(outcome.as_json(), default=str), flush=True)
        style = None if outcome.is_clean else "red"
        self.console.print(outcome.line, highlight=False, markup=False, soft_wrap=True, style=style)
        if args.reports:
            (args.reports / f"churn-{outcome.seed}.txt").write_text(outcome.report())
        elif not outcome.is_clean and not args.json:
            self.console.print(outcome.report(), highlight=False, markup=False, soft_wrap=True)


def main() -> int:
    """Tell stories and say what came of them; return the exit status."""
    args = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = _Run(args)
    columns = (TextColumn("{task.description}"), BarColumn(30), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="pgps-churn-") as home,
        Progress(*columns, console=run.console, transient=True) as progress,
        suppress(KeyboardInterrupt),
    ):
        Path(home).chmod(0o711)
        run.stories(Path(home), progress)
    print(f"{time.monotonic() - run.began:.0f} s: {run.told} stories, {run.told - run.unclean} clean", file=sys.stderr)
    return 1 if run.unclean else 0


if __name__ == "__main__":
    sys.exit(main())
