"""A client of the broker, played by a test: one database session and the notifications that it gets."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from tests.fix_broker import Params, call, column, rows
from tests.fix_db import notifications, wait_until


class Client:
    """A program that has connected under a name; `listen` before you expect notes."""

    def __init__(self, connection: psycopg.Connection, name: str, **options: Any) -> None:
        self.connection = connection
        self.name = name
        self.before = self.one("select * from pgps.connect_client(%s, take_over => %s, resume => %s)", options)
        assert self.before is not None
        self.session: int = self.before["session"]

    def one(self, query: str, options: dict[str, Any] | None = None, *, params: Params = ()) -> dict[str, Any] | None:
        """Return the row of a query as a dictionary, None when it has none."""
        given = [self.name, (options or {}).get("take_over", False), (options or {}).get("resume")]
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query.encode(), params or given[: query.count("%s")]).fetchone()

    def call(self, function: str, *args: Any, **named: Any) -> Any:
        return call(self.connection, function, self.name, *args, **named)

    def register(self, event_name: str, mode: str = "queued", **named: Any) -> dict[str, Any]:
        """Register, and listen to what it takes."""
        query = "select * from pgps.register_for_event(%s, %s, %s)"
        found = self.one(query, params=[self.name, event_name, mode])
        assert found is not None
        self.listen()
        return found

    def listen(self) -> None:
        for channel in self.call("client_channels"):
            self.connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))

    def notes(self, *, waits: bool = False) -> list[str]:
        """Return the notes of direct events raised before this call; `waits`: until there is one."""
        found: list[str] = []

        def came() -> bool:
            found.extend(n.payload for n in notifications(self.connection) if n.payload[:1].isdigit())
            return bool(found) or not waits

        wait_until(came, what=f"a note for client {self.name}")
        return found

    def pushed(self, *, waits: bool = False) -> list[int]:
        """Return attribute n of the direct events raised before this call; `waits`: until there is one."""
        query = "select payload -> 'n' from pgps.fetch_direct(%s, %s)"
        return column(self.connection, query, [self.name, self.notes(waits=waits)])

    def receive(self, event_name: str | None = None, checkpoint: bytes | None = None) -> dict[str, Any] | None:
        """Return the next occurrence, with `numbers`: attribute n of its tuples."""
        query = "select * from pgps.receive_event(%s, %s, %s)"
        return self.with_numbers(self.one(query, params=[self.name, event_name, checkpoint]))

    def receive_again(self) -> dict[str, Any] | None:
        return self.with_numbers(self.one("select * from pgps.re_receive_event(%s)"))

    def with_numbers(self, found: dict[str, Any] | None) -> dict[str, Any] | None:
        if found is not None:
            found["numbers"] = self.numbers()
        return found

    def numbers(self) -> list[int]:
        return column(self.connection, "select payload -> 'n' from pgps.fetch_tuples(%s)", [self.name])

    def taken(self) -> list[list[int]]:
        """Receive and complete all that waits; return the numbers of each occurrence."""
        found: list[list[int]] = []
        while (occurrence := self.receive()) is not None:
            found.append(occurrence["numbers"])
        return found

    def reply(self) -> dict[str, Any] | None:
        """Return the next reply, with its `rows`."""
        found = self.one("select * from pgps.receive_reply(%s)")
        if found is not None:
            found["rows"] = column(self.connection, "select payload from pgps.fetch_reply(%s)", [self.name])
        return found

    def drop(self) -> None:
        rows(self.connection, "select pgps.drop_client(%s)", [self.name])
