"""Installing pgps into a database, upgrading it there, and removing it.

Tables change by numbered revisions, run by alembic; functions and views are
re-created from sql/code whenever their text differs from what the database
has. Either all of it happens, in one transaction, or nothing.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from pgps import _resources, _scripts, _timeouts, parsing
from pgps._install_locks import IN_THE_WAY, PATIENCE, give_way, lock, stop_others
from pgps._scripts import Parser
from pgps.errors import InstallError, NotPermitted, PgpsError, from_database

if TYPE_CHECKING:
    import sqlalchemy

__all__ = ["Installation", "install", "pending", "status", "uninstall", "upgrade"]

MINIMUM_SERVER = 150_000
LANGUAGE = "plpython3u"
APPLICATION_NAME = "pgps/install"

# Alembic keeps the configuration of the run in module-level proxies.
_one_alembic = threading.Lock()


@dataclass(frozen=True, slots=True)
class Installation:
    """What a database has and what this release would give it.

    `revision` is None when pgps is not installed. `code_digest` is None also when plain psql installed it, which notes
    no digest. `has_language` is false when PL/Python was dropped, and with it the functions written in it. `parser`
    says who takes definitions apart: with "client" no PL/Python is needed.
    """

    database: str
    server_version: int
    revision: str | None
    head: str
    code_digest: str | None
    expected_digest: str
    has_language: bool = True
    parser: Parser = "server"

    @property
    def installed(self) -> bool:
        """Whether pgps is in the database, of whatever release."""
        return self.revision is not None

    @property
    def up_to_date(self) -> bool:
        """Whether an upgrade would change nothing."""
        has_language = self.has_language or self.parser == "client"
        return self.revision == self.head and self.code_digest == self.expected_digest and has_language


def status(dsn: str) -> Installation:
    """Return what is installed; connect as the role that installed, or as a superuser."""
    with _connected(dsn) as connection:
        return _status(connection)


def pending(dsn: str, *, parser: Parser | None = None) -> list[str]:
    """Return the scripts, relative to sql/, that `install` or `upgrade` would run now."""
    now = status(dsn)
    if now.up_to_date and parser in (None, now.parser):
        return []
    return [
        name for name in _scripts.schema_scripts() if now.revision is None or _scripts.revision_of(name) > now.revision
    ] + _scripts.code_scripts(parser or now.parser)


def install(dsn: str, *, parser: Parser | None = None) -> Installation:
    """Install pgps, or bring it to this release; does nothing when it is there.

    `parser` says who takes definitions apart: "server" with PL/Python 3, or "client" where the server has none
    (see `pgps.parsing`). None keeps what the database has, at first the server.
    Returns what the database has afterwards. Waits for another installer. Raises InstallError: not a superuser, no
    PL/Python 3, composite events without it, server too old, a database of SQL_ASCII, a newer release is installed, or
    a script failed (nothing has changed then).
    """
    with _connected(dsn) as connection:
        now = _status(connection)
        _check_server(connection, parser or now.parser)
        if not now.installed:
            _check_encoding(connection)
    return now if now.up_to_date and parser in (None, now.parser) else _migrate(dsn, parser)


def upgrade(dsn: str, *, parser: Parser | None = None) -> Installation:
    """Bring an installed pgps to this release; raises InstallError when there is none. `parser`: see `install`."""
    now = status(dsn)
    if not now.installed:
        raise InstallError(f'pgps is not installed in database "{now.database}"', hint="Install it: pgps install DSN")
    return install(dsn, parser=parser)


def uninstall(dsn: str) -> None:
    """Remove pgps from a database: its schemas with all events in them, and its roles; does nothing without it.

    A role that another database of the cluster still uses stays.
    """
    with _connected(dsn) as connection:
        _check_server(connection, "client")
        lock(connection)
        _scripts.run(connection, ["uninstall.sql"])


def before_revisions(connection: psycopg.Connection, *, stop: bool = False) -> bool:
    """Take the locks and make alembic's version table a place; called by env.py, in its transaction.

    Others are stopped for revisions, and with `stop` also where the code alone is applied.
    What plain psql installed gets the version its schema scripts noted.
    Returns whether the database has PL/Python already, to tell `after_revisions`.
    Raises InstallError when a newer release is installed.
    """
    lock(connection)
    give_way(connection)
    now = _status(connection)
    if now.revision is not None and now.revision > now.head:
        raise InstallError(
            f'database "{now.database}" has revision {now.revision}, this release only {now.head}',
            hint="Use the release of pgps that installed it, or a newer one.",
        )
    connection.execute("create schema if not exists pgps_internal")
    if now.revision is not None and now.revision < now.head:
        stop_others(connection, PATIENCE)
    elif now.revision is not None and stop:
        stop_others(connection, PATIENCE / 6)
    if now.installed:
        connection.execute(
            """
            create table if not exists pgps_internal.alembic_version
                (version_num varchar(32) not null constraint alembic_version_pkc primary key)
            """
        )
        connection.execute(
            """
            insert into pgps_internal.alembic_version
            select %s where not exists (select from pgps_internal.alembic_version)
            """,
            [now.revision],
        )
    return bool(
        _one(connection, "select exists (select from pg_extension where extname = %s) as found", LANGUAGE)["found"]
    )


def after_revisions(connection: psycopg.Connection, *, had_language: bool, parser: Parser | None = None) -> None:
    """Re-apply the replaceable code when its text differs; called by env.py, in its transaction.

    Does nothing below head: an old revision never meets today's functions.
    Makes the language again that somebody has dropped, and notes one that is new, for the uninstaller to remove.
    Where the client parses, the language is left alone, and what subscriptions need is parsed by this release.
    """
    now = _status(connection)
    parser = parser or now.parser
    if now.installed and not had_language and parser == "server":
        note = "insert into pgps_internal.installation values ('made_plpython3u', 'yes') on conflict do nothing"
        connection.execute(f"create extension if not exists {LANGUAGE}; {note}")
    if now.revision == now.head and not (now.up_to_date and parser == now.parser):
        if parser == "client":
            _check_composite(connection)
        _scripts.apply_code(connection, parser)
        if parser == "client":
            parsing.store_for_subscriptions(connection)


def run_sql(name: str) -> None:
    """Send one script of sql/ as it stands; what a revision consists of."""
    from alembic import context, op  # noqa: PLC0415 - only a revision has them

    parser = context.config.attributes.get("parser")
    _scripts.run(driver_connection(op.get_bind()), [name], parser=parser or "server")


def driver_connection(connection: sqlalchemy.Connection) -> psycopg.Connection:
    """Return the psycopg connection under one of SQLAlchemy's."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def engine(dsn: str) -> sqlalchemy.Engine:
    """Return what alembic connects with; libpq reads the connection string, not SQLAlchemy."""
    import sqlalchemy  # noqa: PLC0415 - takes longer than everything else together

    return sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=lambda: _timeouts.connect(dsn, APPLICATION_NAME),
        poolclass=sqlalchemy.pool.NullPool,
    )


