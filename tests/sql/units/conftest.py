"""A broker of its own, with a deferred service, and parties that speak for tokens."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_db import Connect
from tests.fix_units import Party, make_service

SERVICE = "shop/orders/book"


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    """The superuser's connection to a broker that has the service shop/orders/book."""
    connection = connect(dsn=own_database)
    make_service(connection, SERVICE, deferred=True)
    return connection


@pytest.fixture
def party(own_database: str, connect: Connect) -> Callable[..., Party]:
    """Log sessions on: `party("white")`, `party()` without a token, `party("x", role=…)`, `autocommit=False`."""

    def made(token: str | None = None, *, role: str | None = None, autocommit: bool = True) -> Party:
        connection = connect(role, dsn=own_database)
        party = Party(connection, token)
        connection.autocommit = autocommit
        return party

    return made
