"""Errors of pgps that come back from Spark: a task's error is text in a Java exception, several layers deep.

What the text of an error does not say, as its SQLSTATE, travels in a note behind it.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

import psycopg

from pgps import errors
from pgps.errors import BrokerError, PgpsError, class_of, from_database

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["carried", "database_errors", "text_of", "told", "unwrapped"]

# The last lines of a Python traceback, as Spark quotes it; PostgreSQL's own, as its JDBC driver says it.
_OURS = re.compile(r"pgps\.errors\.(\w+): (.+?)(?:\n\s*HINT:  (.+?))?\s*(?:\n|$)")
# Spark may put something of its own behind it.
_NOTE = re.compile(r"^\s*PGPS:  (\{.*\})", re.MULTILINE)
_JDBC = re.compile(
    r"PSQLException: (?:ERROR|FATAL): (.+?)(?:\n\s*(?:Detail: (.+?)))?(?:\n\s*(?:Hint: (.+?)))?\s*(?:\n|$)"
)
_FIELDS = ("message", "hint", "sqlstate", "detail", "constraint", "attribute")


def _note_of(error: PgpsError) -> str:
    fields = {name: getattr(error, name, None) for name in _FIELDS}
    return "PGPS:  " + json.dumps({name: value for name, value in fields.items() if value is not None})


def text_of(error: PgpsError) -> str:
    """Return an error as text that `told` reads back: for Spark's raise_error."""
    return f"pgps.errors.{type(error).__name__}: {error}\n{_note_of(error)}"


@contextlib.contextmanager
def carried() -> Iterator[None]:
    """Let errors of pgps that are raised in a task come back as they are."""
    try:
        yield
    except PgpsError as error:
        if not getattr(error, "__notes__", None):
            error.add_note(_note_of(error))
        raise


@contextlib.contextmanager
def database_errors() -> Iterator[None]:
    """Raise what PostgreSQL reports as errors of pgps, which survive the way through Spark."""
    with carried():
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
            note = _NOTE.search(text, found.start())
            said = json.loads(note.group(1)) if note else {}
            # The note of another error that is told behind this one says nothing of it.
            is_its = str(said.get("message", "")).strip().startswith(found.group(2).strip())
            return _made(kind, said if is_its else {"message": found.group(2), "hint": found.group(3)})
    found = _JDBC.search(text)
    if found is None:
        return None
    said = {"message": found.group(1), "detail": found.group(2), "hint": found.group(3), **_said_by_java(error)}
    return _made(class_of(said.get("sqlstate")), said)


def _made(kind: type[PgpsError], said: dict[str, Any]) -> PgpsError:
    try:
        made = kind(said["message"], hint=said.get("hint"), sqlstate=said.get("sqlstate"))
    except TypeError:
        # A class with fields that no text has.
        made = PgpsError(said["message"], hint=said.get("hint"), sqlstate=said.get("sqlstate"))
    if isinstance(made, BrokerError):
        made.detail, made.constraint, made.attribute = map(said.get, ("detail", "constraint", "attribute"))
    return made


def _said_by_java(error: BaseException) -> dict[str, str]:
    """Return what an exception of the JDBC driver has as fields, {} when Spark has passed on its text alone."""
    origin: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    while origin is not None:
        if origin.getClass().getName() == "org.postgresql.util.PSQLException":
            server = origin.getServerErrorMessage()
            said = {"sqlstate": origin.getSQLState()}
            if server is not None:
                said |= {"constraint": server.getConstraint(), "attribute": server.getColumn()}
            return said
        origin = origin.getCause()
    return {}


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
