"""The figures that a line of the table has measured, with their targets."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Figure", "Target", "percentile"]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the median of a figure's samples."""

    sense: Literal["at most", "at least"]
    value: float
    unit: str = "x"

    def met(self, reached: float) -> bool:
        """Return whether a figure keeps the bound."""
        return reached <= self.value if self.sense == "at most" else reached >= self.value

    def __str__(self) -> str:
        sign = "≤" if self.sense == "at most" else "≥"
        return f"{sign} {self.value:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: samples are one for each run, ratios where `other` was measured as well.

    `target` is None for what is only reported. `pgps` and `other` are raw
    measurements in `unit`, pair by pair.
    """

    what: str
    samples: list[float]
    target: Target | None = None
    pgps: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    unit: str = ""
    note: str = ""

    @property
    def reached(self) -> float:
        """The median."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest sample."""
        return min(self.samples), max(self.samples)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.target.met(self.reached)


def ratios(pgps: list[float], other: list[float]) -> list[float]:
    """Return one ratio for each pair."""
    return [mine / theirs for mine, theirs in zip(pgps, other, strict=True)]


def compare(
    what: str,
    pgps: list[float],
    other: list[float],
    *,
    unit: str,
    target: Target | None = None,
    inverse: bool = False,
    note: str = "",
) -> Figure:
    """Return the figure of a paired comparison; `inverse` when the ratio is other to pgps."""
    samples = ratios(other, pgps) if inverse else ratios(pgps, other)
    return Figure(what, samples, target, pgps, other, unit, note)


def percentile(values: list[float], part: float) -> float:
    """Return the value below which `part` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
