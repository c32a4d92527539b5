"""What tests of units of work say often: parties that log on, send, receive and call SYNCPOINT."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row

Row = dict[str, Any]


class Party:
    """A connection that has logged on."""

    def __init__(self, connection: psycopg.Connection, token: str | None = None, *, logon: bool = True) -> None:
        self.connection = connection
        self.token = token
        if logon:
            self.call("logon", token)

    def call(self, function: str, *args: Any, **named: Any) -> list[Row]:
        """Call a function of pgps, in one place or by name, and return its rows."""
        places = ["%s"] * len(args) + [f"{key} => %s" for key in named]
        with self.connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(f"select * from pgps.{function}({', '.join(places)})".encode(), [*args, *named.values()])
            return cursor.fetchall()

    def serve(self, service: str) -> Party:
        self.call("register_service", *service.split("/"))
        return self

    def send(self, message: str | bytes | None, conversation: str = "new", **named: Any) -> Row:
        """Send a message; text is sent as its bytes."""
        data = message.encode() if isinstance(message, str) else message
        (row,) = self.call("send_message", data, conversation=conversation, **named)
        return row

    def request(self, service: str, *messages: str, **named: Any) -> Row:
        """Send and commit a unit of work of these messages in a new conversation."""
        first, *others = messages
        row = self.send(first, to_service=service, option="sync", **named)
        for message in others:
            row = self.send(message, row["conversation"])
        return self.sync("commit", row["uow_id"])

    def receive(self, conversation: str = "any", **named: Any) -> Row | None:
        rows = self.call("receive_message", conversation, **named)
        assert len(rows) < 2
        return rows[0] if rows else None

    def text(self, conversation: str = "any", **named: Any) -> str | None:
        """Receive, and return the message as text; None when nothing is there."""
        row = self.receive(conversation, **named)
        return None if row is None else bytes(row["message"]).decode()

    def sync(self, option: str, uow_id: str | None = None, conversation: str | None = None, **named: Any) -> Row:
        rows = self.call("syncpoint", option, uow_id=uow_id, conversation=conversation, **named)
        assert len(rows) == 1
        return rows[0]

    def both(self, conversation: str | None = None) -> list[Row]:
        return self.call("syncpoint", "commit", uow_id="both", conversation=conversation)

    def status(self, uow_id: str) -> str | None:
        """Return the status of a unit, None when it is not known."""
        row = self.sync("query", uow_id)
        assert (row["status"] is None) == (row["code"] == "00780305")
        status: str | None = row["status"]
        return status


def make_service(connection: psycopg.Connection, service: str, *grants: str, **attributes: Any) -> str:
    """Create a service class/server/service; a role among the grants may send to it and serve it."""
    places = "".join(f", {key} => %s" for key in attributes)
    parts = service.split("/")
    connection.execute(f"select pgps.create_service(%s, %s, %s{places})".encode(), [*parts, *attributes.values()])
    for role in grants:
        for privilege in ("send", "serve"):
            connection.execute("select pgps.grant_service(%s, %s, %s, %s, %s)", [*parts, privilege, role])
    return service
