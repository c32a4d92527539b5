"""A broker of one's own for the examples: a private server with pgps, and a worker; nothing of it is kept."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import psycopg
from psycopg.conninfo import make_conninfo

from pgps import install
from pgps.embedded import EmbeddedCluster

__all__ = ["broker"]


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """Yield the connection string of a broker that is gone behind the block."""
    with EmbeddedCluster(f"example-{os.getpid()}", fast=True, keep=False) as cluster:
        install.install(cluster.dsn())
        with psycopg.connect(cluster.dsn()) as connection:
            connection.execute("create role broker_worker login in role pgps_worker")
        dsn = make_conninfo(cluster.dsn(), user="broker_worker")
        worker = subprocess.Popen([sys.executable, "-m", "pgps_worker", "--dsn", dsn], stderr=subprocess.DEVNULL)
        try:
            yield cluster.dsn()
        finally:
            worker.terminate()
            worker.wait()
