"""The event type that is measured, and the hand-written outbox it is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg

__all__ = ["ATTRIBUTES", "COLUMNS", "create_event_type", "create_outbox"]

ATTRIBUTES = "symbol text not null, price numeric not null, volume integer not null, at timestamptz not null"
COLUMNS = "symbol, price, volume, at"


def create_event_type(connection: psycopg.Connection, name: str = "quote") -> None:
    """Create and advertise the event type."""
    connection.execute("select pgps.create_event_type(%s, %s)", [name, ATTRIBUTES])
    connection.execute("select pgps.advertise(%s)", [name])


def create_outbox(connection: psycopg.Connection, name: str = "outbox") -> None:
    """Create the table people write by hand: the same columns, a key, a time."""
    connection.execute(
        f"create table {name} (id bigserial primary key, created_at timestamptz not null default now(),"
        f" {ATTRIBUTES})".encode()
    )
