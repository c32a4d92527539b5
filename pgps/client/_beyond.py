"""Values that Python has no objects for, such as infinite times: they stay the text that they are.

Whoever may publish can publish them, and an event that no consumer can read would keep those behind it.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.abc import Buffer, Loader
from psycopg.adapt import Transformer
from psycopg.types.datetime import (
    DateLoader,
    IntervalLoader,
    TimeLoader,
    TimestampLoader,
    TimestamptzLoader,
    TimetzLoader,
)

__all__ = ["all_rows"]

_TIMES: dict[str, type[Loader]] = {
    "date": DateLoader,
    "interval": IntervalLoader,
    "time": TimeLoader,
    "timestamp": TimestampLoader,
    "timestamptz": TimestamptzLoader,
    "timetz": TimetzLoader,
}


def _lenient(strict: type[Loader]) -> type[Loader]:
    def load(self: Loader, data: Buffer) -> Any:
        try:
            return strict.load(self, data)
        except psycopg.DataError:
            return bytes(data).decode()

    return type(strict.__name__, (strict,), {"load": load})


_LENIENT = {name: _lenient(strict) for name, strict in _TIMES.items()}


def all_rows(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> list[tuple[Any, ...]]:
    """Return all rows of a cursor that has met a value of a time which Python has no object for.

    Not what is tried first: it takes several times as long for each value.
    """
    for name, loader in _LENIENT.items():
        cursor.adapters.register_loader(name, loader)
    result = cursor.pgresult
    assert result is not None
    again = Transformer(cursor)  # it remembers no loaders
    again.set_pgresult(result)
    return again.load_rows(0, result.ntuples, tuple)
