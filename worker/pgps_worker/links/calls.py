"""The functions of schema `pgps` that carry a link, one statement each, on either broker."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgps_worker.connection import Connection

__all__ = [
    "Batch",
    "LinkRow",
    "Opened",
    "apply",
    "begin",
    "close_link",
    "identity",
    "next_batch",
    "note_link",
    "open_link",
    "rows_of",
]

LINK_CHANNEL = "pgps_link"


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A link that this broker defined."""

    name: str
    conninfo: str
    draining: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Opened:
    """What a session learns when it takes a duty: `taken`: another has it; `gone`: the link was dropped there."""

    taken: bool = False
    neighbour: str = ""
    last: int = 0
    mark: str = ""
    channel: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What comes next on one way; `text` is passed on as it is."""

    text: str
    after: int
    upto: int
    messages: int
    events: int
    types: list[dict[str, Any]]
    drained: bool = False

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to carry."""
        return self.upto == self.after


async def serve_links(connection: Connection) -> list[LinkRow]:
    """Return the links this broker's workers are to serve."""
    found = await _value(connection, "select pgps.serve_links()")
    return [LinkRow(row["name"], row["conninfo"], row["draining"]) for row in found]


async def note_link(
    connection: Connection, name: str, state: str, *, error: str | None = None, hint: str | None = None
) -> None:
    """Record how a link is, for `pgps.links`."""
    await connection.execute("select pgps.note_link(%s, %s, %s, %s)", [name, state, error, hint])


async def identity(connection: Connection) -> dict[str, Any]:
    """Return who the broker is that the connection leads to."""
    found: dict[str, Any] = await _value(connection, "select pgps.link_identity()")
    return found


async def open_link(connection: Connection, peer: dict[str, Any], duty: str, link: str | None) -> Opened:
    """Take a duty for the broker `peer`; `link` is given on the side that defined it."""
    row = await _value(connection, "select pgps.link_open(%s::jsonb, %s, %s)", [json.dumps(peer), duty, link])
    if row.get("gone"):
        return Opened(gone=True)
    return Opened(row["taken"], row["name"], row["last"], row["mark"] or "", row["channel"])


async def next_batch(
    connection: Connection, after: int, max_events: int, *, refresh: bool, mark: str | None = None
) -> Batch:
    """Return what is to be sent behind the number `after`, which the receiver has."""
    query: LiteralString = "select pgps.link_next(%s, %s, %s, %s)::text"
    row = await (await connection.execute(query, [after, max_events, refresh, mark])).fetchone()
    assert row is not None
    text = str(row[0])
    found = json.loads(text)
    items = found["items"] or []
    events = sum(item.get("events", 0) for item in items)
    messages = sum("body" in item for item in items)
    drained = found.get("drained", False)
    return Batch(text, found["after"], found["upto"], messages, events, found["types"] or [], drained)


async def begin(connection: Connection, batch: Batch) -> tuple[int, list[str]]:
    """Begin to receive; return what was received last, and a COPY for each type of the batch."""
    row = await _value(connection, "select pgps.link_begin(%s::jsonb)", [batch.text])
    return int(row["last"]), list(row.get("copies", []))


async def apply(connection: Connection, batch: Batch) -> None:
    """Act on what was received; the commit follows."""
    await connection.execute("select pgps.link_apply(%s::jsonb)", [batch.text])


async def close_link(connection: Connection, *, gone: bool = False) -> None:
    """Remove a drained link on one side, in the session that sends; `gone` when the other side has done so."""
    await connection.execute("select pgps.link_close(%s)", [gone])


def rows_of(batch: Batch, wire: dict[str, Any]) -> bytes:
    """Return the COPY that reads the events of one type of a batch."""
    columns = ['"pgps_item" bigint', '"pgps_event" bigint']
    columns += [f"{_quoted(a['name'])} {'text' if a['as_text'] else a['type']}" for a in wire["attributes"]]
    name = wire["name"].replace("'", "''")
    ordered = "true" if wire["ordered"] else "false"
    return (
        f"copy (select * from pgps.link_rows('{name}', {batch.after}, {batch.upto}, {ordered})"
        f" as r({', '.join(columns)})) to stdout (format binary)"
    ).encode()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def _value(connection: Connection, query: LiteralString, params: Sequence[object] | None = None) -> Any:
    row = await (await connection.execute(query, params)).fetchone()
    assert row is not None
    return row[0]
