"""How a failure is told: one line `error:`, one line `hint:`, the rest only when asked for."""

from __future__ import annotations

import re
import sys

import psycopg
import typer

from pgps.cli._format import printable
from pgps.cli._output import dumps
from pgps.errors import ConnectionLost, PgpsError, from_database

__all__ = ["FAILED", "INTERRUPTED", "USAGE", "WrongUsage", "caret", "describe", "report"]

FAILED = 1
USAGE = 2
INTERRUPTED = 130

# How pgps.parse_statement says where: PL/pgSQL cannot set a position.
_PLACE = re.compile(r"At character (\d+) of the text\.")


def describe(error: BaseException) -> PgpsError:
    """Return what to tell for any error a command may end with."""
    if isinstance(error, ConnectionLost) and error.hint is None:
        # Raised as such only by who connects; a connection lost later is a plain psycopg error here.
        error.hint = "Say which database: --dsn, PGPS_DSN, or libpq's PG* variables."
    if isinstance(error, PgpsError):
        return error
    if isinstance(error, psycopg.Error):
        return from_database(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return PgpsError(f"{where}{error.strerror or error}")
    return PgpsError(str(error) or type(error).__name__)


class WrongUsage(typer.BadParameter):
    """The command line does not make sense; exit status 2. Says so in its own words."""

    def format_message(self) -> str:
        """Return the message, which names the option itself."""
        return self.message


def report(
    error: BaseException,
    *,
    json: bool = False,
    verbose: bool = False,
    prefix: str = "",
    statement: str | None = None,
    line: int = 1,
) -> None:
    """Tell on stderr what went wrong; SQLSTATE, detail and context with --json or --verbose.

    With the `statement` that failed, a caret shows where; it began on `line`.
    """
    told = describe(error)
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    diag = cause.diag if isinstance(cause, psycopg.Error) else None
    if json:
        _write(dumps(_record(told, diag, prefix)))
        return
    first, _, rest = told.message.partition("\n")
    _write(f"error: {prefix}{first}")
    position = _position(diag)
    if statement is not None and position is not None:
        _write(caret(statement, position, line=line))
    if diag and diag.message_detail and not (statement is not None and _PLACE.fullmatch(diag.message_detail)):
        _write(f"detail: {diag.message_detail}")
    if told.hint:
        _write(f"hint: {told.hint}")
    if verbose:
        _verbose(told, rest, diag)


def _position(diag: psycopg.errors.Diagnostic | None) -> int | None:
    """Return where in the statement the error is, from 1: PostgreSQL's word, or the statement language's."""
    if diag is None:
        return None
    told = _PLACE.search(diag.message_detail or "")
    position = told.group(1) if told else diag.statement_position
    return int(position) if position else None


def _record(told: PgpsError, diag: psycopg.errors.Diagnostic | None, prefix: str) -> dict[str, object]:
    record = {
        "error": prefix + told.message,
        "hint": told.hint,
        "sqlstate": told.sqlstate,
        "detail": diag.message_detail if diag else None,
        "position": _position(diag),
    }
    return {key: value for key, value in record.items() if value is not None}


def _verbose(told: PgpsError, rest: str, diag: psycopg.errors.Diagnostic | None) -> None:
    if rest:
        _write(rest)
    if told.sqlstate:
        _write(f"sqlstate: {told.sqlstate}")
    if diag and diag.internal_query:
        _write(caret(diag.internal_query, diag.internal_position))
    if diag and diag.context:
        _write(f"context: {diag.context}")


def caret(statement: str, position: str | int | None, *, line: int = 1) -> str:
    """Return the line of a statement that a position (from 1) falls into, and a caret below it."""
    if not position:
        return statement
    at = min(int(position) - 1, len(statement))
    start = statement.rfind("\n", 0, at) + 1
    end = statement.find("\n", at)
    shown = statement[start : len(statement) if end < 0 else end]
    label = f"line {line + statement.count(chr(10), 0, at)}: "
    shift = "".join("\t" if c == "\t" else " " for c in shown[: at - start])
    return f"{label}{shown}\n{' ' * len(label)}{shift}^"


def _write(text: str) -> None:
    sys.stderr.write(printable(text, keep="\n\t") + "\n")
