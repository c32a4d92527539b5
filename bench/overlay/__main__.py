"""`python -m bench.overlay`: large overlays by the model, without a server."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.overlay.plots import draw
from bench.overlay.study import SUBSCRIPTIONS, Point, study

_COLUMNS = {
    "brokers": "brokers", "rows": "rows at the root", "rows_of_origins": "of them by origin and filter",
    "answers_for_one": "answers for a subscription", "links_for_event": "links for an event",
    "brokers_of_event": "brokers that want it", "cut_messages": "messages after a cut",
}  # fmt: skip


def main() -> int:
    """Compute the study, show it, and draw it when asked to."""
    options = _options()
    screen = Console(stderr=True)
    points: list[Point] = []
    with screen.status("") as status:
        sizes = (10, 100, 1000) if options.quick else (10, 100, 1000, 10_000)
        points += study(sizes, options.subscriptions, say=status.update)
    if options.plot:
        draw(points, options.plot)
    if options.json:
        json.dump([point.as_json() for point in points], sys.stdout, indent=1)
        print()
    else:
        out = Console()
        if not out.is_terminal:
            out = Console(width=160)
        out.print(_table(points, options.subscriptions))
    return 0


def _table(points: list[Point], subscriptions: int) -> Table:
    shown = Table(
        title=f"overlays with {subscriptions:,} subscriptions, by the model", title_justify="left", header_style="bold"
    )
    shown.add_column("case", no_wrap=True)
    for title in _COLUMNS.values():
        shown.add_column(title, justify="right")
    for case in dict.fromkeys(point.case for point in points):
        for number, point in enumerate(each for each in points if each.case == case):
            cells = [getattr(point, column) for column in _COLUMNS]
            texts = ["" if cell is None else f"{cell:,.1f}" if cell < 100 else f"{cell:,.0f}" for cell in cells]
            shown.add_row(case if number == 0 else "", f"{point.brokers:,}", *texts[1:])
        shown.add_section()
    return shown


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.overlay", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 1,000 brokers")
    parser.add_argument("--subscriptions", type=int, default=SUBSCRIPTIONS, help="in all (%(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw it, too")
    parser.add_argument("--json", action="store_true", help="one object for each point, on the standard output")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
