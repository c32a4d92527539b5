"""`python -m bench.field`: run the experiments, print their tables, keep the raw results, write the page.

Every experiment has a cluster, a time limit and a file of raw results of its own: one that fails is reported, and the
next one begins. After each of them the page is written from the newest results of all experiments, so a run may be
ended early and continued later.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.field import document, report
from bench.field.experiments import EXPERIMENTS
from bench.field.field import Field, Result
from bench.field.systems.all import SYSTEMS
from bench.house import SETTINGS, House
from pgps.embedded import EmbeddedCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from bench.field.systems.base import System

# For hundreds of consumers with a connection each, for distributed transactions, and for a profile of statements.
_SETTINGS = {
    **SETTINGS,
    "max_connections": "1500",
    "max_prepared_transactions": "300",
    "track_commit_timestamp": "off",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",
}
_COLUMNS = (
    TextColumn("{task.fields[line]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    TextColumn("[dim]{task.description}"),
)  # fmt: skip
_GRACE = 1.3
"""An experiment begins nothing new after its minutes; after so many times as long it is ended where it is."""


class Overdue(BaseException):
    """An experiment hangs. This is no Exception, so that it is not handled as the failure of one contender."""


def main() -> int:
    """Run what was asked for; return 1 when an experiment or a system failed."""
    options = _options()
    screen = Console(stderr=True)
    if not screen.is_terminal:
        screen = Console(stderr=True, width=160)
    if options.write is not None:
        _write(options.write or report.kept(), screen)
        return 0
    # The cluster and the brokers are removed however the run ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    names = options.only or list(EXPERIMENTS)
    if options.missing:
        there = report.merged(report.kept())["experiments"] if report.kept() else {}
        names = [name for name in names if name not in there]
    systems, skipped = _systems(options.systems or [system.name for system in SYSTEMS], names, screen)
    began = time.monotonic()
    failed = [name for name in names if not _part(name, options, systems, skipped, screen)]
    screen.print(f"{len(names)} experiments in {(time.monotonic() - began) / 60:.0f} minutes")
    if failed:
        screen.print(f"not everything came to its end in: {', '.join(failed)}", style="red")
    return 1 if failed else 0


def _part(
    name: str, options: argparse.Namespace, systems: dict[str, System], skipped: dict[str, str], screen: Console
) -> bool:
    """Run one experiment, keep what it found, and write the page anew; False when anything failed."""
    result = Result()
    run: report.Run | None = None
    minutes = EXPERIMENTS[name].MINUTES * (6 if options.long and name == "held" else 1)
    with Progress(*_COLUMNS, console=screen) as progress:
        try:
            with (
                _ended_after(60 * _GRACE * minutes),
                EmbeddedCluster(f"field-{name}-{os.getpid()}", settings=_SETTINGS, keep=False) as cluster,
            ):
                runs = options.runs or (1 if options.quick else 5)
                task = progress.add_task("preparing", line=name)
                house = House(cluster, runs, options.quick, progress, task, _SETTINGS)
                house.prepare()
                field = Field(house, systems, long=options.long, deadline=time.monotonic() + 60 * minutes)
                run = report.Run(name, field, skipped, result)
                progress.update(house.task, total=EXPERIMENTS[name].steps(field))
                EXPERIMENTS[name].run(field, result)
        except (Exception, Overdue) as error:
            screen.print(traceback.format_exc(), markup=False)
            result.notes.append(f"failed: {type(error).__name__}: {error}")
            result.failed = True
    if run is None:
        return False
    run.show(screen)
    Console(width=None if sys.stdout.isatty() else 160).print(run.figures())
    screen.print(f"raw results: {run.save()}")
    if not options.quick:
        _write(report.kept(), screen)
    return not run.failed


def _write(paths: list[str], screen: Console) -> None:
    try:
        screen.print(f"written: {document.write(report.merged(paths))}")
    except Exception:
        # The raw results are saved already; --write writes the page again.
        screen.print(traceback.format_exc(), markup=False)


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    def end(_signal: int, _frame: FrameType | None) -> None:
        raise Overdue(f"it was not over after {seconds / 60:.0f} minutes")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _systems(wanted: list[str], experiments: list[str], screen: Console) -> tuple[dict[str, System], dict[str, str]]:
    """Return the systems that are needed and here, and why the others are not."""
    needed = {name for one in experiments for name in EXPERIMENTS[one].NEEDS}
    here: dict[str, System] = {}
    skipped: dict[str, str] = {}
    for system in SYSTEMS:
        if system.name in needed and system.name in wanted:
            screen.print(f"[dim]looking for {system.title}[/]")
            try:
                reason = system.missing()
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            if reason is None:
                here[system.name] = system
            else:
                skipped[system.title] = reason
                screen.print(f"{system.title} is skipped: {reason}", style="yellow")
    return here, skipped


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.field", description=__doc__)
    names = ", ".join(EXPERIMENTS)
    parser.add_argument("--only", action="append", choices=EXPERIMENTS, metavar="NAME", help=f"one of {names}")
    parser.add_argument("--missing", action="store_true", help="only those of which no results are kept")
    parser.add_argument(
        "--systems", type=lambda given: given.split(","), metavar="A,B", help=", ".join(one.name for one in SYSTEMS)
    )
    parser.add_argument("--runs", type=int, help="rounds of each comparison (default 5, quick 1)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter: to see that it works")
    parser.add_argument("--long", action="store_true", help="an hour under a held snapshot instead of ten minutes")
    parser.add_argument(
        "--write", nargs="*", metavar="FILE",
        help="measure nothing: write docs/performance.md from raw results, the last of each experiment; default: all",
    )  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
