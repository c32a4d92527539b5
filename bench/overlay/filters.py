"""The filters of the model: which there are, how popular each is, and which one implies another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Filters"]


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters `symbol = s and price > limit`, and the one for every event, which is the last.

    The limits of a symbol stand beside each other, the lowest first: it implies the others. With one limit a filter
    is `symbol = s`. Symbols are wanted as Zipf's law has it, the limits of one alike.
    """

    symbols: int
    limits: int = 1
    share_of_all: float = 0.0
    covering: bool = True

    @property
    def count(self) -> int:
        """Return how many different filters there are."""
        return self.symbols * self.limits + 1

    def popularity(self) -> NDArray[np.float64]:
        """Return how likely a subscription is to have each filter."""
        ranks = 1 / np.arange(1, self.symbols + 1)
        each = np.repeat(ranks / ranks.sum() / self.limits, self.limits)
        return np.append(each * (1 - self.share_of_all), self.share_of_all)

    def draw(self, brokers: int, subscriptions: int, random: np.random.Generator) -> NDArray[np.bool_]:
        """Return which filters each broker has when so many subscriptions are spread over all."""
        chance = -np.expm1(subscriptions / brokers * np.log1p(-self.popularity()))
        return np.asarray(random.random((brokers, self.count)) < chance)

    def told(self, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the wanted filters are told to a neighbour: those that no other one implies."""
        if not self.covering:
            return wanted
        if wanted[-1]:
            only = np.zeros_like(wanted)
            only[-1] = True
            return only
        table = wanted[:-1].reshape(self.symbols, self.limits)
        lowest = np.zeros_like(table)
        rows = np.flatnonzero(table.any(axis=1))
        lowest[rows, table[rows].argmax(axis=1)] = True
        return np.append(lowest.ravel(), np.False_)

    def is_implied(self, key: int, told: NDArray[np.bool_]) -> bool:
        """Return whether a neighbour that has been told these filters need not be told another one."""
        if told[key]:
            return True
        if not self.covering:
            return False
        symbol = key // self.limits
        return bool(told[-1]) or (key < self.count - 1 and bool(told[symbol * self.limits : key].any()))

    def covers(self, known: NDArray[np.bool_]) -> int:
        """Return how many pairs of known filters are noted, one of which implies the other."""
        if not self.covering:
            return 0
        table = known[:-1].reshape(self.symbols, self.limits)
        sizes = table.sum(axis=1).astype(np.int64)
        return int((sizes * (sizes - 1) // 2).sum() + (sizes.sum() if known[-1] else 0))

    def matching(self, symbol: int, limit: int) -> NDArray[np.intp]:
        """Return the filters that an event of a symbol passes whose price is just above a limit."""
        low = symbol * self.limits
        return np.append(np.arange(low, low + limit + 1), self.count - 1)
