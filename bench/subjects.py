"""The event type that is measured, and the hand-written outbox it is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    import psycopg

__all__ = ["ATTRIBUTES", "COLUMNS", "create_event_type", "create_outbox", "publisher"]

ATTRIBUTES = "symbol text not null, price numeric not null, volume integer not null, at timestamptz not null"
COLUMNS = "symbol, price, volume, at"


_PUBLISHER = "bench_publisher"


def publisher(dsn: str) -> str:
    """Return the connection string of the plain role that publishes, to pgps and to what it is compared with."""
    return make_conninfo(dsn, user=_PUBLISHER)


def create_event_type(connection: psycopg.Connection, name: str = "quote") -> None:
    """Create the event type, advertised by who creates it and by the publisher."""
    connection.execute("select pgps.create_event_type(%s, %s)", [name, ATTRIBUTES])
    connection.execute("select pgps.advertise(%s)", [name])
    if not connection.execute("select 1 from pg_roles where rolname = %s", [_PUBLISHER]).fetchone():
        connection.execute(f"create role {_PUBLISHER} login".encode())
    connection.execute(f"grant insert on pgps_event.{name} to {_PUBLISHER}".encode())
    with connection.transaction():
        connection.execute(f"set local role {_PUBLISHER}".encode())
        connection.execute("select pgps.advertise(%s)", [name])


def create_outbox(connection: psycopg.Connection, name: str = "outbox") -> None:
    """Create an outbox table as people write it by hand: the same columns, a key, a time."""
    connection.execute(
        f"create table {name} (id bigserial primary key, created_at timestamptz not null default now(),"
        f" {ATTRIBUTES})".encode()
    )
    for grant in (f"insert, select on {name}", f"usage on {name}_id_seq"):
        connection.execute(f"grant {grant} to {_PUBLISHER}".encode())
