"""How much one step may make: an operator that pairs each with each can make more than any memory holds."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lexer import SqlTextError

MADE, MADE_OF_ONE = 200_000, 2
WRITTEN, WRITTEN_OF_ONE = 1 << 28, 1 << 12
WRITTEN_OF_LARGE = 4  # times what events and open occurrences have
WRITTEN_AT_ONCE = 1 << 25
TICKS = 1_000_000


class TooMuch(SqlTextError):
    """Say that a step would make too much."""

    def __init__(self, what: str) -> None:
        hint = "Give it a smaller max_open, `within` or partition_by, or another context."
        super().__init__(f"the events of one batch make more than {what}", 1, hint, sqlstate="54000")


def combinations_allowed(events: int, nodes: int, left: int = MADE) -> int:
    """Return how many combinations a step of so many events may make, with a graph of so many nodes.

    left: what the composite events before it in the same step have left of what is allowed beside that.
    """
    return left + MADE_OF_ONE * events * nodes


def portions(texts: Iterable[str], events: int, at_hand: Callable[[], int]) -> Iterator[list[str]]:
    """Yield what a step of so many events writes, in portions that are written at once, unless it is too much.

    at_hand: asked for how many bytes the events and what is open have, when it seems to be too much.
    """
    allowed = WRITTEN + WRITTEN_OF_ONE * events
    found: list[str] = []
    size, full = 0, WRITTEN_AT_ONCE
    for text in texts:
        size += len(text)
        found.append(text)
        if size > full:
            if size > allowed:
                allowed = max(allowed, WRITTEN_OF_LARGE * at_hand())
            if size > allowed:
                raise TooMuch(f"{allowed >> 20:,} MB of constituents")
            yield found
            found, full = [], size + WRITTEN_AT_ONCE
    if found:
        yield found


def rows_in_portions(rows: list[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows, whose last column is text, in portions that are written at once: an array has 1 GB."""
    first, size = 0, 0
    for place, row in enumerate(rows):
        size += len(row[-1])
        if size > WRITTEN_AT_ONCE:
            yield rows[first : place + 1]
            first, size = place + 1, 0
    if first < len(rows):
        yield rows[first:] if first else rows
