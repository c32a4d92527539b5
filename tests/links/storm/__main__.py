"""Run random failures ("storms") against linked brokers, from seeds: `make storm ARGS='--seed 7 --count 20'`.

    python -m tests.links.storm                       fresh seeds until stopped
    python -m tests.links.storm --seed 7              the story of seed 7
    python -m tests.links.storm --seed 7 --count 20   of seeds 7 to 26
    python -m tests.links.storm --story behind        one that was written by hand
    python -m tests.links.storm --seed 7 --print      only its script; cut it down, then:
    python -m tests.links.storm --script FILE
    python -m tests.links.storm --from 1 --count 50 --journal FILE     the next 50 seeds that are not clean yet
    python -m tests.journal FILE                                       what was run so far

Exit status: 0 all clean, 1 something was lost, repeated, out of order or late, or did not come to rest.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.journal import Entry, Journal, commit
from tests.links.fleet import make_fleet
from tests.links.storm.script import Script
from tests.links.storm.stories import STORIES
from tests.links.storm.tell import tell
from tests.links.storm.verdict import Verdict
from tests.links.storm.weather import Climate, random_script

SERVERS = 3


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.links.storm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="the first seed; fresh ones without it")
    parser.add_argument(
        "--from", dest="first", type=int, help="the first seed, of those that the journal has not clean"
    )
    parser.add_argument("--count", type=int, help="how many seeds; 1 with --seed, else until stopped")
    parser.add_argument("--journal", type=Path, help="append each story to this file; see tests/journal.py")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long each storm is")
    parser.add_argument("--for", dest="limit", type=float, default=0.0, help="begin no story after so many seconds")
    parser.add_argument("--rate", type=float, default=120.0, help="events a second, all publishers together")
    parser.add_argument("--jobs", type=int, default=1, help="stories at a time, each with servers of its own")
    parser.add_argument("--story", choices=sorted(STORIES), help="one that was written by hand")
    parser.add_argument("--script", type=Path, help="tell what stands in a file")
    parser.add_argument("--without", nargs="+", default=[], metavar="STEP", help="leave kinds of steps out")
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="only these kinds of steps")
    parser.add_argument("--print", action="store_true", help="print the script, and do nothing")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each story on the output")
    parser.add_argument("--reports", type=Path, help="a directory for the reports of stories that were not clean")
    parser.add_argument("--stop", action="store_true", help="stop at the first that is not clean")
    args = parser.parse_args()
    if args.first is not None and (args.journal is None or args.seed is not None or args.story or args.script):
        parser.error("--from goes with --journal, and without --seed, --story and --script")
    return args


class _Run:
    """All stories of one call of the program."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.console = Console(stderr=True)
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.told = self.unclean = 0
        self.ending = self.interrupted = False
        self.journal = Journal(args.journal) if args.journal else None
        self.commit = commit() if args.journal else ""
        self.scripts = self._scripts()

    def _scripts(self) -> Iterator[Script]:
        args = self.args
        if args.script:
            yield Script.parse(args.script.read_text())
            return
        climate = Climate().without(*args.without)
        if args.only:
            climate = climate.only(*args.only)
        count = args.count if args.count is not None else (1 if args.seed is not None or args.story else 0)
        for seed in self._seeds(count):
            yield STORIES[args.story] if args.story else random_script(seed, args.seconds, climate)

    def _seeds(self, count: int) -> Iterator[int]:
        if self.args.first is not None and self.journal is not None:
            yield from self.journal.left("storm", self.args.first, count or 1_000_000, self.options())
            return
        made = 0
        while not count or made < count:
            yield self.args.seed + made if self.args.seed is not None else random.SystemRandom().randrange(1_000_000)
            made += 1

    def next(self) -> Script | None:
        with self.lock:
            if self.ending or (self.args.limit and time.monotonic() - self.began > self.args.limit):
                return None
            return next(self.scripts, None)

    def command(self, script: Script) -> str:
        """Return the command that runs a story again."""
        words = ["python -m tests.links.storm"]
        if self.args.script or self.args.story:
            words.append(f"--script {self.args.script}" if self.args.script else f"--story {self.args.story}")
        else:
            words.append(f"--seed {script.seed}")
        return " ".join([*words, self.options()]).strip()

    def options(self) -> str:
        """Return the options that change which story a seed makes."""
        args, words = self.args, []
        if not (args.script or args.story):
            words += [f"--seconds {args.seconds:g}"] if args.seconds != 25 else []
            words += [f"--without {' '.join(args.without)}"] if args.without else []
            words += [f"--only {' '.join(args.only)}"] if args.only else []
        return " ".join(words + ([f"--rate {args.rate:g}"] if args.rate != 120 else []))

    def job(self, number: int, home: Path, progress: Progress) -> None:
        """Run stories one after the other, on the servers of this job."""
        bar = progress.add_task("servers start", total=1.0)
        fleet = make_fleet(home, f"storm-{number}", SERVERS)
        try:
            while (script := self.next()) is not None:

                def say(what: str, share: float, script: Script = script) -> None:
                    if self.interrupted:
                        raise KeyboardInterrupt
                    progress.update(bar, description=f"{script.name} {script.seed}: {what}", completed=share)

                try:
                    verdict = tell(
                        fleet, script, per_second=self.args.rate, command=self.command(script), progress=say,
                        reports=self.args.reports,
                    )  # fmt: skip
                except (Exception, pytest.fail.Exception):
                    # The test program itself failed, or the network did not settle before the story began.
                    verdict = Verdict(script.seed, script.name, self.command(script), str(script))
                    verdict.problems.append("the story broke off")
                    verdict.told = traceback.format_exc().splitlines()
                    # What is left of its servers is not for the next story.
                    fleet.close()
                    fleet = make_fleet(home, f"storm-{number}", SERVERS)
                self.note(verdict)
        finally:
            progress.remove_task(bar)
            fleet.close()

    def note(self, verdict: Verdict) -> None:
        with self.lock:
            self.told += 1
            self.unclean += not verdict.is_clean
            self.ending = self.ending or (self.args.stop and not verdict.is_clean)
            if self.journal is not None:
                self.journal.note(self._entry(verdict))
            if self.args.json:
                print(json.dumps(verdict.as_json(), default=str), flush=True)
            self.console.print(verdict.line, highlight=False, soft_wrap=True, style=None if verdict.is_clean else "red")
            if verdict.is_clean:
                return
            if self.args.reports:
                self.args.reports.mkdir(parents=True, exist_ok=True)
                name = self.args.reports / f"{verdict.name}-{verdict.seed}"
                name.with_suffix(".txt").write_text(verdict.report())
                name.with_suffix(".script").write_text(verdict.script)
            elif not self.args.json:
                self.console.print(verdict.report(), highlight=False, markup=False, soft_wrap=True)

    def _entry(self, verdict: Verdict) -> Entry:
        script = Script.parse(verdict.script)
        counts = {
            "events": verdict.published,
            "deliveries": verdict.deliveries,
            "steps": len(script.steps),
            "kills": sum(step.what in {"kill_worker", "kill_server", "cut", "restore_server"} for step in script.steps),
        }
        rig = "storm" if verdict.name == "random" else f"storm {verdict.name}"
        result = "clean" if verdict.is_clean else verdict.line.rpartition("): ")[2]
        return Entry(rig, verdict.seed, self.commit, result, round(verdict.took, 1), counts, self.options())


def main() -> int:
    """Run stories and report their results; return the exit code."""
    args = _arguments()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = _Run(args)
    if args.print:
        print("\n".join(map(str, run.scripts)))
        return 0
    columns = (TextColumn("{task.description}"), BarColumn(30), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="pgps-storm-") as home,
        Progress(*columns, console=run.console, transient=True) as progress,
        suppress(KeyboardInterrupt),
    ):
        Path(home).chmod(0o711)
        with ThreadPoolExecutor(args.jobs) as pool:
            jobs = [pool.submit(run.job, number, Path(home), progress) for number in range(args.jobs)]
            try:
                for job in jobs:
                    job.result()
            except KeyboardInterrupt:
                # Each job removes its servers before it ends.
                run.ending = run.interrupted = True
                raise
    print(f"{time.monotonic() - run.began:.0f} s: {run.told} stories, {run.told - run.unclean} clean", file=sys.stderr)
    return 1 if run.unclean else 0


if __name__ == "__main__":
    sys.exit(main())
