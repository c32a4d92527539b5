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
from bench.field.field import ordered, short
from bench.report import RESULTS, Line
from bench.report import save as save_raw
from bench.report import table as figures_table

if TYPE_CHECKING:
    from rich.console import Console

    from bench.field.field import Cell, Field, Result, Sheet
    from bench.field.systems.base import System

__all__ = ["Run", "kept", "merged"]


@dataclass(slots=True)
class Run:
    """One experiment with the results that it has so far."""

    name: str
    bench: Field
    skipped: dict[str, str]
    result: Result
    date: str = field(default_factory=lambda: dt.datetime.now(dt.UTC).isoformat(timespec="seconds"))
    server: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        # Asked now, because the server is running only now.
        self.server = self.bench.house.describe()

    @property
    def failed(self) -> bool:
        """Return whether any part was not completed."""
        return self.result.failed or any(cell.standing.error for cell in self.result.cells)

    def document(self) -> dict[str, Any]:
        """Return everything that was measured, with what is needed to judge it."""
        house = self.bench.house
        needed = [system for name, system in self.bench.systems.items() if name in EXPERIMENTS[self.name].NEEDS]
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
            "server": self.server,
            "systems": {system.title: _version(system) for system in needed},
            "skipped": self.skipped,
            "experiments": {
                self.name: {
                    **_record(self.name, self.result),
                    "runs": house.runs,
                    "load": house.load_before,
                    "date": self.date,
                }
            },
        }

    def save(self) -> Path:
        """Keep the raw results; return where."""
        RESULTS.mkdir(exist_ok=True)
        stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S")
        path = RESULTS / f"{stamp}-field-{self.name}{'-quick' if self.bench.house.quick else ''}.json"
        save_raw(self.document(), path)
        return path

    def show(self, screen: Console) -> None:
        """Print the tables."""
        experiment, result = EXPERIMENTS[self.name], self.result
        if experiment.PLOT == "lines":
            # A column for each round would not fit on the screen; the first and the last are compared below.
            screen.print(experiment.TITLE)
        else:
            for title in dict.fromkeys(cell.table for cell in result.cells):
                cells = [cell for cell in result.cells if cell.table == title]
                screen.print(_table(f"{experiment.TITLE}: {title}", cells))
        for sheet in result.sheets:
            screen.print(_sheet(sheet))
        for note in result.notes:
            screen.print(note, markup=False)

    def figures(self) -> Table:
        """Return the comparisons, with their targets."""
        line = Line("", self.result.figures, self.result.notes[-1] if self.result.failed else None)
        return figures_table({self.name: line}, "medians of paired rounds")


def _version(system: System) -> str:
    try:
        return system.version()
    except Exception as error:
        return f"version unknown: {error}"


def _table(title: str, cells: list[Cell]) -> Table:
    """Return a table of medians with one row for each series."""
    points = ordered(cell.x for cell in cells)
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


def kept() -> list[str]:
    """Return the files of raw results that count: of full runs, oldest first."""
    return [str(path) for path in sorted(RESULTS.glob("*-field-*.json")) if not path.stem.endswith("-quick")]


def merged(paths: list[str]) -> dict[str, Any]:
    """Read raw results of one or more runs; where several measured the same, the last that did not fail counts."""
    runs: list[dict[str, Any]] = [json.loads(Path(path).read_text()) for path in paths]
    if not runs:
        raise RuntimeError("there are no raw results of full runs: run make field")
    experiments: dict[str, dict[str, Any]] = {}
    source: dict[str, dict[str, Any]] = {}
    for run in runs:
        for name, one in run["experiments"].items():
            if name not in experiments or experiments[name]["failed"] or not one["failed"]:
                experiments[name], source[name] = one, run
    used = [run for run in runs if any(one is run for one in source.values())]
    whole = dict(used[-1])
    for what in ("systems", "skipped"):
        whole[what] = {title: text for run in used for title, text in run[what].items()}
    whole["skipped"] = {title: why for title, why in whole["skipped"].items() if title not in whole["systems"]}
    # Sorted in the order of the page.
    whole["experiments"] = {name: experiments[name] for name in EXPERIMENTS if name in experiments}
    whole["quick"] = any(run["quick"] for run in used)
    return whole
