"""Run one statement of the shell and show what comes of it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from pgps.cli import _statements
from pgps.cli._errors import describe, report
from pgps.cli._format import duration, printable
from pgps.cli._output import Column, dumps
from pgps.cli._session import Row, Session
from pgps.cli.shell.scan import Statement, is_language
from pgps.errors import PgpsError

__all__ = ["Runner"]

# int8, int2, int4, oid, float4, float8, money, numeric, xid8: read more easily to the right.
_NUMBERS = frozenset((20, 21, 23, 26, 700, 701, 790, 1700, 5069))
_COPY_OUT = re.compile(r"\s*copy\b.*\bto\s+stdout\b", re.IGNORECASE | re.DOTALL)
_COPY_IN = re.compile(r"\s*copy\b.*\bfrom\s+stdin\b", re.IGNORECASE | re.DOTALL)
# Only such a statement may define something; others, such as COMMIT and VACUUM, cannot be executed in a savepoint.
_DEFINES = re.compile(r"\bpgps\s*\.", re.IGNORECASE)
# PostgreSQL refuses these itself, before anything of pgps can add a hint.
_NO_INSERT = re.compile(r"\bon\s+conflict\b|\bmerge\s+into\b", re.IGNORECASE)
_PLAIN_INSERT = (
    "An event has no key and is not changed: drop repeats with _producer and _producer_seq, and write"
    " INSERT … SELECT … WHERE instead of MERGE (docs/how-to/producer-numbers.md)."
)
_RULES = 4  # lines of a table, and the prompt, that are not rows


class Runner:
    """Statements on one connection. `expanded` and `timing` are the shell's \\x and \\timing."""

    def __init__(self, session: Session, *, interactive: bool = False) -> None:
        self.session = session
        self.interactive = interactive
        self.expanded = False
        self.timing = False
        self._noticed: int | None = None

    @property
    def connection(self) -> psycopg.Connection[Row]:
        """The session's connection, whose notices are shown."""
        connection = self.session.connection
        if self._noticed != id(connection):
            connection.add_notice_handler(self._notice)
            self._noticed = id(connection)
        return connection

    @property
    def transaction(self) -> TransactionStatus:
        """Whether a transaction is open or failed."""
        return self.connection.info.transaction_status

    def _notice(self, diag: psycopg.errors.Diagnostic) -> None:
        severity = (diag.severity or "notice").lower()
        self.session.out.say(f"{severity}: {diag.message_primary}")
        if diag.message_hint:
            self.session.out.say(f"hint: {diag.message_hint}")

    def run(self, statement: Statement) -> bool:
        """Run a statement of the language or of SQL; tell of a failure and return whether it went well."""
        started = time.monotonic()
        try:
            text = statement.text
            if is_language(text) and self.session.parsing(lambda: self._language(text), language=text):
                pass
            elif _DEFINES.search(statement.text):
                self.session.parsing(lambda: self._sql(statement.text))
            else:
                self._sql(statement.text)
        except (psycopg.Error, PgpsError) as error:
            self._failed(error, statement)
            return False
        finally:
            if self.timing:
                self.session.out.say(f"time: {duration(time.monotonic() - started)}")
        return True

    def _is_language(self, text: str) -> bool:
        """Ask the server, which alone knows where PostgreSQL's own CREATE RULE begins."""
        if self.transaction == TransactionStatus.INERROR:
            return False
        row = self.connection.execute(_statements.PARSE, [text]).fetchone()
        return row is not None and row["verb"] is not None

    def _language(self, text: str) -> bool:
        """Run what is a statement of the language; return whether it was."""
        is_language = self._is_language(text)
        if is_language:
            self._execute(text)
        return is_language

    def _execute(self, text: str) -> None:
        row = self.connection.execute(_statements.EXECUTE, [text]).fetchone()
        assert row is not None
        if row["execute"]:
            self.session.out.say(str(row["execute"]))

    def _sql(self, text: str) -> None:
        with self.connection.cursor() as cursor:
            if _COPY_OUT.match(text):
                with cursor.copy(text.encode()) as copy:
                    for block in copy:
                        sys.stdout.write(bytes(block).decode())
            elif _COPY_IN.match(text):
                raise PgpsError("COPY FROM STDIN does not work in this shell", hint="psql, or pgps publish TYPE --file")
            else:
                cursor.execute(text.encode())
            more: bool | None = True
            while more:
                self._result(cursor)
                more = cursor.nextset()

    def _result(self, cursor: psycopg.Cursor[Row]) -> None:
        result = cursor.pgresult
        if result is not None and result.status == ExecStatus.TUPLES_OK:
            self._show(cursor)
        elif cursor.statusmessage:
            self.session.out.say(cursor.statusmessage)

    def _show(self, cursor: psycopg.Cursor[Row]) -> None:
        """Show rows as the server writes them; as JSON with their types."""
        out = self.session.out
        if out.json:
            out.line("[" + ",\n ".join(map(dumps, cursor.fetchall())) + "]")
            return
        columns, rows = _texts(cursor, lines=out.stdout.is_terminal)
        if self.expanded:
            self._expanded(columns, rows)
        elif self.interactive and len(rows) + _RULES > out.stdout.height:
            with out.stdout.pager():
                out.table(columns, rows)
        elif columns:
            out.table(columns, rows)
        out.flush()
        out.say(f"({len(rows)} row{'' if len(rows) == 1 else 's'})")

    def _expanded(self, columns: Sequence[Column], rows: list[Row]) -> None:
        for number, row in enumerate(rows, start=1):
            self.session.out.line(f"-[ row {number} ]-")
            self.session.out.record(row, columns=columns)

    def _failed(self, error: psycopg.Error | PgpsError, statement: Statement) -> None:
        self.session.out.flush()
        report(
            _with_hint(error, statement.text),
            json=self.session.out.json,
            verbose=self.session.options.verbose,
            prefix="" if self.interactive else f"line {statement.line}: ",
            statement=statement.text,
            line=statement.line,
        )
        if self.interactive and self.session.lost:
            self.session.out.say("the connection is lost; the next statement makes a new one")


def _with_hint(error: psycopg.Error | PgpsError, statement: str) -> psycopg.Error | PgpsError:
    told = describe(error)
    if told.sqlstate == "0A000" and not told.hint and _NO_INSERT.search(statement):
        told.hint = _PLAIN_INSERT
        told.__cause__ = error
        return told
    return error


def _texts(cursor: psycopg.Cursor[Row], *, lines: bool) -> tuple[list[Column], list[Row]]:
    """Return the columns and rows of a result as text; columns of one name stay apart."""
    result = cursor.pgresult
    assert result is not None
    keep = "\n" if lines else ""
    columns = [
        Column(
            str(number),
            _name(result, number),
            format=lambda value: printable(value, keep=keep),
            right=result.ftype(number) in _NUMBERS,
        )
        for number in range(result.nfields)
    ]
    rows = [
        {str(number): _value(result, row, number) for number in range(result.nfields)} for row in range(result.ntuples)
    ]
    return columns, rows


def _name(result: PGresult, number: int) -> str:
    return (result.fname(number) or b"").decode()


def _value(result: PGresult, row: int, number: int) -> str:
    value = result.get_value(row, number)
    return "" if value is None else value.decode()
