"""The table on the screen, and the raw results beside the code."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import platform
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from bench import records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.figures import Figure
    from bench.house import House

__all__ = ["Line", "path", "record", "save", "table"]

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Line:
    """The result of a benchmark; `error` is set when it failed before its end."""

    method: str
    figures: list[Figure]
    error: str | None = None

    @property
    def met(self) -> bool:
        """Return whether it was completed and missed no target."""
        return self.error is None and all(figure.met is not False for figure in self.figures)


def table(results: Mapping[str, Line], title: str = "pgps: medians of paired runs") -> Table:
    """Return the table: a section for each line, a row for each figure."""
    shown = Table(title=title or None, header_style="bold", title_justify="left")
    for column in ("what", "target", "reached", "spread", "runs", "pgps", "other", ""):
        shown.add_column(
            column, justify="left" if column == "what" else "right", overflow="fold", no_wrap=column != "what"
        )
    for name, line in results.items():
        for figure in line.figures:
            shown.add_row(*_row(figure))
        if line.error is not None:
            shown.add_row(name + f"\n  [dim]{escape(line.error)}[/]", "", "failed")
        shown.add_section()
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


def record(house: House, results: Mapping[str, Line]) -> dict[str, Any]:
    """Return everything that was measured so far, with what is needed to judge it."""
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
                "method": line.method,
                "error": line.error,
                "figures": [
                    {
                        **dataclasses.asdict(figure),
                        "reached": figure.reached,
                        "spread": figure.spread,
                        "met": figure.met,
                    }
                    for figure in line.figures
                ],
            }
            for name, line in results.items()
        },
    }


def path(names: list[str], *, quick: bool) -> Path:
    """Return where a run that begins now keeps the raw results of these lines."""
    RESULTS.mkdir(exist_ok=True)
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S")
    what = names[0] if len(names) == 1 else "some" if len(names) < 8 else "all"
    return RESULTS / f"{stamp}-{what}{'-quick' if quick else ''}.json"


def save(document: dict[str, Any], path: Path) -> None:
    """Write the raw results; a concurrent reader sees either the old ones or the new ones."""
    written = path.with_suffix(".part")
    written.write_text(records.dumps(document))
    written.replace(path)
