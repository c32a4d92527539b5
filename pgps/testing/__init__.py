"""A pytest plugin for programs that publish to a broker or subscribe to it.

Ask for it in `conftest.py`, and install the extra `pgps[testing]`:

    pytest_plugins = ["pgps.testing"]

| fixture         | gives                                                                                           |
|-----------------|-------------------------------------------------------------------------------------------------|
| `pgps_broker`   | a `Broker` of the test's own: event types, events, what a worker does, and what subscribers get |
| `pgps_database` | the connection string of its database; PGPS_DSN is set to it, too                               |
| `pgps_server`   | the `Server` of the run, for tests that need several brokers                                    |

The server is an embedded cluster, made when the first test needs it and removed when the run ends. `--pgps-dsn`, or
`pgps_dsn` in pytest's configuration, names another one: the connection string of a superuser.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgps.testing.broker import Broker
from pgps.testing.clock import Clock
from pgps.testing.server import Server, embedded_server, given_server

__all__ = ["Broker", "Clock", "Server", "pgps_broker", "pgps_database", "pgps_server"]

_HELP = "connection string of a superuser of the server that tests use; without it they make an embedded cluster"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say which options and settings there are."""
    parser.getgroup("pgps").addoption("--pgps-dsn", help=_HELP)
    parser.addini("pgps_dsn", _HELP, default="")


@pytest.fixture(scope="session")
def pgps_server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """The server that all tests of this process share."""
    dsn = pytestconfig.getoption("--pgps-dsn") or pytestconfig.getini("pgps_dsn")
    if dsn:
        yield given_server(str(dsn))
        return
    with embedded_server() as server:
        yield server


@pytest.fixture
def pgps_database(pgps_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The connection string of a database with pgps and nothing else, which is dropped when the test ends."""
    with pgps_server.database() as dsn:
        monkeypatch.setenv("PGPS_DSN", dsn)
        yield dsn


@pytest.fixture
def pgps_broker(pgps_database: str) -> Iterator[Broker]:
    """A broker that no other test sees."""
    with Broker(pgps_database) as broker:
        yield broker
