"""What tests of spools share: a broker of one's own would be slow, so each test has spools with names of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.fix_broker import call, quoted
from tests.fix_spools import Spool

Name = Callable[..., str]


@pytest.fixture
def spool(admin: psycopg.Connection, name: Name) -> Iterator[Spool]:
    """A spool that everybody may use, and its connection, the superuser's."""
    made = name("spool")
    call(admin, "create_spool", quoted(made))
    yield Spool(admin, made)
    admin.execute("delete from pgps_internal.spool where name = %s", [made])
