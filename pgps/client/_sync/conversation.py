# Made by tools/unasync_client.py from pgps/client/_async/conversation.py: change that, then `make generate`.
"""A conversation, as one of its parties has it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Protocol, Unpack

from pgps.client.units import Message, SendOptions, UnitOfWork
from pgps.errors import PgpsError, WrongState

__all__ = ["Conversation"]


class _Party(Protocol):
    """What a conversation asks of the party that has it."""

    undo: list[Callable[[], None]] | None

    def send(
        self,
        message: bytes | str,
        conversation: str = "new",
        *,
        service: str | None = None,
        option: str = "sync",
        **options: Unpack[SendOptions],
    ) -> UnitOfWork: ...

    def receive(self, conversation: str = "any", *, timeout: float | None = 0) -> Message | None: ...

    def give_back(self, messages: list[Message]) -> None: ...

    def syncpoint(self, option: str, uow_id: str | None = None, *, conversation: str | None = None) -> UnitOfWork: ...

    def end_conversation(self, conversation: str) -> None: ...


class Conversation:
    """A conversation, as one of its parties has it.

    Iterated over, it gives the messages of the unit of work that is being
    received, to its end. As a context manager it commits at the end of the block
    what was received and what was sent in it, both at once, and backs both out
    when the block fails.
    """

    def __init__(
        self, party: _Party, conversation: str | None, *, service: str | None = None, first: Message | None = None
    ) -> None:
        self.party = party
        self.id = conversation
        self._service = service
        self._first = first
        self._received: str | None = first.uow_id if first is not None else None
        self._sent: str | None = None

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            if self._received is not None or self._sent is not None:
                self.commit()
            return
        with contextlib.suppress(PgpsError):
            self.backout()

    def send(self, message: bytes | str, *, commit: bool = False, **options: Unpack[SendOptions]) -> UnitOfWork:
        """Send a message as a part of a unit of work; with `commit` it is the last one."""
        option = "commit" if commit else "sync"
        if self.id is None:
            sent = self.party.send(message, service=self._service, option=option, **options)
        else:
            sent = self.party.send(message, self.id, option=option, **options)
        self._keep()
        self.id = sent.conversation
        self._sent = None if commit else sent.uow_id
        return sent

    def receive(self, *, timeout: float | None = 0) -> Message | None:
        """Return the next message; None when the unit of work ends, or none came within `timeout` seconds."""
        if self._first is not None:
            self._keep()
            first, self._first = self._first, None
            return first
        message = self.party.receive(self._known(), timeout=timeout)
        if message is not None:
            self._keep()
            self._received = message.uow_id
        return message

    def all(self, *, timeout: float | None = 0) -> list[Message]:
        """Return all messages of the unit of work that comes next, or is being received; none: it did not come."""
        found: list[Message] = []
        try:
            while message := self.receive(timeout=0 if found else timeout):
                found.append(message)
                if message.is_last:
                    break
        except BaseException:
            self.party.give_back(found)
            raise
        return found

    def __iter__(self) -> Iterator[Message]:
        while (message := self.receive()) is not None:
            yield message
            if message.is_last and message.uow_id is not None:
                return

    def commit(self) -> None:
        """Commit what is being received and what is being sent, both at once where there are both."""
        if self._received is not None and self._sent is not None:
            self.party.syncpoint("commit", "both", conversation=self._known())
        else:
            self.party.syncpoint("commit", self._received or self._sent, conversation=self.id)
        self._keep()
        self._received = self._sent = None

    def _keep(self) -> None:
        """Have it stand as it does now, should the transaction be rolled back in which it is about to change."""
        if self.party.undo is not None:
            stands = (self.id, self._first, self._received, self._sent)
            self.party.undo.append(functools.partial(self._put_back, *stands))

    def _put_back(self, known: str | None, first: Message | None, received: str | None, sent: str | None) -> None:
        self.id, self._first, self._received, self._sent = known, first, received, sent

    def backout(self) -> None:
        """Back out what is being received and what is being sent: as if neither had been begun."""
        for uow_id in filter(None, (self._received, self._sent)):
            self.party.syncpoint("backout", uow_id)
        self._keep()
        self._received = self._sent = self._first = None

    def cancel(self, uow_id: str | None = None) -> None:
        """Cancel the unit that is being received, or (by its sender) one that nobody has begun to receive."""
        self.party.syncpoint("cancel", uow_id or self._received, conversation=self.id)
        if uow_id is None or uow_id == self._received:
            self._keep()
            self._received = self._first = None

    def end(self) -> None:
        """End it."""
        self.party.end_conversation(self._known())

    def _known(self) -> str:
        if self.id is None:
            raise WrongState("the conversation has not begun", hint="Send a message in it first.")
        return self.id
