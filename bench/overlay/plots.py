"""Plots of the study: rows, answers, links and repair by the number of brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.overlay.study import Point

__all__ = ["draw"]

_MARKERS = "os^Dv"


def draw(points: Sequence[Point], file: Path) -> None:
    """Draw all points into one picture."""
    import matplotlib as mpl  # noqa: PLC0415 - of the extra "bench"

    mpl.use("svg")
    # With a fixed salt, the same figures give the same file.
    mpl.rcParams.update({"svg.hashsalt": "pgps", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt  # noqa: PLC0415

    picture, ((rows, news), (links, cuts)) = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    _curves(rows, points, "rows", "rows of routes at the root")
    _curves(news, points, "answers_for_one", "answers for one new subscription")
    _curves(links, points, "links_for_event", "links that one event crosses")
    _curves(cuts, points, "cut_messages", "messages of the busiest broker after a cut")
    sizes = sorted({point.brokers for point in points})
    links.plot(sizes, [size - 1 for size in sizes], linestyle=":", color="grey", label="flooding")
    for axes in (rows, news, links, cuts):
        axes.set_xscale("log")
        # Many a subscription sends nothing.
        axes.set_yscale("symlog" if axes is news else "log")
        axes.set_ylim(bottom=0 if axes is news else 1)
        axes.set_xlabel("brokers")
        axes.spines[["top", "right"]].set_visible(False)
    picture.legend(*links.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(file, metadata={"Date": None})
    plt.close(picture)


def _curves(axes: Any, points: Sequence[Point], what: str, title: str) -> None:
    for number, case in enumerate(dict.fromkeys(point.case for point in points)):
        mine = [point for point in points if point.case == case and getattr(point, what) is not None]
        if mine:
            sizes, values = [point.brokers for point in mine], [getattr(point, what) for point in mine]
            marker = _MARKERS[number % len(_MARKERS)]
            axes.plot(sizes, values, marker=marker, markersize=4, label=case, color=f"C{number}")
    axes.set_title(title)