def _migrate(dsn: str, parser: Parser | None) -> Installation:
    """Let alembic run the missing revisions and then the code, all in one transaction.

    Publishers and workers go on in the meantime. They may hold a lock for which the upgrade waits while they wait for
    one that it holds; then the upgrade gives way to them, and begins again. Every other time it stops them first:
    whoever comes all the time, such as a worker, would be in the way each time.
    """
    until = time.monotonic() + PATIENCE
    stop = False
    while True:
        try:
            return _migrate_once(dsn, parser, stop=stop)
        except PgpsError as error:
            if error.sqlstate not in IN_THE_WAY:
                raise
            if time.monotonic() > until:
                raise InstallError(
                    f"other sessions hold what the upgrade needs: {error.message}",
                    hint="End the long transactions that pg_stat_activity shows, and try again; nothing has changed.",
                    sqlstate=error.sqlstate,
                ) from error
            # The pause is another one each time, since whoever was in the way may come at regular intervals.
            time.sleep(random.uniform(0.05, 0.5))  # noqa: S311
            stop = not stop


def _migrate_once(dsn: str, parser: Parser | None, *, stop: bool) -> Installation:
    from alembic import command  # noqa: PLC0415 - see engine()
    from alembic.config import Config  # noqa: PLC0415

    configuration = Config()
    configuration.set_main_option("script_location", str(_resources.migrations_dir()))
    with _one_alembic, _pgps_errors(), engine(dsn).begin() as connection:
        configuration.attributes.update(connection=connection, stop=stop, parser=parser)
        command.upgrade(configuration, "head")
        return _status(driver_connection(connection))


@contextlib.contextmanager
def _connected(dsn: str) -> Iterator[psycopg.Connection]:
    """Connect and give a transaction."""
    with _pgps_errors(), _timeouts.connect(dsn, APPLICATION_NAME) as connection:
        yield connection


