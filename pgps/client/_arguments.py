"""Arguments that are refused before the server, or a clock, sees them: with the value, and what to give instead."""

from __future__ import annotations

import contextlib
import math
import re
import reprlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import psycopg
from psycopg.adapt import PyFormat, Transformer

from pgps.errors import BadArgument

__all__ = [
    "adapted",
    "count",
    "deadline",
    "refused",
    "require_storable",
    "seconds",
    "shown",
    "string",
]

LONGEST = threading.TIMEOUT_MAX
"""Seconds that any clock here counts."""
_NOT_IN_REPERTOIRE = "22021"
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_NUL = ("the character NUL", "Leave it out, or use an attribute of type bytea.")
_HALF = ("half of a surrogate pair, which is no character", "Decode bytes as UTF-8; errors='replace' leaves none.")
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


def shown(value: Any) -> str:
    """Return a value as an error shows it."""
    return _REPR.repr(value)


def refused(message: str, hint: str, *, sqlstate: str = "22023") -> BadArgument:
    """Return the error for an argument."""
    return BadArgument(message, hint=hint, sqlstate=sqlstate)


def string(value: Any, what: str, hint: str) -> str:
    """Return it. Raises BadArgument for what is no string."""
    if not isinstance(value, str):
        raise refused(f"{what} is a string, not {type(value).__name__}: {shown(value)}", hint)
    return value


def count(value: Any, what: str) -> int:
    """Return it. Raises BadArgument for what is no whole number."""
    if not isinstance(value, SupportsIndex):
        raise refused(f"{what} is a whole number, not {type(value).__name__}: {shown(value)}", "Give an int.")
    return int(value)


# ---------------------------------------------------------------------------------------------------------------------
# Time
# ---------------------------------------------------------------------------------------------------------------------


def seconds(value: Any, what: str) -> float:
    """Return a time as every clock takes it: less than nothing is nothing. Raises BadArgument for what is no number."""
    try:
        found = math.nan if isinstance(value, (str, bytes, bytearray)) else float(value)
    except OverflowError:
        found = math.inf if value > 0 else 0.0
    except (TypeError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise refused(f"{what} is a number of seconds, not {shown(value)}", "Give an int or a float.")
    return min(max(found, 0.0), LONGEST)


def deadline(timeout: Any) -> float | None:
    """Return when `timeout` seconds from now are over; None, or infinity: never. Raises BadArgument."""
    if timeout is None:
        return None
    found = seconds(timeout, "timeout")
    return None if found >= LONGEST else time.monotonic() + found


# ---------------------------------------------------------------------------------------------------------------------
# Text and other values for the server
# ---------------------------------------------------------------------------------------------------------------------


def require_storable(value: Any, name: str | None = None) -> None:
    """Raise BadArgument when a string, or one anywhere in a value, has what no text in PostgreSQL has."""
    if isinstance(value, str):
        found = _UNSTORABLE.search(value)
        if found is not None:
            has, hint = _NUL if found[0] == "\0" else _HALF
            raise refused(f"{_of(name)}{shown(value)} has {has}", hint, sqlstate=_NOT_IN_REPERTOIRE)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            require_storable(key, name)
            require_storable(one, str(key) if name is None else name)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            require_storable(one, name)


@contextlib.contextmanager
def adapted(params: Any) -> Iterator[None]:
    """Turn what happens to a statement before the server has it into BadArgument, which names the value."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, psycopg.DataError, psycopg.ProgrammingError) as error:
        told = getattr(error, "sqlstate", None)
        if told not in (None, _NOT_IN_REPERTOIRE):  # the server's own
            raise
        _blame(params, error)
        if told is not None or not isinstance(error, (TypeError, psycopg.Error)):
            raise
        raise refused(str(error), "Give a value for each placeholder; a percent sign is %%.") from error


def _blame(params: Any, error: Exception) -> None:
    """Raise BadArgument for the parameter that has caused an error, if one has."""
    if params is None:
        return
    if not isinstance(params, (Mapping, Sequence)) or isinstance(params, (str, bytes)):
        message = f"parameters are a sequence or a mapping, not {type(params).__name__}: {shown(params)}"
        raise refused(message, "Give a list of values, or a dict.") from error
    named = params.items() if isinstance(params, Mapping) else ((None, one) for one in params)
    for name, value in named:
        try:
            require_storable(value, name)
        except BadArgument as told:
            raise told from error
        for one in value if isinstance(value, list) else [value]:
            if not _is_adaptable(one):
                message = f"{_of(name)}no type of PostgreSQL takes {type(one).__name__}: {shown(one)}"
                raise refused(message, "Give text, a number, bytes, a time, or a list of these.") from error


def _is_adaptable(value: Any) -> bool:
    try:
        transformer = Transformer()
        value is None or transformer.get_dumper(value, PyFormat.AUTO).dump(value)
    except Exception:
        return False
    return True


def _of(name: str | None) -> str:
    return "" if name is None else f'"{name}": '
