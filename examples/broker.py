"""A broker of one's own for the examples: a private server with pgps, and a worker; nothing of it is kept."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from pgps import install
from pgps.embedded import EmbeddedCluster

__all__ = ["broker"]


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """Yield the connection string of a broker that is gone behind the block."""
    with EmbeddedCluster(f"example-{os.getpid()}", fast=True, keep=False) as cluster:
        install.install(cluster.dsn())
        worker = subprocess.Popen(
            [sys.executable, "-m", "pgps_worker", "--dsn", cluster.dsn()], stderr=subprocess.DEVNULL
        )
        try:
            yield cluster.dsn()
        finally:
            worker.terminate()
            worker.wait()
