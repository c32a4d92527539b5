"""A spool and a member of its group, as tests play them."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.fix_broker import call, column, rows, value
from tests.fix_clients import Client

_PATTERN = {
    "keys": "jsonb",
    "seqn": "int8range",
    "spooled_at": "tstzrange",
    "spooled_ago": "interval[]",
    "sender": "name",
    "spooler": "name",
    "keywords": "text[]",
}


def pattern_call(connection: psycopg.Connection, function: str, spool: str, **pattern: Any) -> int:
    """Call spool_replay or spool_discard with typed arguments."""
    places = "".join(f", {key} => %s::{_PATTERN[key]}" for key in pattern)
    found: int = value(connection, f"select pgps.{function}(%s{places})", [spool, *pattern.values()])
    return found


class Spool:
    """A spool, used through one connection; everything that it is asked for is dispatched at once."""

    def __init__(self, connection: psycopg.Connection, name: str) -> None:
        self.connection = connection
        self.name = name

    def dispatch(self) -> None:
        rows(self.connection, "select pgps.dispatch()")

    def call(self, function: str, *args: Any, **named: Any) -> Any:
        """Call a function about the spool, and dispatch."""
        found = call(self.connection, function, self.name, *args, **named)
        self.dispatch()
        return found

    def spool(self, *messages: Any, **named: Any) -> list[int]:
        """Spool messages, numbers as a rule, with entry 1; return the ids of the requests."""
        found = [call(self.connection, "spool", self.name, 1, str(m), **named) for m in messages]
        self.dispatch()
        return found

    def replay(self, **pattern: Any) -> int:
        return pattern_call(self.connection, "spool_replay", self.name, **pattern)

    def discard(self, **pattern: Any) -> int:
        found = pattern_call(self.connection, "spool_discard", self.name, **pattern)
        self.dispatch()
        return found

    def pointer(self, seqn: int | None) -> None:
        self.call("spool_set_replay_pointer", seqn)

    def checkpoint_at(self, seqn: int | None) -> None:
        self.call("spool_set_checkpoint_pointer", seqn)

    def checkpoint(self, message: Any, **named: Any) -> int:
        found: int = self.call("spool_and_discard", 2, str(message), **named)
        return found

    def standing(self, *columns: str) -> Any:
        """Return columns of pgps.spools: the only one, or a tuple."""
        found = rows(self.connection, f"select {', '.join(columns)} from pgps.spools where name = %s", [self.name])[0]
        return found[0] if len(columns) == 1 else found

    def contents(self) -> dict[int, Any]:
        """Return what is in the spool, by number."""
        query = "select seqn, message from pgps.spooled_messages where spool = %s"
        return dict(rows(self.connection, query, [self.name]))


class Member(Client):
    """A client that is a member of a group."""

    def __init__(self, connection: psycopg.Connection, spool: Spool, name: str, **options: Any) -> None:
        super().__init__(connection, name, take_over=True)
        self.spool = spool
        if options.pop("join", True):
            self.join(**options)

    def join(self, **options: Any) -> None:
        call(self.connection, "join_group", self.spool.name, self.name, **options)

    def leave(self) -> None:
        call(self.connection, "leave_group", self.spool.name, self.name)

    def received(self, max_messages: int = 100) -> list[tuple[int, Any, bool]]:
        """Return (number, message, in_replay) of what comes next, without acknowledging it."""
        query = "select seqn, message, in_replay from pgps.receive_spooled(%s, %s, %s)"
        return rows(self.connection, query, [self.spool.name, self.name, max_messages])

    def ack(self, delivery: int | None = None) -> int:
        found: int = call(self.connection, "ack_spooled", self.spool.name, self.name, delivery)
        return found

    def take(self, max_messages: int = 100) -> list[Any]:
        """Receive, acknowledge, and return what came: the message, [message] when replayed, "|" for the marker."""
        query = "select entry, message, in_replay, id from pgps.receive_spooled(%s, %s, %s)"
        found = rows(self.connection, query, [self.spool.name, self.name, max_messages])
        if found:
            assert self.ack(found[-1][3]) == len(found)
        return ["|" if e is None else [m] if r else m for e, m, r, _ in found]

    def ids(self) -> list[int]:
        return column(self.connection, "select id from pgps.receive_spooled(%s, %s)", [self.spool.name, self.name])
