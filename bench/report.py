"""The table on the screen, and the raw results beside the code."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import platform
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from bench.figures import Figure
    from bench.house import House

__all__ = ["record", "save", "table"]

RESULTS = Path(__file__).resolve().parent / "results"


def table(results: dict[str, list[Figure]]) -> Table:
    """Return the table: a section for each line, a row for each figure."""
    shown = Table(title="pgps: medians of paired runs", header_style="bold", title_justify="left")
    for column in ("what", "target", "reached", "spread", "runs", "pgps", "other", ""):
        shown.add_column(
            column, justify="left" if column == "what" else "right", overflow="fold", no_wrap=column != "what"
        )
    for name, figures in results.items():
        for figure in figures:
            shown.add_row(*_row(figure))
        if figures:
            shown.add_section()
        else:
            shown.add_row(name, "", "skipped")
    return shown


def _row(figure: Figure) -> list[str]:
    unit = figure.target.unit if figure.target else ("x" if figure.other else figure.unit)
    low, high = figure.spread
    verdict = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[figure.met]
    return [
        figure.what + (f"\n  [dim]{figure.note}[/]" if figure.note else ""),
        str(figure.target or ""),
        f"{_short(figure.reached)} {unit}",
        f"{_short(low)} … {_short(high)}",
        str(len(figure.samples)),
        _median(figure.pgps, figure.unit),
        _median(figure.other, figure.unit),
        verdict,
    ]


def _median(values: list[float], unit: str) -> str:
    return f"{_short(statistics.median(values))} {unit}" if values else ""


def _short(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def record(house: House, results: dict[str, list[Figure]], methods: dict[str, str]) -> dict[str, Any]:
    """Return everything that was measured, with what is needed to judge it."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "quick": house.quick,
        "runs": house.runs,
        "machine": {
            "cpus": os.cpu_count(),
            "architecture": platform.machine(),
            "system": platform.system(),
            "python": platform.python_version(),
            "load_before": house.load_before,
            "load_after": os.getloadavg()[0],
        },
        "server": house.describe(),
        "lines": {
            name: {
                "method": methods[name],
                "figures": [
                    {
                        **dataclasses.asdict(figure),
                        "reached": figure.reached,
                        "spread": figure.spread,
                        "met": figure.met,
                    }
                    for figure in figures
                ],
            }
            for name, figures in results.items()
        },
    }


def save(document: dict[str, Any]) -> Path:
    """Write the raw results to a file of their own and return where."""
    RESULTS.mkdir(exist_ok=True)
    stamp = document["date"].replace(":", "").replace("-", "").split("+")[0]
    names = list(document["lines"])
    what = names[0] if len(names) == 1 else "some" if len(names) < 8 else "all"
    path = RESULTS / f"{stamp}-{what}{'-quick' if document['quick'] else ''}.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return path
