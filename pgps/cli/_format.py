"""Values as people read them. JSON output never comes through here."""

from __future__ import annotations

import datetime as dt
import re
import shlex
from decimal import Decimal
from typing import Any

from pgps._printable import printable

__all__ = [
    "ago",
    "argument",
    "clip",
    "count",
    "duration",
    "literal",
    "plain",
    "printable",
    "quoted",
    "rate",
    "size",
    "yes_no",
]

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")
_SPANS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
_CLIP = 72


def plain(value: Any) -> str:
    """Return any value on one line; None is empty, a list is comma-separated."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return yes_no(value)
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    if isinstance(value, dt.datetime):
        return value.astimezone().isoformat(sep=" ", timespec="seconds")
    return printable(str(value))


def clip(value: Any) -> str:
    """Return a value on one line of at most 72 characters."""
    text = plain(value)
    return text if len(text) <= _CLIP else text[: _CLIP - 1] + "…"


def yes_no(value: Any) -> str:
    """Return yes, no, or nothing for None."""
    return "" if value is None else "yes" if value else "no"


def count(value: int | None) -> str:
    """Return a number with thousands separated."""
    return "" if value is None else f"{value:,}"


def counted(value: int, one: str, many: str | None = None) -> str:
    """Return a number with what it counts: 1 event, 2,000 events. many: None = with an s."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def rate(value: float | Decimal | None) -> str:
    """Return events a second: two digits below ten, none above a hundred."""
    if value is None:
        return ""
    number = float(value)
    if number >= 100:
        return f"{number:,.0f}/s"
    return f"{number:.1f}/s" if number >= 10 or number == 0 else f"{number:.2g}/s"


def size(value: int | None) -> str:
    """Return bytes in the unit that leaves at most four digits."""
    if value is None:
        return ""
    number, unit = float(value), 0
    while number >= 10_000 and unit < len(_SIZES) - 1:
        number, unit = number / 1_024, unit + 1
    return f"{number:.0f} {_SIZES[unit]}"


def duration(seconds: float | Decimal | None) -> str:
    """Return a time span in its largest sensible unit."""
    if seconds is None:
        return ""
    span = float(seconds)
    for length, unit in _SPANS:
        if abs(span) >= 2 * length:
            return f"{span / length:.0f} {unit}"
    if abs(span) >= 10:
        return f"{span:.0f} s"
    return f"{span:.1f} s" if abs(span) >= 1 else f"{span * 1_000:.0f} ms"


def argument(name: str) -> str:
    """Return a name as it is typed behind a command: in double quotes when SQL wants that, safe from the shell."""
    return shlex.quote(quoted(name))


def quoted(name: str) -> str:
    """Return a name as it is typed in SQL."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_$]*", name) else '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as it is typed as a value in SQL."""
    return "'" + text.replace("'", "''") + "'"


def ago(moment: Any) -> str:
    """Return how long ago a moment was, by this machine's clock."""
    if not isinstance(moment, dt.datetime):
        return plain(moment)
    seconds = (dt.datetime.now(dt.UTC) - moment).total_seconds()
    return "now" if seconds < 1 else f"{duration(seconds)} ago"
