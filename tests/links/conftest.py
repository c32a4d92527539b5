"""Brokers for tests of links: databases of the run's server, cloned from the template."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_broker import rows
from tests.fix_db import Connect
from tests.fix_server import Server, when_alone
from tests.fix_worker import workers
from tests.links.rig import Broker
from tests.links.unit_scene import scene

__all__ = ["brokers", "scene", "workers"]

_PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "gw")
_counter = itertools.count(1)


@pytest.fixture
def brokers(
    server: Server, connect: Connect, request: pytest.FixtureRequest
) -> Iterator[Callable[[int], list[Broker]]]:
    """Make brokers a, b, c … with databases of their own, in which nothing is lost in silence."""
    made: list[Broker] = []

    def make(count: int) -> list[Broker]:
        for letter in "abcdefgh"[len(made) : len(made) + count]:
            dsn = server.clone(f"links_{letter}_{_PROCESS}_{next(_counter)}")
            admin = connect(dsn=dsn)
            admin.execute("select pgps.configure('broker', %s)", [letter])
            # What is published is compared with what came as often as anybody looks.
            admin.execute("select pgps.configure('link_report_interval', '0 seconds')")
            # On a machine that is busy with something else the lanes' work is not left to a worker that is not there.
            admin.execute("select pgps.configure('dispatch_lane_timeout', '1 hour')")
            # Nor is a filter taken for one that holds up the dispatcher: neighbours would get every event then.
            admin.execute("select pgps.configure('dispatch_filter_timeout', '1 hour')")
            made.append(Broker(letter, dsn, admin))
        return made[-count:]

    yield make
    found = [(broker.name, *row) for broker in made for row in rows(broker.admin, "select * from pgps.audit_findings")]
    for broker in made:
        broker.admin.close()
        server.drop(str(conninfo_to_dict(broker.dsn)["dbname"]))
    # Whatever a test does to paths, links and brokers: the audit names what was lost in silence, and nothing else.
    assert not found or request.module.__name__.rpartition(".")[2].startswith("test_audit"), found


@pytest.fixture
def copied(server: Server, connect: Connect) -> Iterator[Callable[[Broker], Broker]]:
    """Copy a broker's database, as a backup taken now would be restored beside it."""
    made: list[Broker] = []

    def copy(broker: Broker) -> Broker:
        source = str(conninfo_to_dict(broker.dsn)["dbname"])
        broker.admin.close()
        with psycopg.connect(server.base, autocommit=True) as connection:
            when_alone(connection, f'create database "{source}_copy" template "{source}"')
        broker.admin = connect(dsn=broker.dsn)
        dsn = server.dsn(f"{source}_copy")
        made.append(Broker(broker.name, dsn, connect(dsn=dsn)))
        return made[-1]

    yield copy
    for broker in made:
        broker.admin.close()
        server.drop(str(conninfo_to_dict(broker.dsn)["dbname"]))
