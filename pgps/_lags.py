"""Which subscriptions are furthest behind, found without asking all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pgps._metrics import Figure

__all__ = ["Lag", "Lags"]

_PORTION = 100
_WORST = 20


@dataclass(frozen=True, slots=True)
class Lag:
    """How many events wait for a subscription, and for how many seconds the oldest of them has."""

    subscription_id: int
    subscription: str
    depth: int
    lag_seconds: float


@dataclass(slots=True)
class Lags:
    """Each look asks the next hundred subscriptions, and again those that were furthest behind."""

    after: int = 0
    worst: list[Lag] = field(default_factory=list)

    @property
    def question(self) -> dict[str, Any]:
        """The parameters of `_catalogue.LAG_COUNTS` for the next look."""
        return {"after": self.after, "portion": _PORTION, "also": [one.subscription_id for one in self.worst]}

    def see(self, answer: Iterable[Lag]) -> bool:
        """Take what a look has found; True when all subscriptions have been asked, and it begins again."""
        found = list(answer)
        # Those that were asked again and come later have higher numbers than a whole portion.
        in_turn = sorted(one.subscription_id for one in found if one.subscription_id > self.after)[:_PORTION]
        self.after = in_turn[-1] if len(in_turn) == _PORTION else 0
        waiting = [one for one in found if one.lag_seconds > 0 or one.depth]
        self.worst = sorted(waiting, key=lambda one: (-one.lag_seconds, one.subscription))[:_WORST]
        return self.after == 0

    @property
    def figures(self) -> list[Figure]:
        """The figures of those that are furthest behind."""
        return [
            Figure(f"pgps_subscription_{name}", "gauge", {"subscription": one.subscription}, value)
            for one in self.worst
            for name, value in (("waiting_events", float(one.depth)), ("lag_seconds", one.lag_seconds))
        ]
