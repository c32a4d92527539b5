"""Figures of a broker in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Figure", "exposition", "label"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its metric, whether that is a counter or a gauge, its labels, and its value."""

    metric: str
    kind: str
    labels: Mapping[str, str]
    value: float


def label(text: str) -> str:
    """Return a text as the value of a label is written, without the quotes around it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def exposition(figures: Iterable[Figure]) -> str:
    """Return figures as a scraper reads them: all of a metric together, below its kind."""
    metrics: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        metrics.setdefault((figure.metric, figure.kind), []).append(figure)
    return "".join(f"# TYPE {metric} {kind}\n{_lines(found)}" for (metric, kind), found in metrics.items())


def _lines(figures: Sequence[Figure]) -> str:
    lines = []
    for figure in figures:
        labels = ",".join(f'{name}="{label(text)}"' for name, text in sorted(figure.labels.items()))
        lines.append(f"{figure.metric}{f'{{{labels}}}' if labels else ''} {figure.value:.15g}\n")
    return "".join(lines)