@contextlib.contextmanager
def _pgps_errors() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise InstallError(
            f"another session holds what the installer needs: {error.diag.message_primary}",
            hint="Wait for the other installer, or end the long transaction that pg_stat_activity shows.",
            sqlstate=error.sqlstate,
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotPermitted(
            error.diag.message_primary or "permission denied",
            hint="Connect as a superuser, or as the role that installed pgps.",
            sqlstate=error.sqlstate,
        ) from error
    except psycopg.Error as error:
        raise from_database(error) from error


def _check_server(connection: psycopg.Connection, parser: Parser) -> None:
    """Raise InstallError unless this server and role can carry pgps."""
    version = connection.info.server_version
    major = version // 10_000
    if version < MINIMUM_SERVER:
        raise InstallError(
            f"the server is PostgreSQL {major}; pgps needs {MINIMUM_SERVER // 10_000} or newer",
            hint="Upgrade the server, or point the connection string at a newer one.",
        )
    facts = _one(
        connection,
        """
        select pg_is_in_recovery() as standby,
               current_user as role,
               (select rolsuper from pg_roles where rolname = current_user) as superuser,
               exists (select from pg_available_extensions where name = %s) as plpython
        """,
        LANGUAGE,
    )
    if facts["standby"]:
        raise InstallError("the server is a standby", hint="Install on its primary.")
    if not facts["superuser"]:
        raise InstallError(
            f'role "{facts["role"]}" is not a superuser, which installing pgps needs',
            hint="Connect as a superuser; after the installation nobody needs to be one.",
            sqlstate="42501",
        )
    if not facts["plpython"] and parser == "server":
        raise InstallError(
            f"the server has no PL/Python 3 (extension {LANGUAGE})",
            hint=f"Install it on the server: apt-get install postgresql-plpython3-{major}. Where that cannot be, have "
            "the client parse definitions, without composite events: pgps install --parser client",
            sqlstate="58P01",
        )


def _check_composite(connection: psycopg.Connection) -> None:
    """Raise InstallError when there are composite events, which only a server with PL/Python detects."""
    if not _one(connection, "select to_regclass('pgps_internal.composite') is not null as known")["known"]:
        return
    names = _one(
        connection,
        """
        select string_agg(quote_ident(t.name), ', ' order by t.name) as names
        from pgps_internal.composite c join pgps_internal.event_type t using (type_id)
        """,
    )["names"]
    if names:
        raise InstallError(
            f"there are composite events, which need PL/Python in the server: {names}",
            hint="Keep --parser server, or drop them: select pgps.drop_event_type('NAME')",
            sqlstate="55000",
        )


def _check_encoding(connection: psycopg.Connection) -> None:
    """Raise InstallError in a database of SQL_ASCII: what one session writes there, another may be unable to read."""
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        raise InstallError(
            f'database "{connection.info.dbname}" has the encoding SQL_ASCII, which lets text of every encoding in',
            hint="Use one that has an encoding: createdb --template template0 --encoding UTF8 NAME",
            sqlstate="0A000",
        )


def _status(connection: psycopg.Connection) -> Installation:
    facts = _one(
        connection,
        """
        select current_database() as database,
               to_regclass('pgps_internal.installation') is not null as installed,
               to_regclass('pgps_internal.alembic_version') is not null as versioned,
               exists (select from pg_extension where extname = %s) as language
        """,
        LANGUAGE,
    )
    stored: dict[str, str] = {}
    revision = None
    if facts["installed"]:
        rows = connection.execute("select key, value from pgps_internal.installation").fetchall()
        stored = dict(rows)
        # Plain psql leaves no alembic version; schema scripts after the first note theirs.
        revision = stored.get("schema_revision", "0001")
    if facts["versioned"]:
        row = connection.execute("select version_num from pgps_internal.alembic_version").fetchone()
        revision = row[0] if row else revision
    parser: Parser = "client" if stored.get("parser") == "client" else "server"
    return Installation(
        database=facts["database"],
        server_version=connection.info.server_version,
        revision=revision,
        head=_scripts.head(),
        code_digest=stored.get("code_digest"),
        expected_digest=_scripts.code_digest(parser),
        has_language=facts["language"],
        parser=parser,
    )


def _one(connection: psycopg.Connection, query: LiteralString, *parameters: object) -> dict[str, Any]:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(query, parameters).fetchone()
    assert row is not None
    return row
