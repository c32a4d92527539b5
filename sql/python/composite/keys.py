"""Partition keys as text, and which serials of a key still count, as ranges."""

import hashlib
import json
import re
import zlib
from bisect import bisect_left
from decimal import Decimal
from json.encoder import encode_basestring as quoted
from typing import Any, Optional

Ranges = list[tuple[int, int]]  # from, up to and without

KEY_BYTES = 1000  # what an entry of an index has room for
EVERYTHING = -(1 << 62)


def key_of(values: list[Any]) -> str:
    """Return a key as the text of an array: numbers that are equal in SQL are written the same."""
    text = "[" + ",".join(write_value(value) for value in values) + "]"
    data = text.encode()
    return text if len(data) <= KEY_BYTES else "#" + hashlib.sha256(data).hexdigest()


def key_of_text(text: Optional[str]) -> str:
    """Return the same of one text, or null."""
    return key_of([text]) if text is None or len(text) > KEY_BYTES // 8 else f"[{quoted(text)}]"


def share_of(key: Any, shares: int) -> int:
    """Return the number of the share that a key belongs to; without a partition there is one key."""
    return zlib.crc32(b"[]" if key == () else key.encode()) % shares


def canonical_key(payload: str, columns: tuple[str, ...]) -> str:
    """Return the key of an event."""
    values = json.loads(payload, parse_float=Decimal)
    return key_of([values.get(column) for column in columns])


def write_value(value: Any) -> str:
    """Return a value as JSON, a number in its shortest form."""
    if isinstance(value, Decimal):
        short = value.normalize()
        return format(short if short else abs(short), "f")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read_ranges(text: str) -> Ranges:
    """Return what PostgreSQL writes as an int8multirange."""
    return [(int(low), int(high)) for low, high in re.findall(r"\[(-?\d+),(-?\d+)\)", text)]


def write_ranges(ranges: Ranges) -> str:
    """Return ranges as PostgreSQL reads an int8multirange."""
    return "{" + ",".join(f"[{low},{high})" for low, high in ranges) + "}"


def live_ranges(old: Ranges, closed: list[int], since: int, serial: int, live: list[int]) -> Ranges:
    """Return ranges of serials that hold all rows that count, and no row that counts no more.

    old: the same before; closed: rows of old that are closed; what was written since has serials above `since`,
    all of it live. Serials that were never written may lie in a range.
    """
    ranges = [*old, (since + 1, serial + 1)] if serial > since else list(old)
    for gone in sorted(closed, reverse=True):
        at = next((i for i, (low, high) in enumerate(ranges) if low <= gone < high), None)
        if at is not None:
            low, high = ranges[at]
            ranges[at : at + 1] = [part for part in ((low, gone), (gone + 1, high)) if part[0] < part[1]]
    merged: Ranges = []
    for low, high in ranges:
        place = bisect_left(live, low)
        if place == len(live) or live[place] >= high:
            continue
        if merged and merged[-1][1] == low:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return merged
