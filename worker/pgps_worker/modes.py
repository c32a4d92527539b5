"""Loops that are always in one of a few modes, and tables of the changes of mode that are allowed."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Modes"]

M = TypeVar("M", bound=Enum)


class Modes(Generic[M]):
    """The mode that a loop is in.

    `ways` has for each mode those that may follow, and what leads there. It is
    the documentation of the loop, and `to` makes sure that the loop agrees with it.
    """

    def __init__(self, first: M, ways: Mapping[M, Mapping[M, str]]) -> None:
        self.now = first
        self._ways = ways

    def to(self, following: M) -> None:
        """Change to another mode, or stay. Raises ValueError when that mode may not follow."""
        if following is self.now:
            return
        if following not in self._ways[self.now]:
            raise ValueError(f"{self.now.name} is not followed by {following.name}")
        self.now = following
