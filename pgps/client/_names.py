"""What a named client knows of itself, and the statements it sends."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pgps.client._arguments import string
from pgps.client.events import loads
from pgps.errors import BadArgument

__all__ = ["GROUP", "Registration", "Registrations", "State", "bare", "carried", "covers", "is_note", "precision"]

GROUP = 1000
"""Tuples and rows are fetched in groups of this size."""

CONNECT = "select * from pgps.connect_client(%(client)s, %(take_over)s, %(resume)s, %(token)s)"
DISCONNECT = "select pgps.disconnect_client(%(client)s, %(session)s)"
USE = "select pgps.use_client(%s, %s)"
# The last tells which transactions had ended, so that their events have been told of.
_ENDED = "pg_catalog.pg_current_snapshot()::text"
CHANNELS = f"select pgps.client_channels(%(client)s, %(session)s), {_ENDED}"
REGISTER = f"""
    select r.*, {_ENDED}
    from pgps.register_for_event(%(client)s, %(event_name)s, %(mode)s, %(style)s, %(session)s) r
"""
UNREGISTER = "select pgps.unregister_for_event(%(client)s, %(event_name)s, %(session)s)"
_OCCURRENCE = """
    select event_id, last_event_id, event_type, event_name, published_at, publisher::text, xid::text::bigint,
        origin, raiser, attempt, tuples
    from pgps."""
RECEIVE_EVENT = _OCCURRENCE + "receive_event(%(client)s, %(event_name)s, %(checkpoint)s, %(session)s, %(among)s)"
RE_RECEIVE_EVENT = _OCCURRENCE + "re_receive_event(%(client)s, %(session)s, %(among)s)"
COMMIT_EVENT = "select pgps.commit_event(%(client)s, %(checkpoint)s, %(session)s, %(among)s)"
_QUEUED = """
    from pgps.registrations r join pgps.clients c on c.name = r.client
    where c.channel = %(channel)s and r.mode = 'queued'
"""
QUEUED = "select r.registration" + _QUEUED
EVENT_COMPLETED = f"""
    select coalesce((select r.last_committed_event is not distinct from %(id)s
        or r.last_received_event is distinct from %(id)s {_QUEUED} and r.event_name = %(event_name)s), true)
"""
REPLY_COMPLETED = "select last_committed_request >= %(id)s from pgps.clients where channel = %(channel)s"
TUPLES = """
    select event_id, coalesce(payload, '{}')::text
    from pgps.fetch_tuples(%(client)s, %(after)s, %(max)s, %(session)s, %(among)s)
"""
FETCH_DIRECT = """
    select note, event_id, coalesce(payload, '{}')::text, event_type, event_name, published_at, publisher::text,
        xid::text::bigint, origin, raiser, up_to, occurrence
    from pgps.fetch_direct(%(client)s, %(notes)s, %(after)s, %(max)s, %(session)s)
