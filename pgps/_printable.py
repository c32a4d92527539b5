"""Texts that others have written, for terminals and logs."""

from __future__ import annotations

__all__ = ["is_control", "printable"]


def printable(text: str, *, keep: str = "") -> str:
    """Replace control characters, so that data cannot drive the terminal it is shown on.

    Characters in `keep`, for example a newline, stay. Bidirectional overrides
    count as control characters: they show one thing and are another.
    """
    return "".join(c if c in keep or not is_control(c) else _escape(c) for c in text)


def is_control(c: str) -> bool:
    """Return True for a character that moves, colours or reorders what a terminal shows."""
    code = ord(c)
    return (
        code < 0x20
        or 0x7F <= code < 0xA0
        or code in (0x200B, 0x200E, 0x200F)
        or 0x2028 <= code <= 0x202E
        or 0x2066 <= code <= 0x2069
    )


def _escape(c: str) -> str:
    known = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return known.get(c) or (f"\\x{ord(c):02x}" if ord(c) < 0x100 else f"\\u{ord(c):04x}")
