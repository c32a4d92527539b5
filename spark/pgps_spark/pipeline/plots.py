"""The plots of a report."""

from __future__ import annotations

import datetime as dt
import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pgps.errors import ConfigError

__all__ = ["SPANS", "Table", "plots"]

_COLOURS = ("#2f6f9f", "#d9822b", "#4b9b6e", "#8a5a9e", "#b5485d", "#7a8794")
_MOST_BARS = 20
SPANS = {
    "10 milliseconds": 0.01, "a tenth of a second": 0.1, "the second": 1, "10 seconds": 10, "the minute": 60,
    "10 minutes": 600, "the hour": 3600, "6 hours": 21_600, "the day": 86_400, "10 days": 864_000,
}  # fmt: skip
"""Spans of time, in seconds, by which events are counted."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report; the plot is chosen by its name."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[Any]]


def plots(tables: Sequence[Table]) -> list[bytes | None]:
    """Return a PNG for each table, None where a table says it better. Raises ConfigError without matplotlib."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - of the extra
        from matplotlib import style  # noqa: PLC0415 - see above
    except ImportError as error:
        raise ConfigError("matplotlib is not installed", hint="pip install 'pgps[spark]'") from error
    mpl.use("agg")
    with style.context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}):
        return [_PLOTS[table.name](table) if table.name in _PLOTS and table.rows else None for table in tables]


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # noqa: PLC0415 - of the extra

    figure = Figure(figsize=(9, height), layout="constrained")
    return figure, figure.add_subplot()


def _png(figure: Any) -> bytes:
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=120)
    return target.getvalue()


def _throughput(table: Table) -> bytes:
    from matplotlib import dates, ticker  # noqa: PLC0415 - of the extra

    figure, axes = _figure(3.2)
    name = table.title.rpartition(", by ")[2]
    step = dt.timedelta(seconds=SPANS[name])
    by_type: dict[str, dict[dt.datetime, int]] = defaultdict(dict)
    for at, event_type, events in table.rows:
        by_type[event_type][dt.datetime.fromisoformat(at)] = events
    moments = sorted({at for series in by_type.values() for at in series})
    base = [0] * len(moments)
    for colour, (event_type, series) in zip(_COLOURS * 9, sorted(by_type.items()), strict=False):
        values = [series.get(at, 0) for at in moments]
        axes.bar(moments, values, width=step * 0.9, align="edge", bottom=base, label=event_type, color=colour)
        base = [a + b for a, b in zip(base, values, strict=True)]
    # A single bar is not as wide as the picture.
    room = max((20 * step - (moments[-1] - moments[0])) / 2, step)
    axes.set_xlim(moments[0] - room, moments[-1] + room + step)
    axes.set_xlabel(f"{moments[0]:%Y-%m-%d}, UTC")
    axes.set_ylabel(f"events in {name.replace('the ', 'a ')}")
    axes.grid(axis="y", color="#e6ebf0")
    axes.legend(frameon=False, ncols=4, loc="upper left", bbox_to_anchor=(0, 1.14))
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_major_formatter(
        ticker.FuncFormatter(lambda x, _: _moment(dates.num2date(x), moments[-1] - moments[0]))  # type: ignore[no-untyped-call]
    )
    return _png(figure)


def _moment(at: dt.datetime, whole: dt.timedelta) -> str:
    """Return a time as short as it can be."""
    if whole > dt.timedelta(days=3):
        return f"{at:%b %d}"
    if whole > dt.timedelta(days=1):
        return f"{at:%b %d %H:%M}"
    text = f"{at:%H:%M:%S.%f}".rstrip("0").rstrip(".")
    return text.removesuffix(":00") if whole > dt.timedelta(minutes=5) else text


def _latency(table: Table) -> bytes:
    rows = sorted(table.rows, key=lambda row: row[3], reverse=True)[:_MOST_BARS][::-1]
    figure, axes = _figure(1.2 + 0.34 * len(rows))
    places = range(len(rows))
    for place, row in zip(places, rows, strict=True):
        axes.plot([row[3], row[6]], [place, place], color="#c3ced8", linewidth=3, zorder=1)
    for colour, column, label in ((_COLOURS[0], 3, "median"), (_COLOURS[1], 5, "p95"), (_COLOURS[4], 6, "p99")):
        axes.scatter([row[column] for row in rows], list(places), color=colour, label=label, zorder=2, s=28)
    axes.set_yticks(list(places), [row[1] for row in rows])
    axes.set_xlabel("milliseconds from publication until it can be received")
    axes.set_xlim(left=0)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(axis="x", color="#e6ebf0")
    axes.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    return _png(figure)


def _bars(labels: list[str], values: list[int], xlabel: str, colour: str) -> bytes:
    from matplotlib import ticker  # noqa: PLC0415 - of the extra

    figure, axes = _figure(1.0 + 0.3 * len(labels))
    bars = axes.barh(labels[::-1], values[::-1], color=colour)
    _finish(axes, bars, values, xlabel, ticker)
    return _png(figure)


def _bars_below(labels: list[str], values: list[int], xlabel: str, colour: str) -> bytes:
    """Draw bars below their labels, which are long."""
    from matplotlib import ticker  # noqa: PLC0415 - of the extra

    figure, axes = _figure(1.0 + 0.55 * len(labels))
    places = range(len(labels))
    bars = axes.barh(list(places), values[::-1], height=0.38, color=colour)
    for place, label in zip(places, labels[::-1], strict=True):
        axes.text(0, place + 0.26, f" {label}", va="bottom")
    axes.set_yticks([])
    axes.set_ylim(-0.4, len(labels) - 0.25)
    _finish(axes, bars, values, xlabel, ticker)
    return _png(figure)


def _finish(axes: Any, bars: Any, values: list[int], xlabel: str, ticker: Any) -> None:
    axes.bar_label(bars, labels=[f"{value:,}" for value in values[::-1]], padding=4)
    axes.margins(x=0.12)
    axes.set_xlabel(xlabel)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=8, integer=True))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))


def _matches(table: Table) -> bytes:
    rows = table.rows[:_MOST_BARS]
    return _bars([row[1] for row in rows], [row[2] for row in rows], "events matched", _COLOURS[0])


def _exceptions(table: Table) -> bytes:
    rows = table.rows[:_MOST_BARS]
    labels = [f"{row[3][:90]}{'…' if len(row[3]) > 90 else ''} ({row[1]}, {row[4]})" for row in rows]
    return _bars_below(labels, [row[5] for row in rows], "events", _COLOURS[4])


_PLOTS: dict[str, Callable[[Table], bytes]] = {
    "throughput": _throughput,
    "latency": _latency,
    "matches": _matches,
    "exceptions": _exceptions,
}
