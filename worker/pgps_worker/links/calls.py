"""The functions of schema `pgps` that carry a link, one statement each, on either broker."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg

from pgps_worker.links import early

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgps_worker.connection import Connection

__all__ = [
    "Batch",
    "Begun",
    "LinkLook",
    "LinkRow",
    "Opened",
    "apply",
    "begin",
    "close_link",
    "identities",
    "keep",
    "lasting",
    "next_batch",
    "note_link",
    "note_refusal",
    "open_link",
    "read_links",
    "rows_of",
    "take",
]

LINK_CHANNEL = "pgps_link"

_NEXT = b"select pgps.link_next($1, $2, $3, $4, $5, $6)::text"
_TAKE = b"select pgps.link_take($1::jsonb)::text"

# As many as pgps.link_next gives at once.
_MOST_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A link that this broker defined; `at_once`: somebody has resumed it, so it is not waited any longer."""

    name: str
    conninfo: str
    draining: bool = field(default=False, compare=False)
    at_once: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class LinkLook:
    """How a link is, as pgps.links has it; `refused` events and `gaps` are of what came over it."""

    name: str
    state: str
    last_error: str
    hint: str | None
    lag_events: int
    lag_seconds: float
    refused: int
    gaps: int


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
class Begun:
    """How a batch is received: what was received last, a COPY for each type, and whether they lead into the log."""

    last: int
    copies: list[str]
    straight: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """What comes next on one way; `text` is passed on as it is.

    `kept` is set when it is on the sender's disk: only then the receiver may commit it. A sender that forgot it in a
    crash would give its numbers to other events.
    """

    text: str
    after: int
    upto: int
    messages: int
    events: int
    types: list[dict[str, Any]]
    drained: bool = False
    all_there_is: bool = True
    kept: asyncio.Event = field(default_factory=asyncio.Event, compare=False)

    @property
    def goes_ahead(self) -> bool:
        """True when it may be received while its sender still commits it: events, whose receiver locks out nobody."""
        return self.is_small and self.events > 0 and not self.messages and not self.drained

    @property
    def is_small(self) -> bool:
        """True when its events are in it, or there are none: then one statement takes it."""
        return all("rows" in wire for wire in self.types)

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to carry."""
        return self.upto == self.after


async def serve_links(connection: Connection) -> list[LinkRow]:
    """Return the links this broker's workers are to serve."""
    found = await _value(connection, "select pgps.serve_links()")
    return [LinkRow(row["name"], row["conninfo"], row["draining"], row["state"] == "connecting") for row in found]


async def end_stuck(connection: Connection) -> list[str]:
    """End sessions of neighbours that hold up others with an open transaction; return what is to be told."""
    found: list[str] = await _value(connection, "select pgps.end_stuck_links()")
    return found


async def read_links(connection: Connection) -> list[LinkLook]:
    """Return how each link of this broker is, as everybody sees it."""
    query: LiteralString = """
        select coalesce(to_jsonb(array_agg(jsonb_build_array(l.name, l.state, l.last_error, l.hint, l.lag_events,
            l.lag_seconds, l.refused, l.gaps))), '[]')
        from pgps.links l where l.defined_here
        """
    return [LinkLook(*figures) for figures in await _value(connection, query)]


async def note_link(
    connection: Connection, name: str, state: str, *, error: str | None = None, hint: str | None = None
) -> None:
    """Record how a link is, for `pgps.links`."""
    await connection.execute("select pgps.note_link(%s, %s, %s, %s)", [name, state, error, hint])


async def identity(connection: Connection) -> dict[str, Any]:
    """Return who the broker is that the connection leads to."""
    found: dict[str, Any] = await _value(connection, "select pgps.link_identity()")
    return found


