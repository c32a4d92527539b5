"""The tables on the screen, and the raw results beside those of the other benchmarks."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import platform
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from bench.field.experiments import EXPERIMENTS
from bench.field.field import short
from bench.report import RESULTS, Line
from bench.report import save as save_raw
from bench.report import table as figures_table

if TYPE_CHECKING:
    from rich.console import Console

    from bench.field.field import Cell, Field, Result, Sheet

__all__ = ["Run", "merged"]


@dataclass(slots=True)
class Run:
    """A run, as far as it has come."""

    bench: Field
    skipped: dict[str, str]
    results: dict[str, Result] = field(default_factory=dict)
    path: Path | None = None
    date: str = field(default_factory=lambda: dt.datetime.now(dt.UTC).isoformat(timespec="seconds"))

    @property
    def failed(self) -> bool:
        """Whether anything did not come to its end."""
        return any(
            result.failed or any(cell.standing.error for cell in result.cells) for result in self.results.values()
        )

    def document(self) -> dict[str, Any]:
        """Return everything that was measured so far, with what is needed to judge it."""
        house = self.bench.house
        return {
            "date": self.date,
            "quick": house.quick,
            "runs": house.runs,
            "machine": {
                "cpus": os.cpu_count(),
                "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
                "architecture": platform.machine(),
                "system": platform.system(),
                "python": platform.python_version(),
                "load_before": house.load_before,
                "load_after": os.getloadavg()[0],
            },
            "server": house.describe(),
            "systems": {system.title: system.version() for system in self.bench.systems.values()},
            "skipped": self.skipped,
            "experiments": {
                name: {**_record(name, result), "runs": house.runs, "load": house.load_before, "date": self.date}
                for name, result in self.results.items()
            },
        }

    def save(self, names: list[str]) -> None:
        """Keep the raw results."""
        if self.path is None:
            RESULTS.mkdir(exist_ok=True)
            stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S")
            what = names[0] if len(names) == 1 else "some" if len(names) < len(EXPERIMENTS) else "all"
            self.path = RESULTS / f"{stamp}-field-{what}{'-quick' if self.bench.house.quick else ''}.json"
        save_raw(self.document(), self.path)

    def show(self, name: str, screen: Console) -> None:
        """Print the tables of an experiment."""
        result = self.results[name]
        if EXPERIMENTS[name].PLOT == "lines":
            # A column for each round would fill the screen; the first and the last are compared below.
            screen.print(EXPERIMENTS[name].TITLE)
            return
        for title in dict.fromkeys(cell.table for cell in result.cells):
            cells = [cell for cell in result.cells if cell.table == title]
            screen.print(_table(f"{EXPERIMENTS[name].TITLE}: {title}", cells))
        for sheet in result.sheets:
            screen.print(_sheet(sheet))
        for note in result.notes:
            screen.print(note, markup=False)

    def figures(self) -> Table:
        """Return the comparisons, with their targets."""
        lines = {
            name: Line("", result.figures, result.notes[0] if result.failed else None)
            for name, result in self.results.items()
            if result.figures or result.failed
        }
        return figures_table(lines, "medians of paired rounds")


def _table(title: str, cells: list[Cell]) -> Table:
    """Return medians, a series a row."""
    points = list(dict.fromkeys(cell.x for cell in cells))
    shown = Table(title=title, header_style="bold", title_justify="left")
    shown.add_column("")
    for point in points:
        shown.add_column(point, justify="right")
    for series in dict.fromkeys(cell.series for cell in cells):
        found = {cell.x: cell for cell in cells if cell.series == series}
        shown.add_row(escape(series), *(_value(found.get(point)) for point in points))
    return shown


def _sheet(sheet: Sheet) -> Table:
    shown = Table(title=sheet.title, header_style="bold", title_justify="left")
    for column in sheet.columns:
        shown.add_column(column, overflow="fold")
    for row in sheet.rows:
        shown.add_row(*(escape(text) for text in row))
    return shown


def _value(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.standing.error is not None or not cell.samples:
        return "[red]failed[/]"
    return short(statistics.median(cell.samples))


def _record(name: str, result: Result) -> dict[str, Any]:
    return {
        "title": EXPERIMENTS[name].TITLE,
        "method": (EXPERIMENTS[name].__doc__ or "").strip(),
        "plot": EXPERIMENTS[name].PLOT,
        "cells": [cell.record() for cell in result.cells],
        "figures": [
            {**dataclasses.asdict(one), "reached": one.reached, "spread": one.spread, "met": one.met}
            for one in result.figures
        ],
        "sheets": [dataclasses.asdict(sheet) for sheet in result.sheets],
        "notes": result.notes,
        "failed": result.failed,
        **({"raw": result.raw} if result.raw else {}),
    }


def merged(paths: list[str]) -> dict[str, Any]:
    """Read raw results of one or more runs: what several have measured counts as the last has it."""
    runs: list[dict[str, Any]] = [json.loads(Path(path).read_text()) for path in paths]
    whole = runs[-1]
    for what in ("experiments", "systems", "skipped"):
        whole[what] = {name: value for run in runs for name, value in run[what].items()}
    whole["skipped"] = {title: why for title, why in whole["skipped"].items() if title not in whole["systems"]}
    # In the order of the page.
    whole["experiments"] = {name: whole["experiments"][name] for name in EXPERIMENTS if name in whole["experiments"]}
    whole["quick"] = any(run["quick"] for run in runs)
    return whole
