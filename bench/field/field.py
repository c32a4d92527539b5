"""What experiments share: who takes part, how long things last, and what they hand back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.field.rounds import Contender, compete
from bench.figures import Figure, ratios

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.field.plan import Plan
    from bench.field.rounds import Standing
    from bench.field.systems.base import System
    from bench.figures import Target
    from bench.house import House

__all__ = ["Cell", "Field", "Result", "Sheet", "short"]


def short(value: float) -> str:
    """Return a number with three digits, or in thousands."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


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
        """Return what counts, a round at a time."""
        return [getattr(one, self.metric) for one in self.standing.outcomes]

    def record(self) -> dict[str, Any]:
        """Return it as raw results keep it."""
        return {
            "table": self.table, "series": self.series, "x": self.x, "metric": self.metric,
            "samples": self.samples, **self.standing.record(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table that is no comparison: text by text."""

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
        """Add what a competition gave."""
        self.cells += [Cell(table, series, str(x), standing, metric) for series, standing in standings.items()]

    def against(self, what: str, mine: Standing, theirs: Standing, target: Target | None, metric: str = "rate") -> None:
        """Add the paired comparison of two contenders of one competition, where both came to their end."""
        pgps = [getattr(one, metric) for one in mine.outcomes]
        other = [getattr(one, metric) for one in theirs.outcomes]
        if mine.error is None and theirs.error is None and pgps:
            self.figures.append(Figure(what, ratios(pgps, other), target, pgps, other, "/s"))


@dataclass(slots=True)
class Field:
    """The systems that are here, and the house they are measured in."""

    house: House
    systems: dict[str, System]
    long: bool = False

    def these(self, *names: str) -> list[System]:
        """Return those of the named systems that are here."""
        return [self.systems[name] for name in names if name in self.systems]

    def seconds(self, full: float) -> float:
        """Return how long a round takes."""
        return 0.5 if self.house.quick else full

    def points(self, full: Sequence[int], quick: Sequence[int]) -> Sequence[int]:
        """Return at how many subscribers, or batches, is measured."""
        return quick if self.house.quick else full

    def compete(
        self, entries: Iterable[tuple[str, System | None, Plan]], *, seconds: float, rate: float | None = None,
        events: int | None = None,
    ) -> dict[str, Standing]:  # fmt: skip
        """Run the entries whose system is here, by label."""
        contenders = [Contender(label, system, plan) for label, system, plan in entries if system is not None]
        return compete(self.house, contenders, seconds=seconds, rate=rate, events=events)
