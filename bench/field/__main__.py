"""`python -m bench.field`: run the experiments, print their tables, keep the raw results, write the page."""

from __future__ import annotations

import argparse
import os
import signal
import sys
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
    from types import ModuleType

    from bench.field.systems.base import System

# Hundreds of consumers with a connection each; branches of distributed transactions; a profile of statements.
_SETTINGS = {
    **SETTINGS,
    "max_connections": "1500",
    "max_prepared_transactions": "300",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",
}


def main() -> int:
    """Run what was asked for; return 1 when an experiment or a system failed."""
    options = _options()
    if options.write:
        document.write(report.merged(options.write))
        return 0
    # The cluster and the brokers go however the run ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    screen = Console(stderr=True)
    if not screen.is_terminal:
        screen = Console(stderr=True, width=160)
    names = options.only or list(EXPERIMENTS)
    systems, skipped = _systems(options.systems or [system.name for system in SYSTEMS], names, screen)
    columns = (
        TextColumn("{task.fields[line]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("[dim]{task.description}"),
    )  # fmt: skip
    cluster = EmbeddedCluster(f"field-{os.getpid()}", settings=_SETTINGS, keep=False)
    with Progress(*columns, console=screen) as progress, cluster:
        runs = options.runs or (1 if options.quick else 5)
        house = House(cluster, runs, options.quick, progress, progress.add_task("preparing", line=""))
        house.prepare()
        field = Field(house, systems, long=options.long)
        run = report.Run(field, skipped)
        for name in names:
            run.results[name] = _run(field, EXPERIMENTS[name], name)
            # At once: a run that is ended early has measured something, too.
            run.save(names)
            run.show(name, screen)
    Console(width=None if sys.stdout.isatty() else 160).print(run.figures())
    screen.print(f"raw results: {run.path}")
    if options.document:
        document.write(run.document())
    return 1 if run.failed else 0


def _systems(wanted: list[str], experiments: list[str], screen: Console) -> tuple[dict[str, System], dict[str, str]]:
    """Return the systems that are needed and here, and why the others are not."""
    needed = {name for one in experiments for name in EXPERIMENTS[one].NEEDS}
    here: dict[str, System] = {}
    skipped: dict[str, str] = {}
    for system in SYSTEMS:
        if system.name in needed and system.name in wanted:
            screen.print(f"[dim]looking for {system.title}[/]")
            reason = system.missing()
            if reason is None:
                here[system.name] = system
            else:
                skipped[system.title] = reason
                screen.print(f"{system.title} is skipped: {reason}", style="yellow")
    return here, skipped


def _run(field: Field, experiment: ModuleType, name: str) -> Result:
    field.house.progress.update(field.house.task, line=name, total=experiment.steps(field), completed=0)
    try:
        result: Result = experiment.run(field)
    except Exception as error:
        field.house.progress.console.print(traceback.format_exc(), markup=False)
        result = Result(notes=[f"failed: {type(error).__name__}: {error}"], failed=True)
    return result


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.field", description=__doc__)
    names = ", ".join(EXPERIMENTS)
    parser.add_argument("--only", action="append", choices=EXPERIMENTS, metavar="NAME", help=f"one of {names}")
    parser.add_argument(
        "--systems", type=lambda given: given.split(","), metavar="A,B", help=", ".join(one.name for one in SYSTEMS)
    )
    parser.add_argument("--runs", type=int, help="rounds of each comparison (default 5, quick 1)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter: to see that it works")
    parser.add_argument("--long", action="store_true", help="ten minutes for each system under a held snapshot")
    parser.add_argument("--document", action="store_true", help="write docs/performance.md and its plots from this run")
    parser.add_argument(
        "--write", nargs="+", metavar="FILE",
        help="measure nothing: write docs/performance.md from raw results; of an experiment in several, the last",
    )  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
