"""What encodings a broker's database may have."""

from __future__ import annotations

import os

import pytest

from pgps import install
from pgps.errors import InstallError
from tests.fix_db import Connect
from tests.fix_server import Server


def test_a_database_without_an_encoding_is_refused(empty_database: str, server: Server, connect: Connect) -> None:
    """What one session writes there, a worker may be unable to read, and so all of that worker's subscriptions stop."""
    admin = connect(dsn=empty_database)
    # Other processes share the server.
    without = f"no_encoding_{os.getpid()}"
    admin.execute(f"create database {without} encoding 'SQL_ASCII' locale 'C' template template0".encode())
    try:
        with pytest.raises(InstallError, match="SQL_ASCII") as raised:
            install.install(server.dsn(without))
        assert raised.value.sqlstate == "0A000"
        assert "createdb" in str(raised.value.hint)
    finally:
        server.drop(without)
