"""What a page is: a path, a template, and a function that looks things up."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request

from pgps_console.database import Access, Row

__all__ = ["ROWS", "Look", "NotThere", "Page", "shorten"]

ROWS = 50
"""Lines of a table: few enough to be read, and to be sent again whenever one of them changes."""


class NotThere(Exception):
    """There is no such thing, or the role may not see it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a page: what the address says, and the visitor's connections."""

    request: Request
    access: Access

    def given(self, name: str, default: str = "") -> str:
        """Return a value behind the question mark."""
        return self.request.query_params.get(name, default).strip()

    def number(self, name: str) -> int | None:
        """Return a whole number behind the question mark, None when there is none."""
        text = self.given(name)
        return int(text) if re.fullmatch("-?[0-9]{1,18}", text) else None

    def part(self, name: str) -> str:
        """Return a part of the path, which `link` has written: a name may hold what divides the parts."""
        return unquote(str(self.request.path_params[name]))


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `title` is its entry in the menu, "" for none; `bare` ones answer htmx with their moving part alone."""

    path: str
    template: str
    look: Callable[[Look], Awaitable[dict[str, Any]]]
    title: str = ""
    live: bool = True
    bare: bool = True


def shorten(rows: list[Row], most: int = ROWS) -> bool:
    """Take the row away that was read only to know whether there are more, and say whether there are."""
    more = len(rows) > most
    del rows[most:]
    return more
