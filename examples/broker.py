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

__all__ = ["broker", "brokers"]


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """Yield the connection string of a broker that is gone behind the block."""
    with brokers(1) as (dsn,):
        yield dsn


@contextlib.contextmanager
def brokers(count: int) -> Iterator[list[str]]:
    """Yield the connection strings of so many brokers, each with a worker, in one server."""
    with EmbeddedCluster(f"example-{os.getpid()}", fast=True, keep=False) as cluster, contextlib.ExitStack() as stack:
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            for number in range(count):
                connection.execute(f"create database broker_{number}".encode())
        dsns = [cluster.dsn(f"broker_{number}") for number in range(count)]
        for number, dsn in enumerate(dsns):
            install.install(dsn)
            if number == 0:
                with psycopg.connect(dsn) as connection:
                    connection.execute("create role broker_worker login in role pgps_worker")
            stack.enter_context(_worker(make_conninfo(dsn, user="broker_worker")))
        yield dsns


@contextlib.contextmanager
def _worker(dsn: str) -> Iterator[None]:
    worker = subprocess.Popen([sys.executable, "-m", "pgps_worker", "--dsn", dsn], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait()
