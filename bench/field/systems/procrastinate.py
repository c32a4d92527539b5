"""procrastinate: a table of jobs for Python; fan-out is a job for each consumer, made by the producer in one call."""

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

_PYTHON = ("procrastinate==3.10.0", "psycopg[binary,pool]>=3.2")


class Procrastinate(System):
    """A task queue from PyPI."""

    name = "procrastinate"
    title = "procrastinate"

    def missing(self) -> str | None:
        """Fetch the packages."""
        try:
            peers.python(*_PYTHON)
        except peers.Missing as missing:
            return str(missing)
        return None

    def version(self) -> str:
        """Return what is installed."""
        return _PYTHON[0].replace("==", " ")

    @contextlib.contextmanager
    def open(self, house: House, plan: Plan) -> Iterator[Session]:
        """Install its schema; its workers need nothing else."""
        with database(house, plan) as known:
            command = [str(peers.python(*_PYTHON)), "-m", "bench.field.clients.procrastinate"]
            done = subprocess.run(
                [*command, "install", known.uri], cwd=ROOT, env={"PATH": os.defpath, "PYTHONPATH": str(ROOT)},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"procrastinate could not be installed: {done.stderr[-500:]}")
            yield Session(Program(command, {"dsn": known.uri}, processes=processes(plan)), known.app)
