"""The display while it runs: steps with a tick, and progress bars."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from pgps_demo.board import Board
from pgps_demo.data import Data
from pgps_demo.expect import Wanted
from pgps_demo.play import Standing
from pgps_demo.tally import Tally

__all__ = ["Bars", "Steps"]


class Steps:
    """Tells, on stderr, what is being done and how long it took."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextlib.contextmanager
    def step(self, doing: str) -> Iterator[list[str]]:
        """Show a spinner while something is done, then a tick, the seconds and what is added to the list."""
        began = time.monotonic()
        notes: list[str] = []
        with self.console.status(doing):
            yield notes
        line = Text.assemble(("✓ ", "bold green"), doing, (f"  {time.monotonic() - began:.1f} s", "dim"))
        if notes:
            line.append("  " + ", ".join(notes), "dim")
        self.console.print(line, soft_wrap=True)


class Bars(Board):
    """The bars of the run. Their totals are worked out from the raw data and not asked of the broker."""

    def __init__(self, console: Console, data: Data, wanted: Sequence[Wanted], tally: Tally) -> None:
        super().__init__(console, "received and settled", text_is_last=False)
        self._tally = tally
        self.publishes("readings", "glucose_reading", "8 homes", len(data.readings))
        self.publishes("quotes", "stock_quote", "2 exchanges", len(data.quotes))
        for each in wanted:
            self.receives(each.subscription, each.subscription, each.owner, each.count)

    def watch(self, standings: list[Standing]) -> None:
        """Fill the bars."""
        tally = self._tally
        seconds = self.seconds()
        for what in ("readings", "quotes"):
            count = tally.published[what]
            self.fill(what, count, f"{count / seconds:,.0f}/s")
        self._text.plain = (
            f"  on purpose: {tally.rolled_back} rolled back, {tally.savepoints} in part, {tally.late} late commits; "
            f"{tally.consumer_rollbacks} consumers rolled back"
        )
        for standing in standings:
            notes = [f"{standing.depth:,} waiting"] if standing.depth else []
            notes += [f"[red]{standing.failed:,} failed[/]"] if standing.failed else []
            # When several sessions share a subscription, only the sessions know how many events they have.
            count = max(standing.delivered - standing.failed, tally.received[standing.name])
            self.fill(standing.name, count, ", ".join(notes))
