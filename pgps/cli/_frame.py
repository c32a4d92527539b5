"""One look of `pgps top`: the numbers, and how they are drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pgps.cli._format import ago, clip, count, counted, duration, plain, rate, yes_no
from pgps.cli._output import Column, table
from pgps.cli._session import Row
from pgps.cli.links import COLUMNS as _LINKS
from pgps.cli.subscriptions import state_style

__all__ = ["Frame", "as_json", "render"]

_HISTORY = 60
_BARS = "▁▂▃▄▅▆▇█"
_MOST = 100
_AROUND = 12  # lines of a screen that are not rows of a table


@dataclass(slots=True)
class Frame:
    """The broker at one moment; `taken` is on the monotonic clock."""

    taken: float
    moment: Row
    types: list[Row]
    subscriptions: list[Row]
    workers: list[Row]
    links: list[Row] = field(default_factory=list)
    throughput: float = 0.0
    history: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))

    @property
    def summary(self) -> Row:
        """The sums over all types, subscriptions and workers."""
        lags = [row["waiting_seconds"] for row in self.types if row["waiting_seconds"] is not None]
        return {
            "database": self.moment["database"],
            "now": self.moment["now"],
            "rate": self.throughput,
            "waiting": sum(row["waiting"] or 0 for row in self.types),
            "lag_seconds": max(lags, default=None),
            "depth": sum(row["depth"] or 0 for row in self.subscriptions),
            "failed": sum(row["failed"] or 0 for row in self.subscriptions),
            "gaps": sum(row["gaps"] or 0 for row in self.links),
        }

    def measure(self, before: Frame | None) -> None:
        """Compute what has happened since the frame before; without one, trust the broker's own rates."""
        if before is not None:
            seconds = max(self.taken - before.taken, 0.001)
            published = {row["event_type"]: row["published"] for row in before.types}
            crossed = {(row["name"], row["neighbour"]): row for row in before.links}
            for row in self.links:
                if earlier := crossed.get((row["name"], row["neighbour"])):
                    for way in ("sent", "received"):
                        since = (row[f"events_{way}"] or 0) - (earlier[f"events_{way}"] or 0)
                        row[f"{way}_rate"] = max(since, 0) / seconds
            for row in self.types:
                since = (row["published"] or 0) - (published.get(row["event_type"]) or 0)
                row["rate"] = max(since, 0) / seconds
            self.history = before.history
        self.throughput = sum((float(row["rate"] or 0.0) for row in self.types), 0.0)
        self.history.append(self.throughput)


def as_json(frame: Frame) -> dict[str, Any]:
    """Return a frame as what --json writes."""
    return {
        **frame.summary,
        "event_types": frame.types,
        "subscriptions": frame.subscriptions,
        "workers": frame.workers,
        "links": frame.links,
    }


_RED = "bold red"

_TYPES = [
    Column("event_type", "type"),
    Column("rate", format=rate, right=True),
    Column("published", format=count, right=True),
    Column("matched", format=count, right=True),
    Column("repeats", format=count, right=True),
    Column("waiting", format=count, right=True),
    Column("waiting_seconds", "oldest", format=duration, right=True, style=lambda v: _RED if v and v > 10 else ""),
    Column("last_batch_at", "last batch", format=ago),
]
_SUBSCRIPTIONS = [
    Column("name", "subscription"),
    Column("event_type", "type"),
    Column("state", style=state_style),
    Column("rate", format=rate, right=True),
    Column("depth", format=count, right=True),
    Column("lag_seconds", "lag", format=duration, right=True, style=lambda v: _RED if v and v > 10 else ""),
    Column("retrying", format=count, right=True),
    Column("failed", format=count, right=True, style=lambda v: _RED if v else ""),
    Column("last_error", format=lambda v: clip((v or "").partition("\n")[0])),
]
_WORKERS = [
    Column("worker"),
    Column("service"),
    Column("pid", right=True),
    Column("state", format=plain),
    Column("leader", format=yes_no),
    Column("started_at", "up", format=lambda v: ago(v).removesuffix(" ago")),
    Column("client_addr", "from", format=lambda v: plain(v) or "local"),
]


def render(frame: Frame, *, height: int | None, width: int) -> RenderableType:
    """Return the screen: as many rows as fit into `height` lines, a hundred of each when that is None."""
    types = sorted(frame.types, key=lambda row: (-float(row["rate"] or 0), -(row["waiting"] or 0), row["event_type"]))
    subscriptions = sorted(
        frame.subscriptions, key=lambda row: (row["state"] == "active", -(row["depth"] or 0), row["name"])
    )
    for_types = for_subscriptions = _MOST
    if height is not None:
        around = _AROUND + len(frame.workers) + (len(frame.links) + 4 if frame.links else 0)
        room = max(height - around, 2)
        for_types = min(len(types), max(room // 3, 1))
        for_subscriptions = max(room - for_types, 1)
    parts: list[RenderableType] = [_head(frame, width), Text()]
    parts += _section(_TYPES, types, for_types, "no event types")
    parts += _section(_SUBSCRIPTIONS, subscriptions, for_subscriptions, "no subscriptions")
    if frame.links:
        parts += _section(_LINKS, frame.links, len(frame.links), "")
    parts += _section(_WORKERS, frame.workers, len(frame.workers), "no workers: pgps-worker --dsn DSN")
    return Group(*parts)


def _section(columns: Sequence[Column], rows: list[Row], most: int, nothing: str) -> list[RenderableType]:
    if not rows:
        return [Text(nothing, style="dim"), Text()]
    more = [Text(f"… {len(rows) - most} more", style="dim")] if len(rows) > most else [Text()]
    return [table(columns, rows[:most], wrap=False), *more]


def _head(frame: Frame, width: int) -> RenderableType:
    summary = frame.summary
    failed = summary["failed"]
    workers = len({row["worker"] for row in frame.workers})
    line = Text.assemble(
        (f"pgps {plain(summary['database'])}", "bold"),
        f"  {plain(summary['now'])[11:19]}  ",
        (f"{rate(frame.throughput)} dispatched", "cyan"),
        f"  {count(summary['waiting'])} to dispatch",
        f"  {count(summary['depth'])} to consume  ",
        (f"{count(failed)} exceptions", _RED if failed else ""),
        *([(f"  {counted(summary['gaps'], 'gap')}", _RED)] if summary["gaps"] else []),
        f"  {count(workers)} worker{'' if workers == 1 else 's'}",
    )
    if len(frame.history) < 2:
        return line
    return Group(line, Text(_sparkline(list(frame.history)[-width:]), style="cyan"))


def _sparkline(values: Sequence[float]) -> str:
    most = max(values)
    if most <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)
