"""The workload of a system, and the events that must arrive."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["PORTFOLIOS", "Consume", "Filters", "Plan"]

Filters = Literal["none", "symbol", "portfolio"]
Consume = Literal["receive", "callback", "transaction", "ack-after-commit", "idempotent", "xa"]

PORTFOLIOS = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """Subscribers `0 … subscribers - 1`, and publishers of events numbered without gaps.

    filters: "symbol" gives subscriber k the events of symbol `k % symbols`;
    "portfolio" those whose symbol is in its portfolio, a stored table (each
    portfolio holds all symbols, as in the paper, so all match); `shared`
    percent of the subscribers have the same portfolio.
    consume: "receive" counts in the client; the others insert each event into
    an application table. `together` events are published in one transaction,
    `batch` is how many a consumer takes and acknowledges at once. With
    `fail_first` a consumer refuses every event once. `rival` is the way of
    doing it where a system has several. With `produce` only publishing counts:
    subscriptions exist, and nobody receives. `eager` systems that poll do so as
    often as they can be set to; otherwise all settings are the defaults.
    """

    subscribers: int = 1
    filters: Filters = "none"
    symbols: int = 10
    shared: int = 0
    publishers: int = 20
    together: int = 1
    consume: Consume = "receive"
    batch: int = 100
    fail_first: bool = False
    rival: str = ""
    synchronous: bool = True
    produce: bool = False
    eager: bool = True

    def portfolio(self, subscriber: int) -> int:
        """Return the portfolio of a subscriber: random, the same in each run."""
        if subscriber < self.subscribers * self.shared // 100:
            return 0
        return random.Random(subscriber).randrange(PORTFOLIOS)

    def wants(self, subscriber: int, number: int) -> bool:
        """Return whether an event has to reach a subscriber."""
        return self.filters != "symbol" or number % self.symbols == subscriber % self.symbols

    def share(self) -> float:
        """Return to how many subscribers an event goes, on average."""
        return self.subscribers / (self.symbols if self.filters == "symbol" else 1)

    def record(self) -> dict[str, Any]:
        """Return the plan in the form that client programs read."""
        portfolios = [self.portfolio(k) for k in range(self.subscribers)] if self.filters == "portfolio" else []
        return {**asdict(self), "portfolios": portfolios}
