"""Errors of pgps that come back from Spark: a task's error is text in a Java exception, several layers deep."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import psycopg

from pgps import errors
from pgps.errors import PgpsError, from_database

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["database_errors", "told", "unwrapped"]

# The last lines of a Python traceback, as Spark quotes it; PostgreSQL's own, as its JDBC driver says it.
_OURS = re.compile(r"pgps\.errors\.(\w+): (.+?)(?:\n\s*HINT:  (.+?))?\s*(?:\n|$)")
_JDBC = re.compile(
    r"PSQLException: (?:ERROR|FATAL): (.+?)(?:\n\s*(?:Detail: (.+?)))?(?:\n\s*(?:Hint: (.+?)))?\s*(?:\n|$)"
)


@contextlib.contextmanager
def database_errors() -> Iterator[None]:
    """Raise what PostgreSQL reports as errors of pgps, whose text survives the way through Spark."""
    try:
        yield
    except psycopg.Error as error:
        raise from_database(error) from error


def told(error: BaseException) -> PgpsError | None:
    """Return the error of pgps that an exception of Spark is about, None when it is about something else."""
    if isinstance(error, PgpsError):
        return error
    text = str(error)
    found = _OURS.search(text)
    if found:
        kind = getattr(errors, found.group(1), PgpsError)
        if isinstance(kind, type) and issubclass(kind, PgpsError):
            return kind(found.group(2), hint=found.group(3))
    found = _JDBC.search(text)
    return PgpsError(found.group(1), hint=found.group(3)) if found else None


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """Raise the error of pgps instead of Spark's exception around it."""
    try:
        yield
    except Exception as error:
        ours = told(error)
        if ours is None or ours is error:
            raise
        raise ours from error
