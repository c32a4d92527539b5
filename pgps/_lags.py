"""Which subscriptions are furthest behind, and which are busiest, found without asking all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pgps._metrics import Figure

__all__ = ["Lag", "Lags"]

_PORTION = 100
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Lag:
    """How many events wait for a subscription, for how many seconds the oldest has, how many a second it takes."""

    subscription_id: int
    subscription: str
    depth: int
    lag_seconds: float
    rate: float = 0.0


@dataclass(slots=True)
class Lags:
    """Each look asks the next hundred subscriptions, and again those that were furthest behind or busiest."""

    after: int = 0
    worst: list[Lag] = field(default_factory=list)
    busiest: list[Lag] = field(default_factory=list)

    @property
    def question(self) -> dict[str, Any]:
        """The parameters of `_catalogue.LAG_COUNTS` for the next look."""
        also = {one.subscription_id for one in (*self.worst, *self.busiest)}
        return {"after": self.after, "portion": _PORTION, "also": sorted(also)}

    def see(self, answer: Iterable[Lag]) -> bool:
        """Take what a look has found; True when all subscriptions have been asked, and it begins again."""
        found = list(answer)
        # Those that were asked again and come later have higher numbers than a whole portion.
        in_turn = sorted(one.subscription_id for one in found if one.subscription_id > self.after)[:_PORTION]
        self.after = in_turn[-1] if len(in_turn) == _PORTION else 0
        waiting = [one for one in found if one.lag_seconds > 0 or one.depth]
        self.worst = sorted(waiting, key=lambda one: (-one.lag_seconds, one.subscription))[:_SHOWN]
        busy = [one for one in found if one.rate > 0]
        self.busiest = sorted(busy, key=lambda one: (-one.rate, one.subscription))[:_SHOWN]
        return self.after == 0

    @property
    def figures(self) -> list[Figure]:
        """The figures of those that are furthest behind, and the rates of the busiest."""
        behind = [
            Figure(f"pgps_subscription_{name}", "gauge", {"subscription": one.subscription}, value)
            for one in self.worst
            for name, value in (("waiting_events", float(one.depth)), ("lag_seconds", one.lag_seconds))
        ]
        return behind + [
            Figure("pgps_subscription_events_per_second", "gauge", {"subscription": one.subscription}, one.rate)
            for one in self.busiest
        ]
