"""Units of work, and messages of them, as the client library returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict

from pgps.client._arguments import refused, require_storable, shown, string
from pgps.client._wire import folded

__all__ = ["END_OF_UNIT", "NOT_FOUND", "Message", "SendOptions", "UnitOfWork"]

END_OF_UNIT = "00740301"
"""The unit of work has been received to its end: it is to be committed, backed out or cancelled."""
NOT_FOUND = "00780305"
"""There is no such unit of work, or none yet."""


@dataclass(frozen=True, slots=True)
class UnitOfWork:
    """How a unit of work stands, with the conversation that it is in.

    `status` is RECEIVED, ACCEPTED, DELIVERED, or, while a persistent status is
    kept, BACKEDOUT, PROCESSED, CANCELLED, TIMEOUT, DISCARDED. `code` is None, or
    NOT_FOUND; then everything else is None.
    """

    uow_id: str | None
    conversation: str | None
    status: str | None
    user_status: str | None
    service_class: str | None
    server: str | None
    service: str | None
    committed_at: datetime | None
    attempts: int | None
    store: str | None
    lifetime_ends: datetime | None
    conversation_state: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class Message:
    """A message, and the unit of work that it is a part of.

    `status` is RECV_NONE (of no unit of work), RECV_FIRST, RECV_MIDDLE, RECV_LAST
    or RECV_ONLY. `attempts`: how often the unit has been given back before.
    """

    uow_id: str | None
    conversation: str
    status: str
    user_status: str | None
    service_class: str
    server: str
    service: str
    committed_at: datetime | None
    attempts: int
    store: str
    lifetime_ends: datetime
    conversation_state: str
    code: str | None
    data: bytes
    number: int
    sender: str | None
    sender_token: str | None

    @property
    def is_last(self) -> bool:
        """Whether nothing comes behind it in its unit of work."""
        return self.status in ("RECV_LAST", "RECV_ONLY", "RECV_NONE")


class SendOptions(TypedDict, total=False):
    """What a message may be sent with; the first one of a unit of work decides."""

    store: str
    """`off` (as the service says), `broker` (it survives restarts), `no`."""
    lifetime: timedelta | str | None
    """How long the unit of work may take, from the first message on; None: as the service says."""
    status_lifetime: int
    """1 to 254 lifetimes for which its status is kept when it is over, 0 as the service says, 255 none."""
    user_status: str | None


LOGON = "select pgps.logon(%s)"
LOGOFF = "select pgps.logoff()"
REGISTER = "select pgps.register_service(%s, %s, %s)"
DEREGISTER = "select pgps.deregister_service(%s, %s, %s)"
CHANNELS = "select c from pgps.session_channels() c"
SEND = """
    select * from pgps.send_message(%(message)s, %(conversation)s, %(to_service)s, %(option)s, %(store)s,
        %(lifetime)s::interval, %(status_lifetime)s, %(user_status)s)
"""
RECEIVE = """
    select * from pgps.receive_message(%(conversation)s, %(option)s, %(class)s, %(server)s, %(service)s,
        %(user_status)s)
"""
ENDS = ("commit", "backout", "cancel", "delete", "eoc", "eoccancel")
SYNCPOINT = "select * from pgps.syncpoint(%(option)s, %(uow_id)s, %(conversation)s, %(user_status)s)"
END = "select * from pgps.end_conversation(%s)"


def parts_of(service: str | None) -> list[str | None]:
    """Return class, server and service of class/server/service; `*` and what is missing are None.

    Raises BadArgument for what is no string, or has more parts.
    """
    hint = "Give 'class/server/service'."
    string(service or "", "a service", hint)
    named: list[str | None] = [None if part in ("", "*") else part for part in (service or "").split("/")]
    if len(named) > 3:
        raise refused(f"a service has three parts, not {len(named)}: {shown(service)}", hint)
    return [*named, None, None][:3]


def send_params(message: bytes | str, options: SendOptions, **named: Any) -> dict[str, Any]:
    """Return the parameters of SEND."""
    if not isinstance(message, (str, bytes, bytearray, memoryview)):
        raise refused(f"a message is bytes or text, not {type(message).__name__}: {shown(message)}", "Encode it.")
    try:
        data = message.encode() if isinstance(message, str) else message
    except UnicodeEncodeError:
        require_storable(message)
        raise
    return {
        "message": data, "conversation": "new", "to_service": None, "option": "sync", "store": "off",
        "lifetime": None, "status_lifetime": 0, "user_status": None, **options, **named,
    }  # fmt: skip


def fits(message: Message, wanted: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Tell whether a message is what RECEIVE with the parameters `wanted` is to return, if `asked` has returned it.

    A conversation is new until its first message is handed out: it is so still for who has asked for a new one. Names
    are those of the broker: folded unless in double quotes.
    """
    which, option = str(wanted["conversation"]).lower(), str(wanted["option"]).lower()
    names = ((wanted["class"], message.service_class), (wanted["server"], message.server))
    return (
        (which in ("any", "old", message.conversation.lower()) or which == str(asked["conversation"]).lower())
        and option in ("any", "msg" if message.uow_id is None else "sync")
        and all(
            name is None or (name if name.endswith("*") else folded(name)) == has
            for name, has in (*names, (wanted["service"], message.service))
        )
    )
