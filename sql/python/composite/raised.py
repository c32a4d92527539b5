"""What code of users' raises, and how it is told from what the server raises itself."""

from typing import Any


class RaisedError(Exception):
    """Hold what a condition raised."""


def is_fatal(error: Any) -> bool:
    """Tell whether an error is not that of what was asked: cancelled, out of memory, a conflict, a shutdown."""
    return (getattr(error, "sqlstate", None) or "")[:2] in ("40", "53", "57", "58", "XX")


def is_too_large(error: Any) -> bool:
    """Tell whether an error says that a value, or what is made of many, is too large; as pgps_internal.is_too_large."""
    state = getattr(error, "sqlstate", None) or ""
    return state in ("54000", "53200") or (state == "XX000" and "invalid memory alloc request size" in str(error))
