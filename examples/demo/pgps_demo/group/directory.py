"""The replicated directory: the last quotes of each company. Each update is a message for one entry point."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

from pgps_demo.data import Quote

__all__ = ["ADD", "CHECKPOINT", "KEPT", "REMOVE", "REPORT", "Directory", "expect", "updates"]

ADD, REMOVE, CHECKPOINT, REPORT = 1, 2, 3, 4
"""The entry points of a member."""

KEPT = 60
"""So many quotes of a company are in the directory; older ones are removed."""


class Directory:
    """What one member holds: the closing price of a company on a day, by both."""

    def __init__(self) -> None:
        """Begin empty, as a process does that has just been started."""
        self.entries: dict[str, str] = {}

    def apply(self, entry: int, message: Any) -> None:
        """Do what a message says; raises KeyError when it removes what is not there."""
        if entry == ADD:
            self.entries[message["key"]] = message["close"]
        elif entry == REMOVE:
            del self.entries[message["key"]]
        elif entry == CHECKPOINT:
            self.entries = dict(message)


def updates(quotes: Sequence[Quote]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield an entry point and a message for each update, in order: a quote comes, and an old one goes."""
    there: defaultdict[str, deque[str]] = defaultdict(deque)
    for quote in quotes:
        key = _key(quote)
        there[quote.symbol].append(key)
        yield ADD, {"key": key, "close": str(quote.close)}
        if len(there[quote.symbol]) > KEPT:
            yield REMOVE, {"key": there[quote.symbol].popleft()}


def expect(quotes: Sequence[Quote]) -> dict[str, str]:
    """Work out, without any update, what a member must hold at the end."""
    found: dict[str, str] = {}
    for symbol in {quote.symbol for quote in quotes}:
        last = [quote for quote in quotes if quote.symbol == symbol][-KEPT:]
        found |= {_key(quote): str(quote.close) for quote in last}
    return found


def _key(quote: Quote) -> str:
    return f"{quote.symbol} {quote.day}"
