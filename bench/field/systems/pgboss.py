"""pg-boss: a table of jobs for Node; its publish/subscribe makes a job in each subscribed queue."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict

from bench.field import peers
from bench.field.crew import ROOT, Program
from bench.field.systems.base import Session, System, database, processes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.field.plan import Plan
    from bench.house import House

# Version 10 is the last that runs with Node 20.
_PACKAGES = ("pg-boss@10.4.2",)


class PgBoss(System):
    """A job queue from npm."""

    name = "pgboss"
    title = "pg-boss"

    def missing(self) -> str | None:
        """Fetch the packages."""
        try:
            peers.npm(*_PACKAGES)
        except peers.Missing as missing:
            return str(missing)
        return None

    def version(self) -> str:
        """Return what is installed."""
        return _PACKAGES[0].replace("@", " ")

    @contextlib.contextmanager
    def open(self, house: House, plan: Plan) -> Iterator[Session]:
        """Its client makes its schema."""
        with database(house, plan) as known:
            parts = conninfo_to_dict(known.app)
            config = {
                "modules": str(peers.npm(*_PACKAGES)),
                "database": {
                    "host": parts["host"], "port": int(str(parts["port"])), "user": parts["user"],
                    "database": parts["dbname"],
                },
            }  # fmt: skip
            command = [shutil.which("node") or "node", str(ROOT / "bench/field/clients/pgboss.js")]
            yield Session(Program(command, config, processes=processes(plan)), known.app)
