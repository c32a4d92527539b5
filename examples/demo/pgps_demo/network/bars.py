"""What is seen while a network works: bars that fill, and what is done to it on purpose."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

__all__ = ["Bars", "Row"]

Row = tuple[str, str, int]
"""What, at which broker, and how many: worked out from the raw data, not what the broker says."""


class Bars:
    """Bars for what is published and for what arrives, and a line for each thing that is done to the network."""

    def __init__(self, console: Console, published: Sequence[Row], arriving: Sequence[Row]) -> None:
        self._began = time.monotonic()
        self._out, self._in = _progress(console), _progress(console)
        self._tasks = {name: (self._out, self._out.add_task(name, total=n, who=who)) for name, who, n in published}
        self._tasks |= {name: (self._in, self._in.add_task(name, total=n, who=who)) for name, who, n in arriving}
        self._done_to_it = Text("")
        self._live = Live(
            Group(
                Text("published", "bold"), self._out, Text("\narrived, over links", "bold"), self._in, self._done_to_it
            ),
            console=console,
            refresh_per_second=8,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def fill(self, counts: Mapping[str, int]) -> None:
        """Fill the bars."""
        for name, count in counts.items():
            progress, task = self._tasks[name]
            progress.update(task, completed=count)

    def say(self, what: str) -> None:
        """Add a line."""
        seconds = f"  {time.monotonic() - self._began:4.1f} s  "
        self._done_to_it.append("\n" if self._done_to_it else "")
        self._done_to_it.append(seconds, "dim").append(what, "yellow")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.description:<16}"),
        TextColumn("[dim]{task.fields[who]:<11}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        console=console,
    )
