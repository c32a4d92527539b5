"""A real PgBouncer, pooling transactions, before this process's database."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgps.embedded.process import server_user
from tests.fix_db import wait_until


@dataclass(frozen=True)
class Pooler:
    """PgBouncer with one server process for all clients of a role; `dsn` leads through it, `direct` past it."""

    dsn: str
    direct: str


@pytest.fixture
def pooler(dsn: str) -> Iterator[Pooler]:
    """Run PgBouncer for this process's database until the test ends."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed: make setup")
    parameters = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    user = server_user()
    with tempfile.TemporaryDirectory(prefix="pgps-bouncer-") as made:
        directory = Path(made)
        port = _free_port()
        log = directory / "log"
        config = directory / "pgbouncer.ini"
        config.write_text(_config(parameters, directory, port))
        (directory / "users").write_text(f'"{parameters["user"]}" "{parameters.get("password", "")}"\n')
        for path in (directory, config, directory / "users"):
            user.own(path)
        with log.open("w") as output:
            process = subprocess.Popen(
                [program, str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                user=user.uid,
                group=user.gid,
                extra_groups=[] if user.uid is not None else None,
            )
        try:
            through = make_conninfo(dbname="broker", user=parameters["user"], host=str(directory), port=port)
            wait_until(lambda: _answers(through, process, log), what="pgbouncer answers")
            yield Pooler(through, dsn)
        finally:
            process.terminate()
            process.wait(timeout=60)


def _config(parameters: dict[str, str], directory: Path, port: int) -> str:
    # Connections to the server are closed as soon as nobody uses them, so that a test leaves none open.
    server = " ".join(
        f"{key}={parameters[key]}" for key in ("host", "port", "dbname", "user", "password") if key in parameters
    )
    return f"""
[databases]
broker = {server}
[pgbouncer]
pool_mode = transaction
listen_addr =
listen_port = {port}
unix_socket_dir = {directory}
auth_type = trust
auth_file = {directory}/users
default_pool_size = 1
max_client_conn = 50
logfile =
pidfile =
admin_users = {parameters["user"]}
ignore_startup_parameters = extra_float_digits,options
"""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _answers(dsn: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        pytest.fail(f"pgbouncer ended: {log.read_text()}")
    try:
        with psycopg.connect(dsn, connect_timeout=5):
            return True
    except psycopg.OperationalError:
        return False