async def identities(here: Connection, there: Connection) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return who two brokers are, each with what it remembers of links to the other one.

    One that has dropped the link says so; the other may still know it. An older release does not remember.
    """
    me, peer = await identity(here), await identity(there)
    query: LiteralString = "select pgps.link_past(%s)"
    mine = await _value(here, query, [peer["broker"]]) if me.get("remembers") else None
    theirs = await _value(there, query, [me["broker"]]) if peer.get("remembers") else None
    return me | {"past": mine}, peer | {"past": theirs}


def lasting(said: dict[str, Any]) -> dict[str, Any]:
    """Return what of an identity stays the same while a link is opened: how far the present link is does not."""
    past = said["past"]
    # Another server may say anything.
    return said | {"past": past.get("before") if isinstance(past, dict) else past}


async def open_link(connection: Connection, peer: dict[str, Any], duty: str, link: str | None) -> Opened:
    """Take a duty for the broker `peer`; `link` is given on the side that defined it."""
    row = await _value(connection, "select pgps.link_open(%s::jsonb, %s, %s)", [json.dumps(peer), duty, link])
    if row.get("gone"):
        return Opened(gone=True)
    return Opened(row["taken"], row["name"], row["last"], row["mark"] or "", row["channel"])


async def next_batch(
    connection: Connection,
    after: int,
    max_events: int,
    *,
    confirmed: int,
    refresh: bool,
    mark: str | None = None,
    with_rows: int = 0,
) -> Batch:
    """Return what is to be sent behind the number `after`, of which the receiver has committed `confirmed`.

    A batch of up to `with_rows` events has them in it, if it can. It is not committed yet: `keep` has to follow.
    """
    params = [after, max_events, refresh, mark, confirmed, with_rows]
    text = await early.value(connection, _NEXT, [None if param is None else str(param).encode() for param in params])
    found = json.loads(text)
    items = found["items"] or []
    events = sum(item.get("events", 0) for item in items)
    messages = sum("body" in item for item in items)
    drained = found.get("drained", False)
    complete = events < max_events and len(items) < _MOST_ITEMS
    return Batch(text, found["after"], found["upto"], messages, events, found["types"] or [], drained, complete)


async def keep(connection: Connection, batch: Batch) -> None:
    """Return when a batch is on the disk of its sender, whose connection this is, and say so to its receiver."""
    await early.committed(connection)
    batch.kept.set()


async def begin(connection: Connection, batch: Batch, *, staged: bool) -> Begun:
    """Open a transaction and begin to receive; unless `staged`, events may go straight into the log."""
    # One round trip: the client puts the values in, so that it may be two statements.
    async with psycopg.AsyncClientCursor(connection) as cursor:
        await cursor.execute("begin; select pgps.link_begin(%s::jsonb, %s)", [batch.text, staged])
        cursor.nextset()
        row = await cursor.fetchone()
    assert row is not None
    found: dict[str, Any] = row[0]  # type: ignore[assignment]
    return Begun(int(found["last"]), found.get("copies", []), bool(found.get("straight")))


async def take(connection: Connection, batch: Batch) -> int | None:
    """Receive a small batch in a transaction of its own; return what was received last if that is behind it already."""
    if batch.kept.is_set():
        found = await _value(connection, "select pgps.link_take(%s::jsonb)", [batch.text])
    else:
        found = json.loads(await early.opened(connection, _TAKE, [batch.text.encode(connection.info.encoding)]))
        await batch.kept.wait()
        await early.commit(connection)
    return None if "taken" in found else int(found["last"])


async def apply(connection: Connection) -> None:
    """Act on what was received since `begin`, and commit."""
    await connection.execute("select pgps.link_apply(); commit")


async def note_refusal(connection: Connection, error: psycopg.Error) -> None:
    """Record, at the broker of this session, why the link it has opened cannot carry."""
    said = error.diag
    query: LiteralString = "select pgps.link_refused(%s, %s, %s)"
    await connection.execute(query, [said.message_primary, said.message_hint, said.message_detail])


async def close_link(connection: Connection, *, gone: bool = False) -> None:
    """Remove a drained link on one side, in the session that sends; `gone` when the other side has done so."""
    await connection.execute("select pgps.link_close(%s)", [gone])


def rows_of(batch: Batch, wire: dict[str, Any]) -> bytes:
    """Return the COPY that reads the events of one type of a batch."""
    typed = [(a["name"], "text" if a["as_text"] else a["type"]) for a in wire["attributes"]]
    columns = [("pgps_item", "bigint")] if wire["ordered"] else []
    columns += [("pgps_event", "bigint"), *typed]
    if wire.get("rewound"):
        name, ordered = wire["name"].replace("'", "''"), str(wire["ordered"]).lower()
        shape = ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns)
        query = f"select * from pgps.link_rows('{name}', {batch.after}, {batch.upto}, {ordered}) as r({shape})"
    else:
        view = _quoted(wire["name"] + "_sent")
        names = ", ".join(_quoted(name) for name, _ in columns)
        query = f"select {names} from pgps_link.{view} where pgps_item > {batch.after} and pgps_item <= {batch.upto}"
    return f"copy ({query}) to stdout (format binary)".encode()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def _value(connection: Connection, query: LiteralString, params: Sequence[object] | None = None) -> Any:
    row = await (await connection.execute(query, params)).fetchone()
    assert row is not None
    return row[0]
