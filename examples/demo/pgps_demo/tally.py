"""Counts of what has happened so far: publishers and consumers write them, and the display shows them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """Counts of one run. `latencies` are seconds from an event's INSERT to the consumer that has it."""

    published: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    rolled_back: int = 0
    rolled_back_events: int = 0
    savepoints: int = 0
    late: int = 0
    received: Counter[str] = field(default_factory=Counter)
    consumer_rollbacks: int = 0
    latencies: list[float] = field(default_factory=list)
