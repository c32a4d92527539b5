"""The statements the library sends, and the definition of a subscription."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypedDict

from pgps.client._arguments import count, refused, seconds, shown, string
from pgps.client._wire import folded
from pgps.errors import AlreadyExists

__all__ = [
    "ACK",
    "ADVERTISE",
    "FIND",
    "NACK",
    "PUBLISH",
    "RECEIVE",
    "SUBSCRIBE",
    "Definition",
    "Found",
    "Options",
    "define",
]

ADVERTISE = "select pgps.advertise(%s)"
UNADVERTISE = "select pgps.unadvertise(%s)"
UNSUBSCRIBE = "select pgps.unsubscribe(%s)"
LAST_ID = "select lastval()"
# Numbers of a client process: from a transaction id, which nobody else in this database has had, up. The message has
# the commit wait for the disk: a server that crashes would give an id that nobody has written down once more.
_WRITTEN_DOWN = "pg_logical_emit_message(true, 'pgps', '') is not null"
NUMBERS = f"select (pg_current_xact_id()::text::bigint << 20) + 1 where {_WRITTEN_DOWN}"
NUMBERS_EACH = (1 << 20) - 1
# Those of one publication that is larger: above all others, which would take 2^42 transactions.
NUMBERS_OF_MANY = f"select (1::bigint << 62) + (pg_current_xact_id()::text::bigint << 24) where {_WRITTEN_DOWN}"
NUMBERS_AT_MOST = 1 << 24

PUBLISH = """
    select pgps.publish(%(event_type)s, %(payload)s::jsonb,
        visibility => %(visibility)s, reliability => %(reliability)s,
        handler => %(handler)s, producer => %(producer)s, producer_seq => %(producer_seq)s)
"""
# filter is text as the subscriber wrote it; pgps.subscriptions shows it so, too.
FIND = """
    select s.event_type, s.filter, s.scope, s.kind, s.handler, s.channel
    from pgps.subscriptions s where s.name = %(subscription)s
"""
SUBSCRIBE = """
    select pgps.subscribe(%(name)s, %(event_type)s, filter => %(filter)s, scope => %(scope)s, priority => %(priority)s,
        start => %(start)s, max_attempts => %(max_attempts)s, handler => %(handler)s)
"""
RECEIVE = """
    select event_id, event_type, payload::text, published_at, publisher::text, xid::text::bigint, origin, attempt
    from pgps.receive(%(subscription)s, %(max_events)s, %(consumer)s)
"""
ACK = "select pgps.ack(%(subscription)s, %(up_to)s, %(consumer)s)"
ACK_EACH = "select subscription, acked from pgps.ack_each(%(subscriptions)s, %(consumer)s)"
NACK = """
    select pgps.nack_events(%(subscription)s, %(event_ids)s::bigint[], %(error)s::text,
        make_interval(secs => %(retry_in)s::double precision), %(consumer)s)
"""


@dataclass(frozen=True, slots=True)
class Found:
    """A subscription as the broker has it."""

    event_type: str
    filter: str | None
    scope: str
    kind: str
    handler: str | None
    channel: str


class Options(TypedDict, total=False):
    """What a subscription may be told beyond its name and event type."""

    filter: str | None
    """SQL over the attributes, and the subscriber's tables."""
    scope: str
    """`local`, or `global`: over links, too."""
    priority: int
    start: str
    """`now`, `earliest`, or an event id; for one that is created."""
    max_attempts: int
    """How often an event is handed out before it goes to the exception queue."""
    handler: str | None
    """`any`: several clients share the events."""
    temporary: bool
    """Unsubscribe at the end."""
    prefetch: int
    """How many events are held here; the rest waits at the broker. Default 1000."""
    poll: float | None
    """Look every so many seconds, should a notification be lost; None: as the client says."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A subscription as the application wants it; with no event type it must be there already."""

    name: str
    event_type: str | None
    payload_class: type | None
    filter: str | None = None
    scope: str = "local"
    priority: int = 0
    start: str = "now"
    max_attempts: int = 5
    handler: str | None = None
    temporary: bool = False
    prefetch: int = 1000
    poll: float | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of pgps.subscribe."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    def check(self, found: Found) -> None:
        """Raise AlreadyExists when another subscription has the name."""
        differences = [
            f"{what} {has!r} instead of {wants!r}"
            for what, has, wants in (
                ("event type", found.event_type, self.event_type and folded(self.event_type)),
                ("filter", found.filter, self.filter),
                ("kind", found.kind, "external"),
            )
            if has != wants and (self.event_type is not None or what == "kind")
        ]
        if differences:
            raise AlreadyExists(
                f'subscription "{self.name}" exists with {", ".join(differences)}',
                hint="Choose another name, or unsubscribe it first; without an event type it is taken as it is.",
                sqlstate="42710",
            )


def define(name: str, event_type: str | None, payload_class: type | None, options: Options) -> Definition:
    """Return a definition. Raises BadArgument when nothing could be held."""
    string(name, "the name of a subscription", "Give client.subscribe('name', …).")
    if payload_class is not None and not dataclasses.is_dataclass(payload_class):
        raise refused(f"{shown(payload_class)} is no dataclass", "Decorate the class with @dataclasses.dataclass.")
    made = Definition(name, event_type, payload_class, **options)
    if count(made.prefetch, "prefetch") < 1:
        raise refused(f"invalid prefetch {made.prefetch}", "Give a positive number.")
    return made if made.poll is None else dataclasses.replace(made, poll=seconds(made.poll, "poll"))
