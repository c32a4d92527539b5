"""One command's connection, its output, and how it changes a database."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
import typer
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.string import TextLoader

from pgps import _catalogue, _timeouts, config, parsing
from pgps._catalogue import Query
from pgps.cli import _statements
from pgps.cli._errors import WrongUsage
from pgps.cli._output import Output, RawJson
from pgps.errors import InstallError, UnknownName, from_database, host_names

__all__ = ["Options", "Row", "Session"]

Row = dict[str, Any]
T = TypeVar("T")
_WORKER = "pgps-worker --dsn DSN"


@dataclass(frozen=True, slots=True)
class Options:
    """What every command takes; `dry_run` and `show_sql` only those that change a database."""

    dsn: str | None = None
    json: bool = False
    verbose: bool = False
    dry_run: bool = False
    show_sql: bool = False


class Session:
    """Run one command: connect when first needed, close at the end."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.out = Output(json=options.json)
        self._connection: psycopg.Connection[Row] | None = None
        self._client_parses: bool | None = None
        self.parse_as: str | None = None
        self._storing: psycopg.Connection | None = None

    def close(self) -> None:
        """Close the connections, if there are any."""
        for connection in (self._connection, self._storing):
            if connection is not None:
                connection.close()

    def dsn(self) -> str:
        """Return the connection string; --dsn, else PGPS_DSN, else libpq's own defaults."""
        return config.load(dsn=self.options.dsn).dsn

    @property
    def connection(self) -> psycopg.Connection[Row]:
        """The connection, in autocommit mode; rows are dictionaries, jsonb is text as the server wrote it."""
        if self._connection is None or self._connection.closed:
            self._connection = self.connect()
        return self._connection

    @property
    def lost(self) -> bool:
        """Whether the connection ended by itself."""
        return self._connection is not None and self._connection.broken

    def connect(self) -> psycopg.Connection[Row]:
        """Return a new connection, which the caller closes; raises ConnectionLost, ConfigError."""
        try:
            with host_names():
                connection = psycopg.connect(
                    make_conninfo(self.dsn(), fallback_application_name="pgps/cli", client_encoding="utf8"),
                    autocommit=True,
                    row_factory=dict_row,
                )
        except psycopg.Error as error:
            raise from_database(error) from error
        for name, loader in _LOADERS.items():
            connection.adapters.register_loader(name, loader)
        # The views are wide and their rows few: compiling them took 2 s where running them took 10 ms. A database may
        # have its way to write times, and another isolation level, in which no position can be moved.
        _timeouts.settle(connection, _statements.SESSION)
        return connection

    def typed(self, remedy: str) -> str:
        """Return a remedy with this database in place of DSN, and with a role that a worker may run as.

        If there is none yet, the remedy begins with making it. Passwords are left out.
        """
        if _WORKER not in remedy:
            return remedy
        role = self.one(_catalogue.WORKER_LOGIN)["role"]
        made = "" if role else "create role broker_worker login in role pgps_worker; then "
        info = self.connection.info
        place = make_conninfo(host=info.host, port=info.port, user=role or "broker_worker", dbname=info.dbname)
        return remedy.replace(_WORKER, f"{made}pgps-worker --dsn {shlex.quote(place)}")

    def rows(self, query: Query | str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Return all rows of a query."""
        statement = query.encode() if isinstance(query, str) else query
        try:
            return self.connection.execute(statement, parameters).fetchall()
        except (
            psycopg.errors.InvalidSchemaName,
            psycopg.errors.UndefinedFunction,
            psycopg.errors.UndefinedTable,
        ) as error:
            self._check_installed(error)
            raise

    def one(self, query: Query | str, parameters: Mapping[str, Any] | None = None) -> Row:
        """Return the only row of a query."""
        rows = self.rows(query, parameters)
        assert len(rows) == 1, f"one row expected, not {len(rows)}"
        return rows[0]

    @property
    def has_clock(self) -> bool:
        """Whether the broker has a clock of its own, as all have but those of the first release."""
        return bool(self.one(_catalogue.HAS_CLOCK)["has_clock"])

    def named(self, query: Query, kind: str, name: str, *, hint: str) -> Row:
        """Return the row of a thing of that name; UnknownName when the reader sees none."""
        rows = self.rows(query)
        if not rows:
            raise UnknownName(f'{kind} "{name}" does not exist', hint=hint, sqlstate="42704")
        return rows[0]

    def _check_installed(self, error: psycopg.Error) -> None:
        """Raise InstallError when the reason is that there is no pgps here."""
        # The connection itself may be in the transaction that has just failed.
        with self.connect() as connection:
            facts = connection.execute(_catalogue.INSTALLED).fetchone()
        if facts and not facts["installed"]:
            raise InstallError(
                f'pgps is not installed in database "{facts["database"]}"',
                hint="Install it: pgps install DSN",
                sqlstate=error.sqlstate,
            ) from error

    def change(
        self,
        statements: Iterable[Query],
        *,
        done: str | Callable[[Any], str],
        shown: Iterable[Query] | None = None,
    ) -> Any:
        """Run statements in one transaction and say what was done; return the last one's value.

        `done` may be a function of that value. With --dry-run everything is
        really run, and then rolled back: what would be refused is refused.
        --show-sql writes `shown` instead, where the statements hold a secret.
        """
        statements = list(statements)
        self.show(statement.as_string(self.connection) for statement in (statements if shown is None else shown))
        value: Any = None
        with self.connection.transaction(force_rollback=self.options.dry_run):
            for statement in statements:
                cursor = self._changed(statement)
                row = cursor.fetchone() if cursor.description else None
                value = next(iter(row.values()), None) if row else None
        self.told(done if isinstance(done, str) else done(value), value=value)
        return value

    def _changed(self, statement: Query) -> psycopg.Cursor[Row]:
        try:
            return self.parsing(lambda: self.connection.execute(statement))
        except psycopg.errors.InvalidSchemaName as error:
            self._check_installed(error)
            raise

    def parsing(self, call: Callable[[], T], *, language: str | None = None) -> T:
        """Call what executes one statement over the connection; parse for it where the server has no PL/Python.

        It is called again when something was parsed. In a transaction, a savepoint keeps what was done before. A
        statement of the `language` is parsed first: it may hold a password, and what is asked for is logged.
        """
        if self._client_parses is None:
            in_error = self.connection.info.transaction_status == TransactionStatus.INERROR
            self._client_parses = not in_error and bool(self.rows(_statements.CLIENT_PARSES))
        if not self._client_parses:
            return call()
        first = [parsing.Question.of("parse_statement", language)] if language else []
        if self.parse_as is not None and self._storing is None:
            self._storing = _timeouts.connect(self.parse_as, "pgps/cli")
        return parsing.repeat(self.connection, call, store_with=self._storing, first=first)

    def show(self, statements: Iterable[str]) -> None:
        """Write statements to stdout when --show-sql asks for them; they can be run as they stand."""
        if self.options.show_sql and not self.options.json:
            for statement in statements:
                self.out.line(statement.rstrip().rstrip(";") + ";")

    def told(self, done: str, **facts: Any) -> None:
        """Say what was done, or would have been; as JSON with facts when that is asked for."""
        if self.options.json:
            shown = {key: value for key, value in facts.items() if value not in (None, "")}
            self.out.record({"done": done, "dry_run": self.options.dry_run, **shown})
        elif self.options.dry_run:
            self.out.say(f"dry run, nothing changed: {done}")
        else:
            self.out.say(done)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something is lost; without a terminal only --yes will do."""
        if yes or self.options.dry_run:
            return
        if not sys.stdin.isatty():
            raise WrongUsage(f"{question} Add --yes to do it without being asked.")
        typer.confirm(question, abort=True, err=True)


class _RawJsonLoader(Loader):
    def load(self, data: Buffer) -> RawJson:
        return RawJson(bytes(data).decode())


class _MomentLoader(TimestamptzLoader):
    """Times that Python cannot hold, such as infinity, stay text."""

    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


# The other times are the user's own attributes: shown as the server writes them.
_LOADERS: dict[str, type[Loader]] = {
    "json": _RawJsonLoader,
    "jsonb": _RawJsonLoader,
    "timestamptz": _MomentLoader,
    **dict.fromkeys(("date", "interval", "timestamp"), TextLoader),
}
