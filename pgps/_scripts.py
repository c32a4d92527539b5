"""The SQL scripts: which there are, in which order, and how one is sent.

`sql/install.sql` is the table of contents. Its `schema/` lines are versioned,
one for each revision; its other lines are replaceable and re-applied as one
whole when their digest changes. Where a server has no PL/Python, and the client
parses, `NAME.client.sql` stands in for `NAME.sql` wherever there is one.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Literal

import psycopg

from pgps._resources import sql_dir
from pgps.errors import InstallError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Parser", "apply_code", "code_digest", "code_scripts", "head", "revision_of", "run", "schema_scripts"]

Parser = Literal["server", "client"]
"Who takes definitions apart: the server, which needs PL/Python for it, or the client."

# The only line of a revision that needs PL/Python on the server.
_MAKES_LANGUAGE = "create extension if not exists plpython3u;"
_INCLUDE = re.compile(r"^\\ir\s+(\S+)", re.MULTILINE)


def _contents() -> list[str]:
    return _INCLUDE.findall(read("install.sql"))


def schema_scripts() -> list[str]:
    """Return the versioned scripts, oldest first."""
    return [name for name in _contents() if name.startswith("schema/")]


def code_scripts(parser: Parser = "server") -> list[str]:
    """Return the replaceable scripts, in the order they are applied."""
    names = [name for name in _contents() if not name.startswith("schema/")]
    return names if parser == "server" else list(map(_stand_in, names))


def _stand_in(name: str) -> str:
    """Return the script in place of this one where the server has no PL/Python."""
    other = f"{name.removesuffix('.sql')}.client.sql"
    return other if (sql_dir() / other).exists() else name


def revision_of(script: str) -> str:
    """Return the revision a versioned script belongs to: `0001` of `schema/0001_baseline.sql`."""
    return script.removeprefix("schema/").partition("_")[0]


def head() -> str:
    """Return the newest revision."""
    return revision_of(schema_scripts()[-1])


def read(name: str) -> str:
    """Return the text of a script, named relative to sql/."""
    return (sql_dir() / name).read_text(encoding="utf-8")


def code_digest(parser: Parser = "server") -> str:
    """Return the SHA-256 over install.sql and all replaceable scripts."""
    digest = hashlib.sha256()
    for name in ["install.sql", *code_scripts(parser)]:
        text = read(name).encode()
        digest.update(f"{name} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def run(connection: psycopg.Connection, names: Iterable[str], *, parser: Parser = "server") -> None:
    """Send scripts as they stand, in the connection's transaction.

    Without parameters, so that `%` and `:` stay literal. Where the client parses, no language is made.
    Raises InstallError with the script's name and, where PostgreSQL gives one, the line.
    """
    for name in names:
        script = read(name)
        if parser == "client":
            script = script.replace(_MAKES_LANGUAGE, "")
        try:
            connection.execute(script.encode())
        except psycopg.Error as error:
            raise _failed(name, script, error) from error


def apply_code(connection: psycopg.Connection, parser: Parser = "server") -> None:
    """Re-apply all replaceable scripts and note their digest, and who parses.

    Rights are taken from public first; each script grants again at its foot,
    so that no grant outlives the line that made it.
    """
    connection.execute("revoke execute on all routines in schema pgps, pgps_internal from public")
    run(connection, code_scripts(parser))
    connection.execute(
        """
        insert into pgps_internal.installation as i (key, value) values ('code_digest', %s), ('parser', %s)
        on conflict (key) do update set value = excluded.value
        """,
        [code_digest(parser), parser],
    )


def _failed(name: str, script: str, error: psycopg.Error) -> InstallError:
    position = error.diag.statement_position
    line = f" line {script[: int(position)].count(chr(10)) + 1}" if position else ""
    context = f"\nCONTEXT:  {error.diag.context}" if error.diag.context else ""
    message = error.diag.message_primary or str(error)
    return InstallError(f"sql/{name}{line}: {message}{context}", hint=error.diag.message_hint, sqlstate=error.sqlstate)
