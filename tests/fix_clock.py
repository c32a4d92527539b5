"""The broker's clock of a test, as users have it, too (`pgps.testing`)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from pgps.testing.clock import Clock

__all__ = ["Clock", "clock"]


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Iterator[Clock]:
    """The clock of the database of the test: its own one when it has one, else that of this process."""
    own = "own_database" in request.fixturenames
    with psycopg.connect(request.getfixturevalue("own_database" if own else "dsn"), autocommit=True) as connection:
        made = Clock(connection)
        yield made
        made.close()
