"""A neighbour made of Python: it says what a test wants it to say, and hears what the broker tells it."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg

from tests.fix_broker import call, rows, value
from tests.fix_db import wait_until
from tests.links.rig import Broker

Item = dict[str, Any]
Row = tuple[int, int]
"""Event id at the origin, and the attribute n."""


@dataclass
class Origin:
    """A broker that events come from; peers offer it."""

    name: str
    broker: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def key(self) -> Item:
        return {"broker": self.broker, "epoch": 1}


@dataclass
class Peer:
    """A neighbour of `here`; its id decides between paths of the same length."""

    here: Broker
    name: str
    broker: str = field(default_factory=lambda: str(uuid.uuid4()))
    said: int = 0
    heard: int = 0
    all_heard: list[Item] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Take both duties; a peer that was away goes on with its numbers."""
        # What it is told of counts is for tests of the audit.
        identity = {**self.here.identity(), "broker": self.broker, "epoch": 1, "name": self.name, "audits": False}
        self.hears = psycopg.connect(self.here.dsn, autocommit=True)
        self.says = psycopg.connect(self.here.dsn, autocommit=True)
        call(self.hears, "link_open", json.dumps(identity), "send")
        self.opened = call(self.says, "link_open", json.dumps(identity), "receive")

    def close(self) -> None:
        """Go away; returns when the broker has seen it."""
        pids = [connection.info.backend_pid for connection in (self.hears, self.says)]
        self.hears.close()
        self.says.close()
        gone = "select count(*) = 0 from pg_stat_activity where pid = any (%s)"
        wait_until(lambda: value(self.here.admin, gone, [pids]), what="the sessions of the peer are gone")

    def hear(self, *, settle: bool = True) -> list[Item]:
        """Return what the broker has for this neighbour, and confirm it; settle: when all is dispatched."""
        if settle:
            self.here.settle()
        found: list[Item] = []
        for _ in range(3):
            batch = call(self.hears, "link_next", self.heard, 1000, True)
            self.heard = batch["upto"]
            found += batch["items"] or []
        self.all_heard += found
        return found

    def attachment(self, origin: Origin) -> Item:
        """The newest attachment that was heard for an origin."""
        found = [i["body"] for i in self.all_heard if i["kind"] == "attach" and i["body"]["broker"] == origin.broker]
        assert found, [i["kind"] for i in self.all_heard]
        return dict(found[-1])

    def key(self, origin: Origin, wanted: str | None = None) -> str:
        """The key of the newest filter that was heard."""
        return str([i["body"]["key"] for i in self.all_heard if i["kind"] == "sub"][-1])

    def message(self, kind: str, **body: Any) -> Item:
        return {"kind": kind, "body": body}

    def ad(self, origin: Origin, *path: str, types: tuple[str, ...] = ("tick",), is_open: bool | None = None) -> Item:
        """Offer an origin by way of this peer and others; is_open None: as a broker that does not know of it."""
        way = [self.broker, *path, origin.broker]
        ad = {"name": origin.name, "path": way, "cost": len(way) - 1, "types": types}
        return self.message("ad", **origin.key, **ad, **({} if is_open is None else {"is_open": is_open}))

    def active(self, origin: Origin, key: str, attachment: int, since: int) -> Item:
        return self.message("active", **origin.key, attachment=attachment, key=key, since=since)

    def data(self, origin: Origin, attachment: int, previous: int, upto: int, *events: Row) -> Item:
        """One batch of the origin; no events: silence."""
        made = {**origin.key, "attachment": attachment, "previous": previous, "upto": upto, "events": len(events)}
        return {"kind": "data" if events else "silence", **made, "rows": events}

    def batch(self, *items: Item) -> tuple[dict[str, Any], list[Row]]:
        """Number some items as the next batch."""
        made, events, runs = [], [], []
        for place, item in enumerate(items, self.said + 1):
            numbered = {**item, "lseq": place}
            mine = list(numbered.pop("rows", ()))
            if mine:
                runs.append({"lseq": place, "n": len(mine), "published_at": datetime.now(UTC).isoformat()})
            events += mine
            made.append(numbered)
        attributes = [{"name": "n", "type": "integer", "as_text": False}]
        types = [{"name": "tick", "runs": runs, "ordered": False, "attributes": attributes}] if events else []
        after = self.said
        return {"after": after, "upto": after + len(items), "mark": f"m{after}", "items": made, "types": types}, events

    def say(self, *items: Item) -> None:
        """Let the broker receive some items as the next batch."""
        batch, events = self.batch(*items)
        self.carry(batch, events)
        self.said = batch["upto"]

    def carry(self, batch: dict[str, Any], events: list[Row], *, staged: bool = False) -> Item:
        """Let the broker receive a batch in one transaction, the long way if need be; return what it said first."""
        text = json.dumps(batch)
        try:
            with self.says.transaction():
                begun: Item = value(self.says, "select pgps.link_begin(%s::jsonb, %s)", [text, staged])
                for statement in begun.get("copies", []):
                    with self.says.cursor().copy(statement.encode()) as copy:
                        copy.set_types(["int8", "int4"])
                        for row in events:
                            copy.write_row(row)
                if "copies" in begun:
                    rows(self.says, "select pgps.link_apply(%s::jsonb)", [text])
        except psycopg.errors.SerializationFailure:
            return self.carry(batch, events, staged=True)
        return begun


def kinds(items: list[Item]) -> list[str]:
    """What was said, without what is always said."""
    return [item["kind"] for item in items if item["kind"] not in ("type", "ad")]
