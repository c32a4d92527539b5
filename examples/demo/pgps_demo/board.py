"""A live display of progress bars for what is published and what is received."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

__all__ = ["Board"]


class Board:
    """Two groups of bars, shown while it is entered, and a text: behind the first group or behind the second.

    The ends of the bars are what was worked out from the raw data, not what
    the broker says.
    """

    def __init__(self, console: Console, title: str, *, text_is_last: bool) -> None:
        self._began = time.monotonic()
        self._out, self._in = _progress(console), _progress(console)
        self._tasks: dict[str, tuple[Progress, TaskID]] = {}
        self._text = Text("")
        parts: list[RenderableType] = [Text("published", "bold"), self._out, Text(f"\n{title}", "bold"), self._in]
        parts.insert(4 if text_is_last else 2, self._text)
        self._live = Live(Group(*parts), console=console, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if not self._live.console.is_terminal:  # where it leaves its last line open
            self._live.console.line()

    def seconds(self) -> float:
        """Return for how many seconds it has been shown."""
        return time.monotonic() - self._began

    def publishes(self, key: str, name: str, who: str, total: int) -> None:
        """Add a bar for what is published."""
        self._tasks[key] = self._out, self._out.add_task(name, total=total, who=who, note="")

    def receives(self, key: str, name: str, who: str, total: int) -> None:
        """Add a bar for what is received."""
        self._tasks[key] = self._in, self._in.add_task(name, total=total, who=who, note="")

    def fill(self, key: str, count: int, note: str = "") -> None:
        """Fill a bar, and put a note behind it."""
        progress, task = self._tasks[key]
        progress.update(task, completed=count, note=note)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.description:<16}"),
        TextColumn("[dim]{task.fields[who]:<11}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )
