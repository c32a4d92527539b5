"""How much one step may make: an operator that pairs each with each can make more than any memory holds."""

from collections.abc import Iterable

from lexer import SqlTextError

MADE, MADE_OF_ONE = 200_000, 2
WRITTEN, WRITTEN_OF_ONE = 1 << 28, 1 << 12
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


def measured(texts: Iterable[str], events: int) -> list[str]:
    """Return what a step of so many events writes, unless that is too much."""
    allowed = WRITTEN + WRITTEN_OF_ONE * events
    found: list[str] = []
    size = 0
    for text in texts:
        size += len(text)
        if size > allowed:
            raise TooMuch(f"{allowed >> 20:,} MB of constituents")
        found.append(text)
    return found
