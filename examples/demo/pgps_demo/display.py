"""What is seen while it runs: steps with a tick, and bars that fill."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

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


class Bars:
    """The bars of the run. Their ends are what was worked out from the raw data, not what the broker says."""

    def __init__(self, console: Console, data: Data, wanted: Sequence[Wanted], tally: Tally) -> None:
        self._tally = tally
        self._began = time.monotonic()
        self._out = _progress(console)
        self._in = _progress(console)
        self._published = {
            "readings": self._out.add_task("glucose_reading", total=len(data.readings), who="8 homes", note=""),
            "quotes": self._out.add_task("stock_quote", total=len(data.quotes), who="2 exchanges", note=""),
        }
        self._delivered: dict[str, TaskID] = {
            each.subscription: self._in.add_task(each.subscription, total=each.count, who=each.owner, note="")
            for each in wanted
        }
        self._mishaps = Text("")
        self._live = Live(
            Group(
                Text("published", "bold"), self._out, self._mishaps, Text("\nreceived and settled", "bold"), self._in
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

    def watch(self, standings: list[Standing]) -> None:
        """Fill the bars."""
        seconds = time.monotonic() - self._began
        for what, task in self._published.items():
            count = self._tally.published[what]
            self._out.update(task, completed=count, note=f"{count / seconds:,.0f}/s")
        tally = self._tally
        self._mishaps.plain = (
            f"  on purpose: {tally.rolled_back} rolled back, {tally.savepoints} in part, {tally.late} late commits; "
            f"{tally.consumer_rollbacks} consumers rolled back"
        )
        for standing in standings:
            notes = [f"{standing.depth:,} waiting"] if standing.depth else []
            notes += [f"[red]{standing.failed:,} failed[/]"] if standing.failed else []
            # Of what several sessions share, only they know how much they have.
            count = max(standing.delivered - standing.failed, tally.received[standing.name])
            self._in.update(self._delivered[standing.name], completed=count, note=", ".join(notes))


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.description:<16}"),
        TextColumn("[dim]{task.fields[who]:<11}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )
