"""A client whose program ends without a word."""

from __future__ import annotations

import psycopg

from tests.fix_broker import value
from tests.fix_clients import Client
from tests.fix_db import wait_until


def hang_up(client: Client, witness: psycopg.Connection) -> None:
    """Close the client's database session, and wait until the server has noticed: until then the name is taken."""
    client.connection.close()
    connected = "select connected from pgps.clients where name = %s"
    wait_until(lambda: value(witness, connected, [client.name]) is False, what=f"{client.name} is gone")
