"""The display while a network works: progress bars, and a line for each failure that is caused on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from pgps_demo.board import Board

__all__ = ["Bars", "Row"]

Row = tuple[str, str, int]
"""What, at which broker, and how many: worked out from the raw data, not what the broker says."""


class Bars(Board):
    """Bars for what is published and for what arrives, and a line for each thing that is done to the network."""

    def __init__(self, console: Console, published: Sequence[Row], arriving: Sequence[Row]) -> None:
        super().__init__(console, "arrived, over links", text_is_last=True)
        for name, who, total in published:
            self.publishes(name, name, who, total)
        for name, who, total in arriving:
            self.receives(name, name, who, total)

    def fill_all(self, counts: Mapping[str, int]) -> None:
        """Fill the bars."""
        for name, count in counts.items():
            self.fill(name, count)

    def say(self, what: str) -> None:
        """Add a line."""
        seconds = f"  {self.seconds():4.1f} s  "
        self._text.append("\n" if self._text else "")
        self._text.append(seconds, "dim").append(what, "yellow")