"""
SEND = "select pgps.send_request(%(client)s, %(request)s, %(id)s, %(session)s)"
CANCEL = "select pgps.cancel_request(%(client)s, %(id)s, %(session)s)"
_REPLY = """
    select request_id, status, columns, row_count, sqlstate, error, detail, hint, sent_at, replied_at, attempts
    from pgps."""
RECEIVE_REPLY = _REPLY + "receive_reply(%(client)s, %(checkpoint)s, %(session)s)"
RE_RECEIVE_REPLY = _REPLY + "re_receive_reply(%(client)s, %(session)s)"
COMMIT_RECEIVE = "select pgps.commit_receive(%(client)s, %(checkpoint)s, %(session)s)"
REPLY_ROWS = "select row_number, payload::text from pgps.fetch_reply(%(client)s, %(after)s, %(max)s, %(session)s)"


_NOTE = re.compile(r"[0-9]{1,9} [0-9]{1,18} [0-9]{1,18}(?: [0-9]{1,18})?")


def is_note(payload: str) -> bool:
    """Tell whether this is a note of direct events, with or without what it carries."""
    return _NOTE.fullmatch(bare(payload)) is not None


def bare(note: str) -> str:
    """Return a note of direct events without what it carries."""
    return note.partition(" [")[0]


def carried(note: str) -> list[Any]:
    """Return what a note carries: event type, published_at, publisher, xid, origin, raiser, tuples."""
    statement: list[Any] = loads("[" + note.partition(" [")[2])
    return statement


def covers(event_name: str, event_type: str) -> bool:
    """Tell whether a name or `prefix*`, as a program gave it, stands for an event type."""
    if event_name.endswith("*"):
        # As pgps._covers: the types of pgps itself are for prefixes of its own.
        return event_type.startswith((event_name[:-1], event_name[:-1].lower())) and (
            not event_type.startswith("pgps_") or event_name.lower().startswith("pgps_")
        )
    quoted = event_name[:1] == '"'
    return (
        event_type == event_name[1:-1].replace('""', '"') if quoted else event_type in (event_name, event_name.lower())
    )


def precision(event_name: str) -> tuple[bool, int]:
    """Order names by how particular they are."""
    return not event_name.endswith("*"), len(event_name)


@dataclass(frozen=True, slots=True)
class State:
    """Where the last session of a client stood; None where there was nothing.

    `session` and `channel` are of this one. `disconnected`: the last session
    ended with `disconnect`. An event that was received and not committed is
    to be received again with `re_receive_event`, a reply likewise.
    """

    session: int = 0
    channel: str = ""
    resumed: bool = False
    disconnected: bool | None = None
    previous_at: dt.datetime | None = None
    last_sent_request: int | None = None
    last_received_request: int | None = None
    last_committed_request: int | None = None
    last_received_event: int | None = None
    last_committed_event: int | None = None
    reply_checkpoint: bytes | None = None
    event_checkpoint: bytes | None = None


@dataclass(slots=True)
class Registration:
    """What a client is registered for in this session.

    A handler that raises on a queued occurrence gets it again after
    `retry_in` seconds; when it has failed `max_attempts` times on one, it is
    called no more: `error` says why, and the occurrence stays in the queue.
    So it is, at once and in either mode, when it raises what is no Exception,
    such as SystemExit; direct events are then for whoever polls.
    """

    number: int
    event_name: str
    mode: str
    subscription: str | None
    handler: Callable[..., Any] | None = None
    transactional: bool = False
    retry_in: float = 1.0
    max_attempts: int = 5
    failed: int = 0
    error: BaseException | None = None
    ready: bool = True
    looked: float = field(default=0.0, repr=False)
    in_hand: int | None = field(default=None, repr=False)
    """The occurrence that a handler was given, and has not completed."""
    is_known: bool = field(default=False, repr=False)
    """Whether it was asked what the session before has left in hand."""
    attempts: int = field(default=0, repr=False)

    @property
    def is_handled(self) -> bool:
        """Whether its occurrences are to be handed to a handler."""
        return self.handler is not None and self.error is None

    def note_failure(self, error: BaseException) -> None:
        """Count a failure of the handler; one that is no Exception ends it."""
        self.failed += 1
        if not isinstance(error, Exception):
            self.error = error

    def note_failure_on(self, event_id: int, error: BaseException) -> None:
        """Count how often the handler has failed on a queued occurrence, which is in hand until it is handled."""
        self.note_failure(error)
        self.attempts += 1
        self.in_hand = event_id
        if self.attempts >= self.max_attempts:
            self.error = error

    def is_done(self) -> None:
        """Note that nothing is in hand."""
        self.in_hand, self.attempts = None, 0


class Registrations(dict[str, Registration]):
    """What a client is registered for in this session, by the names it gave."""

    def found(self, event_name: str) -> Registration | None:
        """Return the registration for a name, if there is one. Raises BadArgument for what is no string."""
        return self.get(string(event_name, "the name of an event type", "Give the one that was registered for."))

    def named(self, event_name: str) -> Registration:
        """Return the registration for a name. Raises BadArgument."""
        found = self.found(event_name)
        if found is None:
            raise BadArgument(f'this session has not registered for "{event_name}"', hint="Register for it first.")
        return found

    def direct(self, event_type: str) -> Registration | None:
        """Return the most particular registration that gets events of a type directly."""
        found = (one for one in self.values() if one.mode == "direct" and covers(one.event_name, event_type))
        return max(found, key=lambda one: precision(one.event_name), default=None)
