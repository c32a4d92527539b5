"""What the documents tell the reader to type works, and prints what they say it prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer.main
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from bench.field.peers import Missing, npm
from pgps.cli.__main__ import app
from pgps.embedded import find_binaries
from tests.acceptance.documents import ROOT, Block, blocks_of, documents
from tests.fix_db import wait_until
from tests.fix_server import Server

_VARIABLES = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE", "password": "PGPASSWORD"}
_BASH = ["bash", "-euo", "pipefail", "-c"]
Serve = Callable[[Block], None]
# What else begins with pgps: Python's modules, and variables of a session.
_MODULES = {"client", "config", "embedded", "errors", "install", "testing"}
_SETTINGS = {"act_as"}
# Programs are started for many of the blocks, on a machine that may do much else.
pytestmark = pytest.mark.timeout(600)
_PATHS = [str(path.relative_to(ROOT)) for path in documents()]


@pytest.fixture
def environment(own_database: str) -> dict[str, str]:
    """The environment of somebody whose libpq finds a fresh database by itself."""
    given = conninfo_to_dict(own_database)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = {_VARIABLES[key]: str(value) for key, value in given.items() if key in _VARIABLES}
    return {**os.environ, **found, "PATH": path, "PGOPTIONS": "-c client_min_messages=warning"}


@pytest.fixture
def _nothing_left(request: pytest.FixtureRequest, server: Server) -> Iterator[None]:
    """Drop the databases and roles that a document makes, once its own database is gone."""
    text = (ROOT / request.getfixturevalue("path")).read_text()
    yield
    for database in re.findall(r"^createdb (\w+)", text, re.MULTILINE):
        server.drop(database)
    with psycopg.connect(server.base, autocommit=True) as connection:
        for role in re.findall(r"^create role (\w+)", text, re.MULTILINE):
            connection.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(role)))


@pytest.fixture
def serve(
    _nothing_left: None, environment: dict[str, str], own_database: str, role: Callable[..., str], tmp_path: Path
) -> Iterator[Serve]:
    """Start a program, or each line of a block as one; all end before the databases go."""
    started: list[subprocess.Popen[bytes]] = []

    def start(block: Block) -> None:
        if not block.served:
            commands, more = [shlex.split(line) for line in block.text.splitlines()], {}
        else:
            (tmp_path / block.served).write_text(block.text)
            if block.kind == "js":
                commands, more = [["node", str(tmp_path / block.served)]], {"NODE_PATH": _node_modules()}
            else:
                commands, more = [[*_java(), str(tmp_path / block.served), _jdbc_url(own_database, role)]], {}
        for command in commands:
            with (tmp_path / "served.log").open("ab") as log:
                program = subprocess.Popen(command, cwd=ROOT, env={**environment, **more}, stdout=log, stderr=log)
                started.append(program)

    yield start
    ended = [process.poll() for process in started]
    for process in started:
        process.kill()
        process.wait()
    assert ended == [None] * len(ended), (tmp_path / "served.log").read_text()[-3000:]


def _node_modules() -> str:
    """Return where Node finds the package pg, which is fetched once."""
    try:
        return str(npm("pg@8"))
    except Missing as missing:
        pytest.skip(str(missing))


def _java() -> list[str]:
    """Return what runs a file of Java with PostgreSQL's driver, both of which make setup installs."""
    jar = Path(os.environ.get("PGPS_JDBC_JAR", "/usr/share/java/postgresql.jar"))
    if not jar.is_file():
        pytest.skip("there is no JDBC driver: apt-get install libpostgresql-jdbc-java libscram-java")
    # Debian's driver finds what it needs for SCRAM beside it.
    return ["java", "-cp", os.pathsep.join(str(path) for path in jar.parent.glob("*.jar"))]


def _jdbc_url(dsn: str, role: Callable[..., str]) -> str:
    """Return an address for JDBC, which speaks TCP only, with a role that may do what the document's reader may."""
    name, place = role("shop"), conninfo_to_dict(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("alter role {} superuser").format(sql.Identifier(name)))
        connection.execute(sql.SQL("set role {}").format(sql.Identifier(name)))
        connection.execute("select pgps.advertise(quote_ident(name)) from pgps.event_types")
    host = "127.0.0.1" if str(place["host"]).startswith("/") else place["host"]
    return f"jdbc:postgresql://{host}:{place['port']}/{place['dbname']}?user={name}&password=test"


