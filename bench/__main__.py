"""`python -m bench`: run the lines of the table, print it, keep the raw results."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import bulk, latency, many, memory, portfolio, report, single, steady, subscriptions
from bench.house import SETTINGS, House
from pgps.embedded import EmbeddedCluster

if TYPE_CHECKING:
    from types import ModuleType

    from bench.figures import Figure

LINES: dict[str, ModuleType] = {
    "bulk": bulk,
    "single": single,
    "many": many,
    "subscriptions": subscriptions,
    "portfolio": portfolio,
    "latency": latency,
    "steady": steady,
    "memory": memory,
}


def main() -> int:
    """Run what was asked for; return 1 when a target was missed."""
    options = _options()
    names = options.only or list(LINES)
    # The cluster goes however the run ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    screen = Console(stderr=True)
    runs = options.runs or (2 if options.quick else 5)
    with Progress(
        TextColumn("{task.fields[line]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("[dim]{task.description}"), console=screen,
    ) as progress:  # fmt: skip
        cluster = EmbeddedCluster(f"bench-{os.getpid()}", settings=SETTINGS, keep=False)
        with cluster:
            house = House(cluster, runs, options.quick, progress, progress.add_task("preparing", line=""))
            house.prepare()
            results = {name: _run(house, name) for name in names}
            methods = {name: (LINES[name].__doc__ or "").strip() for name in names}
            document = report.record(house, results, methods)
    path = report.save(document)
    if options.json:
        json.dump(document, sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        out = Console()
        if not out.is_terminal:
            out = Console(width=160)
        out.print(report.table(results))
    screen.print(f"raw results: {path}")
    return 1 if any(figure.met is False for figures in results.values() for figure in figures) else 0


def _run(house: House, name: str) -> list[Figure]:
    line = LINES[name]
    steps = line.steps(house) if hasattr(line, "steps") else house.runs
    house.progress.update(house.task, line=name, total=steps, completed=0)
    figures: list[Figure] = line.run(house)
    return figures


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=LINES, metavar="NAME", help=f"one line: {', '.join(LINES)}")
    parser.add_argument("--runs", type=int, help="pairs of each comparison (default 5, quick 2)")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter: to see that it works")
    parser.add_argument("--json", action="store_true", help="the raw results on standard output instead of the table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
