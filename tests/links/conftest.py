"""Brokers for tests of links: databases of the run's server, cloned from the template."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_db import Connect
from tests.fix_server import Server
from tests.fix_worker import workers
from tests.links.rig import Broker

__all__ = ["brokers", "workers"]

_PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "gw")
_counter = itertools.count(1)


@pytest.fixture
def brokers(server: Server, connect: Connect) -> Iterator[Callable[[int], list[Broker]]]:
    """Make brokers a, b, c … with databases of their own."""
    made: list[Broker] = []

    def make(count: int) -> list[Broker]:
        for letter in "abcdefg"[len(made) : len(made) + count]:
            dsn = server.clone(f"links_{letter}_{_PROCESS}_{next(_counter)}")
            admin = connect(dsn=dsn)
            admin.execute("select pgps.configure('broker', %s)", [letter])
            made.append(Broker(letter, dsn, admin))
        return made[-count:]

    yield make
    for broker in made:
        broker.admin.close()
        server.drop(str(conninfo_to_dict(broker.dsn)["dbname"]))
