"""graphile-worker: a table of jobs for Node; fan-out is a job for each consumer, made by the producer in one call."""

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

# Later versions do not run with Node 20.
_PACKAGES = ("graphile-worker@0.16.6", "pg@8")


class Graphile(System):
    """A job queue from npm."""

    name = "graphile"
    title = "graphile-worker"

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
            command = [shutil.which("node") or "node", str(ROOT / "bench/field/clients/graphile.js")]
            yield Session(Program(command, config, processes=processes(plan)), known.app)
