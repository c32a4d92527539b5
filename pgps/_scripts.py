"""The SQL scripts: which there are, in which order, and how one is sent.

`sql/install.sql` is the table of contents. Its `schema/` lines are versioned,
one for each revision; its other lines are replaceable and re-applied as one
whole when their digest changes.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import psycopg

from pgps._resources import sql_dir
from pgps.errors import InstallError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["apply_code", "code_digest", "code_scripts", "head", "revision_of", "run", "schema_scripts"]

_INCLUDE = re.compile(r"^\\ir\s+(\S+)", re.MULTILINE)


def _contents() -> list[str]:
    return _INCLUDE.findall(read("install.sql"))


def schema_scripts() -> list[str]:
    """Return the versioned scripts, oldest first."""
    return [name for name in _contents() if name.startswith("schema/")]


def code_scripts() -> list[str]:
    """Return the replaceable scripts, in the order they are applied."""
    return [name for name in _contents() if not name.startswith("schema/")]


def revision_of(script: str) -> str:
    """Return the revision a versioned script belongs to: `0001` of `schema/0001_baseline.sql`."""
    return script.removeprefix("schema/").partition("_")[0]


def head() -> str:
    """Return the newest revision."""
    return revision_of(schema_scripts()[-1])


def read(name: str) -> str:
    """Return the text of a script, named relative to sql/."""
    return (sql_dir() / name).read_text(encoding="utf-8")


def code_digest() -> str:
    """Return the SHA-256 over install.sql and all replaceable scripts."""
    digest = hashlib.sha256()
    for name in ["install.sql", *code_scripts()]:
        text = read(name).encode()
        digest.update(f"{name} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def run(connection: psycopg.Connection, names: Iterable[str]) -> None:
    """Send scripts as they stand, in the connection's transaction.

    Without parameters, so that `%` and `:` stay literal. Raises InstallError
    with the script's name and, where PostgreSQL gives one, the line.
    """
    for name in names:
        script = read(name)
        try:
            connection.execute(script.encode())
        except psycopg.Error as error:
            raise _failed(name, script, error) from error


def apply_code(connection: psycopg.Connection) -> None:
    """Re-apply all replaceable scripts and note their digest.

    Rights are taken from public first; each script grants again at its foot,
    so that no grant outlives the line that made it.
    """
    connection.execute("revoke execute on all routines in schema pgps, pgps_internal from public")
    run(connection, code_scripts())
    connection.execute(
        """
        insert into pgps_internal.installation as i (key, value) values ('code_digest', %s)
        on conflict (key) do update set value = excluded.value
        """,
        [code_digest()],
    )


def _failed(name: str, script: str, error: psycopg.Error) -> InstallError:
    position = error.diag.statement_position
    line = f" line {script[: int(position)].count(chr(10)) + 1}" if position else ""
    context = f"\nCONTEXT:  {error.diag.context}" if error.diag.context else ""
    message = error.diag.message_primary or str(error)
    return InstallError(f"sql/{name}{line}: {message}{context}", hint=error.diag.message_hint, sqlstate=error.sqlstate)
