"""Brokers in databases of one server, and links between them that a test moves step by step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pgps_worker.links import calls
from tests.fix_broker import call, column, rows, value
from tests.fix_db import wait_until


@dataclass
class Broker:
    """A broker: a database and a connection of its administrator."""

    name: str
    dsn: str
    admin: psycopg.Connection

    def identity(self) -> dict[str, Any]:
        found: dict[str, Any] = call(self.admin, "link_identity")
        return found

    def introduction(self, other: Broker) -> dict[str, Any]:
        """Return what a worker tells the other one of this broker."""
        return self.identity() | {"past": call(self.admin, "link_past", other.identity()["broker"])}

    def settle(self) -> None:
        """Match what has been committed."""
        rows(self.admin, "select pgps.dispatch()")


@dataclass
class Lane:
    """One way of a link: the sender's session and the receiver's."""

    source: psycopg.Connection
    target: psycopg.Connection
    last: int
    mark: str | None
    moved: int = 0
    straight: bool = False
    drained: bool = False
    with_rows: int = 0
    taken: bool = False
    batches: list[dict[str, Any]] = field(default_factory=list)

    def next(self, max_events: int = 1000, *, refresh: bool = True) -> dict[str, Any]:
        batch: dict[str, Any] = call(
            self.source, "link_next", self.last, max_events, refresh, self.mark, self.last, self.with_rows
        )
        self.drained = batch.get("drained", False)
        return batch

    def carry(self, batch: dict[str, Any], *, staged: bool = False, at: Callable[[str], None] = lambda _: None) -> None:
        """Receive a batch in one transaction; once more the long way when it cannot go straight into the log.

        `at` is told before each step, and may raise.
        """
        text = json.dumps(batch)
        at("begin")
        try:
            if self.with_rows and not staged and all("rows" in wire for wire in batch["types"]):
                taken = value(self.target, "select pgps.link_take(%s::jsonb)", [text])
                at("confirm")
                if "taken" not in taken:
                    self.last, self.mark = taken["last"], None
                    return
                self.last, self.mark, self.taken = batch["upto"], batch["mark"], True
                self.batches.append(batch)
                return
            self.taken = False
            with self.target.transaction():
                begun = value(self.target, "select pgps.link_begin(%s::jsonb, %s)", [text, staged])
                if begun["last"] > batch["after"]:
                    self.last, self.mark = begun["last"], None
                    return
                at("copy")
                for wire, copy in zip(batch["types"], begun["copies"], strict=True):
                    self.moved += self._copy(batch, wire, copy)
                at("apply")
                value(self.target, "select pgps.link_apply(%s::jsonb)", [text])
                at("commit")
            at("confirm")
        except (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.SerializationFailure):
            if staged:
                raise
            self.carry(batch, staged=True, at=at)
            return
        self.last, self.mark = batch["upto"], batch["mark"]
        self.straight = begun.get("straight", False)
        self.batches.append(batch)

    def _copy(self, batch: dict[str, Any], wire: dict[str, Any], copy: str) -> int:
        found = calls.Batch("", batch["after"], batch["upto"], 0, 0, [])
        read = calls.rows_of(found, wire)
        size = 0
        with (
            self.source.cursor().copy(read) as reader,
            self.target.cursor().copy(copy.encode()) as writer,
        ):
            for chunk in reader:
                size += len(chunk)
                writer.write(chunk)
        return size

    def move(self, *, max_events: int = 1000) -> bool:
        """Carry one batch; False when there is none."""
        batch = self.next(max_events)
        self.mark = None
        if not batch["items"]:
            return False
        self.carry(batch)
        return True


@dataclass
class Link:
    """Both ways between two brokers."""

    one: Broker
    other: Broker
    out: Lane
    back: Lane

    def move(self) -> bool:
        there, here = self.out.move(), self.back.move()
        return there or here

    @property
    def drained(self) -> bool:
        """True when both sides have nothing more to do."""
        return self.out.drained and self.back.drained

    def remove(self) -> None:
        """Do what a worker does with a drained link: the side that it connects to first."""
        call(self.back.source, "link_close")
        call(self.out.source, "link_close")

    def close(self) -> None:
        """Close the sessions; returns when the server has seen it, and both brokers are on their own."""
        sessions = [session for lane in (self.out, self.back) for session in (lane.source, lane.target)]
        pids = [session.info.backend_pid for session in sessions if not session.closed]
        for session in sessions:
            session.close()
        gone = "select count(*) = 0 from pg_stat_activity where pid = any (%s)"
        wait_until(lambda: value(self.one.admin, gone, [pids]), what="the sessions of the link are gone")


def open_lane(source: Broker, target: Broker, *, link: str | None, defined_at_source: bool) -> Lane:
    """Open the sessions of one way."""
    sender = psycopg.connect(source.dsn, autocommit=True)
    receiver = psycopg.connect(target.dsn, autocommit=True)
    try:
        theirs, mine = json.dumps(target.introduction(source)), json.dumps(source.introduction(target))
        sent = call(sender, "link_open", theirs, "send", link if defined_at_source else None)
        got = call(receiver, "link_open", mine, "receive", None if defined_at_source else link)
    except psycopg.Error:
        sender.close()
        receiver.close()
        raise
    assert not sent["taken"]
    assert not got["taken"]
    return Lane(sender, receiver, got["last"], got["mark"] or "")


def open_link(one: Broker, other: Broker, name: str) -> Link:
    """Open a link that `one` has defined."""
    return Link(
        one,
        other,
        open_lane(one, other, link=name, defined_at_source=True),
        open_lane(other, one, link=name, defined_at_source=False),
    )


def settle(brokers: list[Broker], links: list[Link], *, rounds: int = 60) -> None:
    """Move everything until nothing moves any more."""
    still = 0
    for _ in range(rounds):
        for broker in brokers:
            broker.settle()
        moved = [link.move() for link in links]
        still = 0 if any(moved) else still + 1
        if still == 2:
            return
    raise AssertionError(f"the links do not come to rest: {[link.out.batches[-1] for link in links]}")


@contextmanager
def linked(pairs: list[tuple[Broker, Broker]]) -> Iterator[list[Link]]:
    """Define and open links between pairs of brokers; the first of a pair defines it."""
    made: list[Link] = []
    try:
        for one, other in pairs:
            name = f"to_{other.name}"
            call(one.admin, "create_link", name, other.dsn)
            made.append(open_link(one, other, name))
        yield made
    finally:
        for link in made:
            link.close()


def received(broker: Broker, subscription: str) -> list[tuple[str, int]]:
    """Origin and n of what a subscription has, in order; acknowledged."""
    found = rows(broker.admin, "select origin, (payload ->> 'n')::int from pgps.receive(%s, 100000)", [subscription])
    call(broker.admin, "ack", subscription)
    return found


def names(connection: psycopg.Connection) -> list[str]:
    return column(connection, "select name from pgps.links order by 1")


def filters_from(broker: Broker, neighbour: str) -> list[str | None]:
    """Return the filters that a neighbour has sent."""
    return column(
        broker.admin,
        "select f.filter from pgps_internal.wanted w join pgps_internal.link_filter f using (key)"
        " join pgps_internal.neighbour n using (neighbour_id) where n.name = %s order by 1",
        [neighbour],
    )
