"""`python -m bench`: run the lines of the table, print each when it is done, keep the raw results."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import (
    bulk,
    client_direct,
    client_fanout,
    client_publish,
    client_receive,
    composite,
    composite_detector,
    composite_flink,
    composite_latency,
    console,
    global_bytes,
    latency,
    link,
    link_audit,
    link_filter,
    link_latency,
    link_line,
    link_memory,
    link_peers,
    many,
    many_types,
    memory,
    overlay,
    portfolio,
    reclaim,
    report,
    single,
    spark_jdbc,
    spark_latency,
    spark_memory,
    spark_publish,
    spark_stream,
    spools,
    spools_nats,
    steady,
    subscriptions,
    units,
    units_brokers,
)
from bench.house import SETTINGS, House
from pgps.embedded import EmbeddedCluster

if TYPE_CHECKING:
    from types import ModuleType

LINES: dict[str, ModuleType] = {
    "bulk": bulk,
    "single": single,
    "many": many,
    "many_types": many_types,
    "subscriptions": subscriptions,
    "portfolio": portfolio,
    "latency": latency,
    "steady": steady,
    "memory": memory,
    "overlay": overlay,
    "reclaim": reclaim,
    "link": link,
    "link_audit": link_audit,
    "link_filter": link_filter,
    "link_latency": link_latency,
    "link_peers": link_peers,
    "link_line": link_line,
    "link_memory": link_memory,
    "spark_jdbc": spark_jdbc,
    "spark_publish": spark_publish,
    "spark_stream": spark_stream,
    "spark_latency": spark_latency,
    "spark_memory": spark_memory,
    "client_publish": client_publish,
    "client_receive": client_receive,
    "client_fanout": client_fanout,
    "client_direct": client_direct,
    "composite": composite,
    "composite_detector": composite_detector,
    "composite_flink": composite_flink,
    "composite_latency": composite_latency,
    "console": console,
    "global_bytes": global_bytes,
    "spools": spools,
    "spools_nats": spools_nats,
    "units": units,
    "units_brokers": units_brokers,
}


def main() -> int:
    """Run what was asked for; return 1 when a target was missed."""
    options = _options()
    names = options.only or list(LINES)
    # The cluster is removed however the run ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    screen = Console(stderr=True)
    if not screen.is_terminal:
        screen = Console(stderr=True, width=160)
    runs = options.runs or (2 if options.quick else 5)
    with Progress(
        TextColumn("{task.fields[line]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("[dim]{task.description}"), console=screen,
    ) as progress:  # fmt: skip
        cluster = EmbeddedCluster(f"bench-{os.getpid()}", settings=SETTINGS, keep=False)
        with cluster:
            house = House(cluster, runs, options.quick, progress, progress.add_task("preparing", line=""))
            house.prepare()
            results: dict[str, report.Line] = {}
            path = report.path(names, quick=options.quick)
            for name in names:
                results[name] = _run(house, name)
                # Saved after each line, so that a run that is ended early keeps what it has measured.
                document = report.record(house, results)
                report.save(document, path)
                screen.print(report.table({name: results[name]}, title=""))
    if options.json:
        json.dump(document, sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        out = Console()
        if not out.is_terminal:
            out = Console(width=160)
        out.print(report.table(results))
    screen.print(f"raw results: {path}")
    return 0 if all(line.met for line in results.values()) else 1


def _run(house: House, name: str) -> report.Line:
    line = LINES[name]
    steps = line.steps(house) if hasattr(line, "steps") else house.runs
    house.progress.update(house.task, line=name, total=steps, completed=0)
    method = (line.__doc__ or "").strip()
    try:
        return report.Line(method, line.run(house))
    except Exception as error:
        house.progress.console.print(traceback.format_exc(), markup=False)
        return report.Line(method, [], f"{type(error).__name__}: {error}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=LINES, metavar="NAME", help=f"one line: {', '.join(LINES)}")
    parser.add_argument("--runs", type=int, help="pairs of each comparison (default 5, quick 2)")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter: to see that it works")
    parser.add_argument("--json", action="store_true", help="the raw results on standard output instead of the table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
