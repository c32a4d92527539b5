"""What the library says about spools: statements, and a message as a member of a group gets it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from pgps.client._arguments import refused, shown
from pgps.client._wire import document

__all__ = ["SpoolOptions", "SpooledMessage", "arguments", "documents"]

SPOOL = """
    select pgps.spool(%(name)s, %(entry)s, %(message)s::jsonb, keys => %(keys)s::jsonb, keywords => %(keywords)s,
        expires => %(expires)s, network => %(network)s, ordering => %(ordering)s, sender => %(sender)s)
"""
SPOOL_MANY = "select pgps.spool_many(%s, %s::jsonb)"
INQUIRE = "select pgps.spool_inquire(%s)"
CONNECT = """
    select session
    from pgps.connect_client(%(member)s, take_over => %(take_over)s, resume => %(session)s, token => %(token)s)
"""
JOIN = """
    select pgps.join_group(%(group)s, %(member)s, replay => %(replay)s, ready => %(ready)s, session => %(session)s,
        resume => %(resume)s)
"""
LEAVE = "select pgps.leave_group(%(group)s, %(member)s, session => %(session)s)"
READY = "select pgps.group_ready(%(group)s, %(member)s, session => %(session)s)"
DISCONNECT = "select pgps.disconnect_client(%(member)s, session => %(session)s)"
CHANNEL = "select s.channel from pgps.spools s where s.name = %s"
RECEIVE = """
    select seqn, entry, message, keys, keywords, sender::text, spooler::text, spooled_at, in_replay, id
    from pgps.receive_spooled(%(group)s, %(member)s, %(max)s, session => %(session)s)
"""
ACK = "select pgps.ack_spooled(%(group)s, %(member)s, %(id)s, session => %(session)s)"


class SpoolOptions(TypedDict, total=False):
    """What `spool` takes besides the message; see pgps.spool."""

    keys: dict[str, float] | None
    keywords: list[str] | None
    expires: datetime | None
    network: str | None
    ordering: str
    sender: str | None


@dataclass(frozen=True, slots=True)
class SpooledMessage:
    """A message of a spool; without entry: the marker that ends a replay, or a gap."""

    seqn: int
    entry: int | None
    message: Any
    keys: dict[str, float] | None
    keywords: list[str] | None
    sender: str | None
    spooler: str | None
    spooled_at: datetime
    in_replay: bool
    id: int

    @property
    def is_marker(self) -> bool:
        """Whether this is no message, but says that replay is over."""
        return self.entry is None and "replay" in self.message

    @property
    def gap(self) -> tuple[int, int] | None:
        """The first and the last number of messages that a full spool has dropped, when this is no message."""
        return (*self.message["gap"],) if self.entry is None and "gap" in self.message else None


def arguments(name: str, entry: int, message: Any, options: SpoolOptions) -> dict[str, Any]:
    """Return the parameters of SPOOL."""
    keys = options.get("keys")
    return {
        "name": name,
        "entry": entry,
        "message": document(message),
        "keywords": None,
        "expires": None,
        "network": None,
        "ordering": "cbcast",
        "sender": None,
        **options,
        "keys": None if keys is None else document(keys),
    }


def documents(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return the second parameter of SPOOL_MANY."""
    if not isinstance(messages, Iterable):
        raise refused(f"messages are a list of mappings, not {shown(messages)}", "Give [{'entry': …, 'message': …}].")
    return document(list(messages))
