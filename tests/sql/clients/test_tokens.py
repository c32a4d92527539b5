"""A program that was not told which session it has, and others that say they were it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from tests.fix_broker import call, refused, rows
from tests.fix_db import Connect


def connect_client(connection: psycopg.Connection, name: str, **more: Any) -> int:
    given = "".join(f", {key} => %({key})s" for key in more)
    found = rows(connection, f"select session from pgps.connect_client(%(name)s{given})", {"name": name, **more})
    session: int = found[0][0]
    return session


def test_a_program_continues_the_session_that_it_was_not_told_of(
    connect: Connect, name: Callable[..., str], admin: psycopg.Connection
) -> None:
    who, first, second, third = name("c"), connect(), connect(), connect()
    begun = connect_client(first, who, token="mine")
    with refused("55006", "is connected by process"):
        connect_client(second, who)
    with refused("55006", "is connected by process"):
        connect_client(second, who, token="another")
    # The answer was lost, and the server has not seen that the connection has gone.
    again = connect_client(second, who, token="mine")
    assert again > begun
    for session in (again, begun):
        again = connect_client(third, who, resume=session, token="mine")
    for other in ({}, {"token": "another"}):
        with refused("08003", "has ended"):
            connect_client(second, who, resume=begun, **other)
    taken = connect_client(first, who, resume=again, token="another")
    with refused("08003", "has ended"):
        connect_client(third, who, resume=again, token="mine")
    call(first, "disconnect_client", who, session=taken)
    with refused("08003"):
        connect_client(first, who, resume=again, token="another")
    with refused("22023", "token"):
        connect_client(first, who, token="t" * 101)
    call(admin, "drop_client", who)
