"""What experiments share: the systems that take part, the durations, and the form of the results."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from bench.field.rounds import Contender, Standing, compete
from bench.figures import Figure, ratios

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bench.field.plan import Plan
    from bench.field.systems.base import System
    from bench.figures import Target
    from bench.house import House

__all__ = ["Cell", "Field", "Result", "Sheet", "ordered", "short"]

_Point = TypeVar("_Point")
_GIVEN_UP = 2
"""How often a contender may fail in an experiment before the others go on without it."""


def short(value: float) -> str:
    """Return a number with three digits, or in thousands."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ordered(points: Iterable[str]) -> list[str]:
    """Return the points of a table, each once; numbers are sorted, because the outermost are measured first."""
    found = list(dict.fromkeys(points))
    with contextlib.suppress(ValueError):
        found.sort(key=lambda point: float(point.replace(",", "")))
    return found


@dataclass(frozen=True, slots=True)
class Cell:
    """One contender at one point of an experiment.

    `series` and `x` place it in the table and in the plot; `metric` is the
    attribute of an outcome that counts.
    """

    table: str
    series: str
    x: str
    standing: Standing
    metric: str = "rate"

    @property
    def samples(self) -> list[float]:
        """Return the figure that counts, one for each round."""
        return [getattr(one, self.metric) for one in self.standing.outcomes]

    def record(self) -> dict[str, Any]:
        """Return it as raw results keep it."""
        return {
            "table": self.table, "series": self.series, "x": self.x, "metric": self.metric,
            "samples": self.samples, **self.standing.record(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of texts that compares nothing."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(slots=True)
class Result:
    """What an experiment has found: cells for tables and plots, figures against targets, sheets, and raw material."""

    cells: list[Cell] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    failed: bool = False

    def add(self, table: str, x: object, standings: dict[str, Standing], metric: str = "rate") -> None:
        """Add the results of a competition."""
        self.cells += [Cell(table, series, str(x), standing, metric) for series, standing in standings.items()]

    def against(self, what: str, mine: Standing, theirs: Standing, target: Target | None, metric: str = "rate") -> None:
        """Add the paired comparison of two contenders of one competition, if both completed it."""
        pgps = [getattr(one, metric) for one in mine.outcomes]
        other = [getattr(one, metric) for one in theirs.outcomes]
        if mine.error is None and theirs.error is None and pgps:
            self.figures.append(Figure(what, ratios(pgps, other), target, pgps, other, "/s"))


@dataclass(slots=True)
class Field:
    """The systems that are here, and the house they are measured in, until `deadline` (of time.monotonic)."""

    house: House
    systems: dict[str, System]
    long: bool = False
    deadline: float = float("inf")
    failures: Counter[str] = field(default_factory=Counter)

    def these(self, *names: str) -> list[System]:
        """Return those of the named systems that are here."""
        return [self.systems[name] for name in names if name in self.systems]

    def seconds(self, full: float) -> float:
        """Return how long a round takes."""
        return 0.5 if self.house.quick else full

    def points(self, full: Sequence[int], quick: Sequence[int]) -> Sequence[int]:
        """Return the numbers of subscribers, or of events in a batch, that are measured."""
        return quick if self.house.quick else full

    def paced(self, points: Sequence[_Point], result: Result) -> Iterator[_Point]:
        """Yield points while there is time for another one; the most important should come first."""
        longest = 0.0
        for number, point in enumerate(points):
            began = time.monotonic()
            if number and began + 0.7 * longest > self.deadline:
                left = ", ".join(str(one) for one in points[number:])
                result.notes.append(f"Not measured, since its time was up: {left}.")
                return
            yield point
            longest = max(longest, time.monotonic() - began)

    def compete(
        self, entries: Iterable[tuple[str, System | None, Plan]], *, seconds: float, rate: float | None = None,
        events: int | None = None,
    ) -> dict[str, Standing]:  # fmt: skip
        """Run the entries whose system is available; return how each did, by label."""
        here = [(label, system, plan) for label, system, plan in entries if system is not None]
        contenders = [Contender(*entry) for entry in here if self.failures[entry[0]] < _GIVEN_UP]
        standings = compete(
            self.house, contenders, seconds=seconds, rate=rate, events=events, deadline=self.deadline
        )  # fmt: skip
        for label, standing in standings.items():
            self.failures[label] += standing.error is not None
        given_up = Standing(error=f"left out: it had failed {_GIVEN_UP} times")
        return {label: standings.get(label, given_up) for label, _, _ in here}