@pytest.mark.parametrize("path", _PATHS)
@pytest.mark.usefixtures("_nothing_left")
def test_what_a_document_tells_to_type_works(path: str, environment: dict[str, str], serve: Serve) -> None:
    blocks = [block for block in blocks_of(ROOT / path) if block.said not in {"skip", "spark"}]
    tried = 0
    for for_psql, group in groupby(blocks, key=lambda block: block.kind in {"sql", "text"}):
        if for_psql:
            tried += _run_statements(path, list(group), environment)
            continue
        for block in group:
            if block.kind == "python":
                _run(path, block, [sys.executable, "-c", block.text], environment)
            elif block.served is not None:
                serve(block)
            elif block.awaited is not None:
                _run_until(path, block, environment)
            elif block.said == "run":
                _run(path, block, [*_BASH, block.text], environment)
            else:
                continue
            tried += 1
    assert tried > 0 or not any(block.kind in {"sql", "python"} for block in blocks)


@pytest.mark.parametrize("path", _PATHS)
def test_the_commands_a_document_names_exist(path: str) -> None:
    wrong = [
        f"{path}:{block.line}: {line}"
        for block in blocks_of(ROOT / path)
        if block.kind == "sh"
        for line in block.text.splitlines()
        if line.startswith("pgps ") and not _exists(line.split()[1:])
    ]
    assert not wrong


def _run_until(path: str, block: Block, environment: dict[str, str]) -> None:
    """Run a block again and again until it prints what it is to print."""
    printed = ""

    def is_there() -> bool:
        nonlocal printed
        printed = _run(path, block, [*_BASH, block.text], environment)
        return re.search(".*".join(re.escape(part) for part in str(block.awaited).split("…")), printed) is not None

    wait_until(is_there, timeout=120, what=f"{path}:{block.line}: {block.awaited}\n{printed}")


def _run(path: str, block: Block, command: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{path}:{block.line}:\n{block.text}\n{done.stdout}"
    return done.stdout


def _run_statements(path: str, blocks: Sequence[Block], environment: dict[str, str]) -> int:
    """Type the blocks into one psql; compare what it prints with the blocks of text. Return how many were typed."""
    script = "".join(_statement(number, block) for number, block in enumerate(blocks) if block.kind == "sql")
    done = subprocess.run(
        [find_binaries().program("psql"), "--no-psqlrc", "--pset", "pager=off"],
        input=script,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{path}:\n{done.stdout[-3000:]}"
    printed = dict(re.findall(r"^=== (\d+)\n(.*?)(?==== |\Z)", done.stdout, re.MULTILINE | re.DOTALL))
    for number, block in enumerate(blocks):
        if block.kind == "sql" and block.error:
            assert f"\nSQLSTATE {block.error}\n" in printed[str(number)], (
                f"{path}:{block.line}:\n{printed[str(number)]}"
            )
        elif block.kind == "text":
            missing = [line for line in block.text.splitlines() if not _prints(printed.get(str(number - 1), ""), line)]
            assert not missing, f"{path}:{block.line}:\n{printed.get(str(number - 1))}"
    return len(printed)


def _statement(number: int, block: Block) -> str:
    if block.error:
        return f"\\echo === {number}\n{block.text}\n\\echo\n\\echo SQLSTATE :LAST_ERROR_SQLSTATE\n"
    return f"\\echo === {number}\n\\set ON_ERROR_STOP on\n{block.text}\n\\set ON_ERROR_STOP off\n"


def _prints(printed: str, line: str) -> bool:
    wanted = r"\s*".join(".*".join(re.escape(part) for part in word.split("…")) for word in line.split())
    return re.search(rf"^\s*{wanted}\s*$", printed, re.MULTILINE) is not None


def _exists(words: Sequence[str]) -> bool:
    """Tell whether the command line knows the command and the options that a line gives it."""
    command: Any = typer.main.get_command(app)
    options: set[str] = set()
    for word in words:
        options |= {option for parameter in command.params for option in parameter.opts}
        if hasattr(command, "commands") and not word.startswith("-"):
            command = command.commands.get(word)
            if command is None:
                return False
        elif word.startswith("--") and word.split("=")[0] not in {*options, "--help"}:
            return False
    return not hasattr(command, "commands") or "--help" in words or len(words) <= 1


@pytest.mark.parametrize("path", _PATHS)
def test_what_a_document_names_exists(path: str, admin: psycopg.Connection) -> None:
    named = set(re.findall(r"`pgps\.([a-z]\w*)", (ROOT / path).read_text()))
    query = """
        select relname::text from pg_class where relnamespace = 'pgps'::regnamespace
        union select proname::text from pg_proc where pronamespace = 'pgps'::regnamespace
        union select nspname from pg_namespace
    """
    there = {row[0] for row in admin.execute(query)} | _MODULES | _SETTINGS
    assert named - there == set()
