"""PgQ: queue tables in rotation, a ticker, consumers that poll for batches."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict

from bench.field.crew import Program
from bench.field.systems.base import APP, Session, System, daemon, database, directory, processes
from bench.house import opened
from pgps.embedded.binaries import find_binaries
from pgps.embedded.process import server_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.field.plan import Plan
    from bench.field.systems.base import Database
    from bench.house import House


class Pgq(System):
    """The queue that this machine's PostgreSQL has as an extension."""

    name = "pgq"
    title = "PgQ"
    ordered = True

    def missing(self) -> str | None:
        """Return what is missing: an extension goes into the server's own directory, which needs privileges."""
        share = find_binaries().program("pg_config")
        if shutil.which("pgqd") is None or not _control(share).exists():
            return "sudo apt-get install postgresql-15-pgq3 pgqd"
        return None

    def version(self) -> str:
        """Return the extension's version."""
        text = _control(find_binaries().program("pg_config")).read_text()
        found = re.search(r"default_version = '([^']+)'", text)
        return f"PgQ {found.group(1) if found else '?'}, pgqd, psycopg"

    @contextlib.contextmanager
    def open(self, house: House, plan: Plan) -> Iterator[Session]:
        """Create the queue and its consumers, and run the ticker."""
        with database(house, plan) as known, directory() as place:
            with opened(known.admin) as connection:
                connection.execute("create extension pgq")
                connection.execute("select pgq.create_queue('quote')")
                connection.execute(f"grant pgq_admin to {APP}".encode())
                if plan.eager:
                    connection.execute("select pgq.set_queue_config('quote', 'ticker_max_lag', '100 milliseconds')")
                for k in range(plan.subscribers):
                    connection.execute("select pgq.register_consumer('quote', %s)", [f"s{k}"])
            with daemon([shutil.which("pgqd") or "pgqd", str(_settings(known, place, plan))], lambda: True) as pid:
                program = Program(
                    [sys.executable, "-m", "bench.field.clients.pgq"], {"dsn": known.app},
                    processes=processes(plan),
                )  # fmt: skip
                yield Session(program, known.app, [pid])


def _control(pg_config: str) -> Path:
    share = subprocess.run([pg_config, "--sharedir"], capture_output=True, text=True, check=True).stdout.strip()
    return Path(share) / "extension" / "pgq.control"


def _settings(known: Database, place: Path, plan: Plan) -> Path:
    parts = conninfo_to_dict(known.admin)
    base = f"host={parts['host']} port={parts['port']} user={parts['user']}"
    file = place / "pgqd.ini"
    file.write_text(
        f"[pgqd]\nbase_connstr = {base}\ninitial_database = {parts['dbname']}\ndatabase_list = {parts['dbname']}\n"
        f"pidfile = {place}/pgqd.pid\nsyslog = 0\n" + ("ticker_period = 0.1\nretry_period = 1\n" if plan.eager else "")
    )
    server_user().own(file)
    return file
