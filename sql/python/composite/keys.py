"""Partition keys as text, and which serials of a key still count, as ranges."""

import hashlib
import re
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from decimal import Decimal
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.encoder import encode_basestring as quoted
from typing import Any, Optional

Ranges = list[tuple[int, int]]  # from, up to and without

KEY_BYTES = 1000  # what an entry of an index has room for
EVERYTHING = -(1 << 62)
TOKEN = re.compile(r'["\[\]{},:]|[^\s"\[\]{},:]+')
SIGN, INNER_SIGN = re.compile(r'["\[\]{},:]'), re.compile(r'["\[\]{}]')
# What the type json alone takes: jsonb could not read it, so that the key becomes long enough to be a digest.
UNREADABLE = re.compile("[\0\ud800-\udfff]")
UNREAD = " " * KEY_BYTES
EXPONENT_DIGITS = 7


def key_of(array: str) -> str:
    """Return a key as the text of an array, which is JSON: numbers that are equal in SQL are written the same.

    It is read from token to token, so that no value of an event is too deep or has too many digits.
    """
    return limited("".join(map(write_token, tokens_of(array))))


def key_of_text(text: Optional[str]) -> str:
    """Return the same of one text, or null."""
    return limited("[null]" if text is None else f"[{write_text(text)}]")


def limited(key: str) -> str:
    """Return a key, or its digest where it is long."""
    if len(key) <= KEY_BYTES // 4:
        return key
    data = key.encode(errors="surrogatepass")
    return key if len(data) <= KEY_BYTES else "#" + hashlib.sha256(data).hexdigest()


def share_of(key: Any, shares: int) -> int:
    """Return the number of the share that a key belongs to; without a partition there is one key."""
    return zlib.crc32(b"[]" if key == () else key.encode()) % shares


def canonical_key(payload: str, columns: tuple[str, ...]) -> str:
    """Return the key of an event, whose payload is an object."""
    values: dict[str, str] = {}
    name = word = ""
    first = depth = at = 0
    while found := (SIGN if depth < 2 else INNER_SIGN).search(payload, at):
        sign, start, at = found[0], *found.span()
        if sign == '"':
            word, at = scanstring(payload, at)
        elif sign == ":":
            name, first = word, at
        elif sign in "{[":
            depth += 1
        else:
            depth -= sign != ","
            if (depth == 0 or sign == ",") and name in columns:
                values[name] = payload[first:start]
    return key_of(f"[{','.join(values.get(column, 'null') for column in columns)}]")


def tokens_of(text: str) -> Iterator[str]:
    """Return the tokens of JSON, a string as a quote with what it stands for."""
    found = TOKEN.search(text)
    while found:
        token, end = found[0], found.end()
        if token.startswith('"'):
            word, end = scanstring(text, end)
            token += word
        yield token
        found = TOKEN.search(text, end)


def write_text(text: str) -> str:
    """Return a text as JSON."""
    return quoted(text) + UNREAD if UNREADABLE.search(text) else quoted(text)


def write_token(token: str) -> str:
    """Return a token of JSON as it stands in a key, numbers in their shortest form."""
    if token.startswith('"'):
        return write_text(token[1:])
    if token[0] not in "-0123456789" or token.isdigit():
        return token
    if "e" in token or "E" in token:
        exponent = token.lower().split("e")[1]
        if len(exponent) > EXPONENT_DIGITS:
            return token + UNREAD
        number = Decimal(token)
        token = format(number, "f") if number else "0"
    if "." in token:
        token = token.rstrip("0").rstrip(".")
    return token if token.strip("-0") else "0"


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
