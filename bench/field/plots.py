"""Plots: curves in the shape of the paper's figures 8, 9 and 10, bars for the peers."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from bench.field.field import ordered

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["draw"]

_MARKERS = "os^Dv<>pX*"
_WHICH = (", every ", ", a tenth ")
"""Where the words in the name of a table begin that say which events are meant."""


def draw(results: dict[str, Any], directory: Path) -> dict[str, list[str]]:
    """Draw every experiment's tables; return the names of the files."""
    import matplotlib as mpl  # noqa: PLC0415 - of the extra "bench"

    mpl.use("svg")
    # With a fixed salt, the same figures give the same file.
    mpl.rcParams.update({"svg.hashsalt": "pgps", "svg.fonttype": "none", "font.size": 9})
    directory.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, list[str]] = {}
    for name, experiment in results["experiments"].items():
        for number, title in enumerate(dict.fromkeys(cell["table"] for cell in experiment["cells"])):
            cells = [cell for cell in experiment["cells"] if cell["table"] == title and not cell["error"]]
            if cells and experiment["plot"] in _DRAW:
                file = f"field-{name}{f'-{number + 1}' if number else ''}.svg"
                _plot(experiment, title, cells, directory / file)
                drawn.setdefault(name, []).append(file)
    return drawn


def _plot(experiment: dict[str, Any], title: str, cells: list[dict[str, Any]], file: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415

    picture, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    _DRAW[experiment["plot"]](axes, cells)
    what, _, by = title.partition(", by ")
    what, told, which = next((parts for word in _WHICH if (parts := what.partition(word))[1]), (what, "", ""))
    axes.set_title(f"{experiment['title']}: {told.removeprefix(', ')}{which}" if told else experiment["title"])
    axes.set_ylabel(what)
    if by:
        axes.set_xlabel(by)
    axes.spines[["top", "right"]].set_visible(False)
    picture.legend(loc="outside right upper", fontsize=7, frameon=False)
    picture.savefig(file, metadata={"Date": None})
    plt.close(picture)


def _curves(axes: Any, cells: list[dict[str, Any]]) -> None:
    for number, series in enumerate(dict.fromkeys(cell["series"] for cell in cells)):
        mine = sorted((cell for cell in cells if cell["series"] == series), key=lambda cell: float(cell["x"]))
        points = [float(cell["x"]) for cell in mine]
        medians = [statistics.median(cell["samples"]) for cell in mine]
        # The medians' line, and whiskers from the smallest to the largest round.
        below = [middle - min(cell["samples"]) for middle, cell in zip(medians, mine, strict=True)]
        above = [max(cell["samples"]) - middle for middle, cell in zip(medians, mine, strict=True)]
        marker = _MARKERS[number % len(_MARKERS)]
        axes.errorbar(points, medians, yerr=[below, above], marker=marker, markersize=4, capsize=2, label=series)
    axes.set_xlabel("subscribers")
    axes.set_ylim(bottom=0)


def _lines(axes: Any, cells: list[dict[str, Any]]) -> None:
    for series in dict.fromkeys(cell["series"] for cell in cells):
        mine = [cell for cell in cells if cell["series"] == series]
        points = [float(cell["x"]) for cell in mine]
        axes.plot(points, [statistics.median(cell["samples"]) for cell in mine], label=series)
    axes.set_xlabel("minutes")
    axes.set_ylim(bottom=0)


def _bars(axes: Any, cells: list[dict[str, Any]]) -> None:
    points = ordered(cell["x"] for cell in cells)
    series = list(dict.fromkeys(cell["series"] for cell in cells))
    width = 0.8 / len(series)
    for number, one in enumerate(series):
        found = {cell["x"]: statistics.median(cell["samples"]) for cell in cells if cell["series"] == one}
        places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(points))]
        axes.bar(places, [found.get(point, 0.0) for point in points], width, label=one)
    axes.set_xticks(range(len(points)), points)
    # The scale is logarithmic, because the fastest is faster than the slowest by orders of magnitude.
    axes.set_yscale("log")


_DRAW = {"curves": _curves, "bars": _bars, "lines": _lines}
