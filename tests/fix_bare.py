"""A server without PL/Python: PostgreSQL's own programs beside a copy of its files that lacks the extension."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps import install
from pgps.embedded import EmbeddedCluster, find_binaries
from tests.fix_server import TEMPLATE, Server

_counter = itertools.count(1)
_LANGUAGES = "select array_agg(lanname::text order by oid) from pg_language where lanname like 'plp%'"


def _without_python(prefix: Path) -> Path:
    """Copy the programs, which find the files beside them, and link all files but the extension's; return where."""
    binaries = find_binaries()
    major = str(binaries.major)
    if binaries.directory != Path("/usr/lib/postgresql") / major / "bin":
        pytest.skip("the files of a server are found as Debian has them")
    directory = prefix / "lib" / "postgresql" / major
    shared, copied = Path("/usr/share/postgresql") / major, prefix / "share" / "postgresql" / major
    (directory / "bin").mkdir(parents=True)
    for name in ("postgres", "initdb", "pg_ctl"):
        shutil.copy(binaries.directory / name, directory / "bin" / name)
    (directory / "lib").symlink_to(binaries.directory.parent / "lib")
    (copied / "extension").mkdir(parents=True)
    for path in shared.iterdir():
        if path.name != "extension":
            (copied / path.name).symlink_to(path)
    for path in (shared / "extension").iterdir():
        if "plpython" not in path.name:
            (copied / "extension" / path.name).symlink_to(path)
    return directory / "bin"


@pytest.fixture(scope="session")
def bare_server(embedded_home: Path) -> Iterator[Server]:
    """A server on which PL/Python cannot be created; its template has pgps, installed so that the client parses."""
    prefix = embedded_home / f"bare-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}"
    prefix.mkdir()
    prefix.chmod(0o755)
    programs = str(_without_python(prefix))
    cluster = EmbeddedCluster(prefix.name, fast=True, home=embedded_home, keep=False)
    # Other clusters that are made meanwhile have the usual programs.
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PGPS_PG_BIN", programs)
        cluster.start()
    try:
        base = cluster.dsn()
        with psycopg.connect(base, autocommit=True) as connection:
            connection.execute(f"create database {TEMPLATE}".encode())
            install.install(make_conninfo(base, dbname=TEMPLATE), parser="client")
            connection.execute(f"alter database {TEMPLATE} is_template true allow_connections false".encode())
        yield Server(base)
    finally:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PGPS_PG_BIN", programs)
            cluster.destroy()


@pytest.fixture
def bare(bare_server: Server) -> Iterator[str]:
    """The connection string of a database with pgps on a server without PL/Python, which has none at the end either."""
    dbname = f"bare_{next(_counter)}"
    dsn = bare_server.clone(dbname)
    yield dsn
    with psycopg.connect(dsn) as connection:
        assert connection.execute(_LANGUAGES).fetchone() == (["plpgsql"],)
    bare_server.drop(dbname)
