"""What the adapters of job queues from PyPI and npm share; these queues are in the database that is measured."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from psycopg.conninfo import conninfo_to_dict

from bench.field import peers
from bench.field.crew import ROOT, Program
from bench.field.systems.base import Session, System, database, processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.field.plan import Plan
    from bench.house import House

__all__ = ["FromNpm", "FromPyPI"]


class _Packaged(System):
    """A queue whose packages are fetched by name; the first is the queue itself."""

    packages: ClassVar[tuple[str, ...]]

    @abstractmethod
    def fetch(self) -> Path:
        """Fetch the packages. Raises peers.Missing."""

    def missing(self) -> str | None:
        """Fetch the packages."""
        try:
            self.fetch()
        except peers.Missing as missing:
            return str(missing)
        return None

    def version(self) -> str:
        """Return what is installed."""
        return ", ".join(package.replace("==", " ").replace("@", " ") for package in self.packages)


class FromNpm(_Packaged):
    """A queue for Node, whose client is bench/field/clients/<name>.js."""

    def fetch(self) -> Path:
        """Return where the modules are."""
        return peers.npm(*self.packages)

    @contextlib.contextmanager
    def open(self, house: House, plan: Plan) -> Iterator[Session]:
        """Its client makes its schema."""
        with database(house, plan) as known:
            parts = conninfo_to_dict(known.app)
            config = {
                "modules": str(self.fetch()),
                "database": {
                    "host": parts["host"], "port": int(str(parts["port"])), "user": parts["user"],
                    "database": parts["dbname"],
                },
            }  # fmt: skip
            command = [shutil.which("node") or "node", str(ROOT / f"bench/field/clients/{self.name}.js")]
            yield Session(Program(command, config, processes=processes(plan)), known.app)


class FromPyPI(_Packaged):
    """A queue for Python, whose client is bench.field.clients.<name>; called with `install` it makes the schema."""

    def fetch(self) -> Path:
        """Return the interpreter that has the packages."""
        return peers.python(*self.packages)

    @contextlib.contextmanager
    def open(self, house: House, plan: Plan) -> Iterator[Session]:
        """Install its schema; its workers need nothing else."""
        with database(house, plan) as known:
            command = [str(self.fetch()), "-m", f"bench.field.clients.{self.name}"]
            done = subprocess.run(
                [*command, "install", known.uri], cwd=ROOT, env={"PATH": os.defpath, "PYTHONPATH": str(ROOT)},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"{self.title} could not be installed: {done.stderr[-500:]}")
            yield Session(Program(command, {"dsn": known.uri}, processes=processes(plan)), known.app)
