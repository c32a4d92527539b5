"""pgqueuer: a table of jobs; fan-out is a job for each consumer, made by the producer in one call."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

from bench.field import peers
from bench.field.crew import ROOT, Program
from bench.field.systems.base import Session, System, database, processes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.field.plan import Plan
    from bench.house import House

_PYTHON = ("pgqueuer==1.6.0", "asyncpg==0.32.0")


class Pgqueuer(System):
    """A job queue from PyPI."""

    name = "pgqueuer"
    title = "pgqueuer"

    def missing(self) -> str | None:
        """Fetch the packages."""
        try:
            peers.python(*_PYTHON)
        except peers.Missing as missing:
            return str(missing)
        return None

    def version(self) -> str:
        """Return what is installed."""
        return ", ".join(_PYTHON)

    @contextlib.contextmanager
    def open(self, house: House, plan: Plan) -> Iterator[Session]:
        """Install its schema; its consumers need nothing else."""
        with database(house, plan) as known:
            command = [str(peers.python(*_PYTHON)), "-m", "bench.field.clients.pgqueuer"]
            done = subprocess.run(
                [*command, "install", known.uri], cwd=ROOT, env={"PATH": os.defpath, "PYTHONPATH": str(ROOT)},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"pgqueuer could not be installed: {done.stderr[-500:]}")
            yield Session(Program(command, {"dsn": known.uri}, processes=processes(plan)), known.app)
