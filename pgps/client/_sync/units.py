# Made by tools/unasync_client.py from pgps/client/_async/units.py: change that, then `make generate`.
"""Services, conversations and units of work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, Unpack

import psycopg
from psycopg import sql

from pgps.client import _arguments, units
from pgps.client._sync import runtime
from pgps.client._sync.conversation import Conversation
from pgps.client._sync.core import Core
from pgps.client._sync.hand import Hand
from pgps.client._sync.session import AnyConnection, fetch, require_alive, require_whole
from pgps.client._wire import is_alive, mapped
from pgps.client.units import Message, SendOptions, UnitOfWork
from pgps.errors import ClientClosed, PgpsError, WrongState

__all__ = ["Party"]

Handler: TypeAlias = Callable[[list[Message], AnyConnection], bytes | str | None]

_IN_USE = "55006"
# The server needs a moment to notice that a connection which was lost is gone, and with it the session.
_PATIENCE = 10.0


class Party:
    """Somebody who sends and receives units of work: a role, with a token or (None) without.

    It has a connection of its own, on which one thing is done after the other,
    and which is logged on when it is first used, or entered with `with`.
    When that connection is lost, the broker backs out what it was sending and
    holding; the call raises ConnectionLost, and the next one logs on again.
    Each call is a transaction of its own, outside of `transaction()`.
    A message that was on its way to somebody who was interrupted is what the next one gets who asks for such a one.
    """

    def __init__(self, core: Core, token: str | None) -> None:
        self.token = token
        self._core = core
        self._connection: AnyConnection | None = None
        self._services: list[str] = []
        self._listening: set[str] = set()
        self._was_lost = False
        self._closed = False
        self._hand = Hand()
        self._waiters: list[runtime.Waiter] = []
        self._is_told = False
        # While a block of transaction() runs: its connection, which no other one may take the place of, and what goes
        # back to before the commits in it.
        self._joined: AnyConnection | None = None
        self.undo: list[Callable[[], None]] | None = None

    def __enter__(self) -> Party:
        self.connection()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Log off: what is being sent or held is backed out."""
        self._closed = True
        for waiter in list(self._waiters):
            waiter.wake()
        connection, self._connection = self._connection, None
        if connection is not None:
            # Without a look at what has come: it may be the answer to somebody who waits for it.
            with contextlib.suppress(PgpsError), mapped():
                if not connection.closed:
                    fetch(connection, units.LOGOFF)
            runtime.close_connection(connection)

    def _require_open(self) -> None:
        self._core.require_open()
        if self._closed:
            raise ClientClosed("the party has logged off", hint="Use it inside its `with` block.")

    def connection(self) -> AnyConnection:
        """Return its connection, logged on; what is written on it in `transaction()` is one with what is received."""
        self._require_open()
        self._hand.settle()
        if self._joined is not None:
            return require_alive(self._joined)
        if self._connection is not None and not is_alive(self._connection):
            runtime.close_connection(self._connection)
            self._connection = None
            self._was_lost = True
            self._hand.forget_units()
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> AnyConnection:
        connection = self._core.session.open_another()
        connection.add_notify_handler(self._told)
        self._listening = set()
        try:
            self._log_on(connection)
            with mapped():
                for service in self._services:
                    fetch(connection, units.REGISTER, units.parts_of(service))
        except BaseException:
            runtime.close_connection(connection)
            raise
        return connection

    def _log_on(self, connection: AnyConnection) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                with mapped():
                    fetch(connection, units.LOGON, [self.token])
            except WrongState as refused:
                if refused.sqlstate != _IN_USE or not self._was_lost or time.monotonic() > deadline:
                    raise
            else:
                return
            runtime.sleep(0.05)

    def _rows(self, query: str, params: Any = None) -> list[tuple[Any, ...]]:
        connection = self.connection()
        with mapped():
            return fetch(connection, query, params)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[AnyConnection]:
        """Make the block one transaction: what is received, the block's own writes, answers and SYNCPOINTs.

        When the connection is lost in it, calls and its end raise ConnectionLost, and the broker takes all back; the
        same after a statement that failed, with BrokerError (25P02) at the end of a block that has caught its error.
        """
        connection, outer = self.connection(), self._joined
        before, here = self.undo, list[Callable[[], None]]()
        self._joined, self.undo = connection, here
        try:
            with mapped(), connection.transaction():
                yield connection
                require_whole(connection)
        except BaseException:
            for step in reversed(here):
                step()
            raise
        finally:
            self._joined, self.undo = outer, before
        if before is not None:
            before += here

    # -----------------------------------------------------------------------------------------------------------------
    # Serving
    # -----------------------------------------------------------------------------------------------------------------

    def register(self, service: str) -> None:
        """Serve a service, class/server/service, until `deregister` or the end of the session."""
        self._rows(units.REGISTER, units.parts_of(service))
        self._services.append(service)

    def deregister(self, service: str) -> None:
        """Serve it no more."""
        self._rows(units.DEREGISTER, units.parts_of(service))
        self._services.remove(service)

    def conversations(
        self, *, service: str | None = None, which: str = "any", timeout: float | None = None
    ) -> Iterator[Conversation]:
        """Give conversations as units of work come in them, each with the messages of one to be iterated over.

        Waits `timeout` seconds for the next one, None for ever. The unit is to be committed, backed out or
        cancelled before the next one of that conversation comes; use it as a context manager for that.
        """
        while (message := self.receive(which, service=service, timeout=timeout)) is not None:
            yield Conversation(self, message.conversation, first=message)

    def answer(self, service: str, handler: Handler, *, timeout: float | None = None) -> int:
        """Serve a service: call `handler(messages, connection)` for each unit of work, and send what it returns.

        What the handler writes on the connection, the answer (None: there is none) and both
        commits are one transaction. An error of the handler or the commit backs the unit out and is
        raised. Returns how many it has answered when none came for `timeout` seconds, None: never.
        """
        if service not in self._services:
            self.register(service)
        count = 0
        for conversation in self.conversations(service=service, timeout=timeout):
            with conversation, self.transaction() as connection:
                said = handler(conversation.all(), connection)
                if said is not None:
                    conversation.send(said)
                conversation.commit()
            count += 1
        return count

    def request(
        self, service: str, *messages: bytes | str, timeout: float | None = None, **options: Unpack[SendOptions]
    ) -> list[Message] | None:
        """Send a unit of work to a service, here or at another broker, and return its answer, a unit of work as well.

        None when it has not come within `timeout` seconds; `last()` tells where it can be received later.
        """
        conversation = self.begin(service)
        for message in messages:
            conversation.send(message, **options)
        conversation.commit()
        answer = conversation.all(timeout=timeout)
        if not answer:
            return None
        conversation.commit()
        conversation.end()
        return answer

    # -----------------------------------------------------------------------------------------------------------------
    # Sending and receiving
    # -----------------------------------------------------------------------------------------------------------------

    def begin(self, service: str) -> Conversation:
        """Return a new conversation with a service, which begins with the first message that is sent in it."""
        return Conversation(self, None, service=service)

    def conversation(self, conversation: str) -> Conversation:
        """Return a conversation that has been begun."""
        return Conversation(self, conversation)

    def send(
        self,
        message: bytes | str,
        conversation: str = "new",
        *,
        service: str | None = None,
        option: str = "sync",
        **options: Unpack[SendOptions],
    ) -> UnitOfWork:
        """Send a message as a part of a unit of work (sync), a unit of its own (commit), or of none (msg)."""
        params = units.send_params(message, options, conversation=conversation, to_service=service, option=option)
        (row,) = self._rows(units.SEND, params)
        return UnitOfWork(*row)

    def receive(
        self,
        conversation: str = "any",
        *,
        option: str = "any",
        service: str | None = None,
        user_status: str | None = None,
        timeout: float | None = 0,
    ) -> Message | None:
        """Return the next message, waiting up to `timeout` seconds for it, for ever if None; None when none came.

        Waiting is not polling, and not possible in a transaction, where what others commit is not told.
        """
        named = dict(zip(("class", "server", "service"), units.parts_of(service), strict=True))
        params = {"conversation": conversation, "option": option, "user_status": user_status, **named}
        deadline = _arguments.deadline(timeout)
        if timeout != 0:
            self._listen()
        while True:
            rows = self._received(params)
            if rows and rows[0][12] is None:
                return Message(*rows[0])
            left = self._core.poll if deadline is None else min(self._core.poll, deadline - time.monotonic())
            if rows or timeout == 0 or left <= 0:
                return None
            self._wait(left)

    def _received(self, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        connection = self.connection()
        try:
            with mapped():
                return self._hand.found(params, self.undo) or self._hand.receive(connection, params, self.undo)
        except PgpsError:
            if self._closed:
                self._require_open()
            raise

    def give_back(self, messages: list[Message]) -> None:
        """Have messages received again, by the next one who asks for such ones."""
        self._hand.give_back(messages, self.undo)

    def _listen(self) -> None:
        connection = self.connection()
        with mapped():
            wanted = {str(row[0]) for row in fetch(connection, units.CHANNELS)}
            for channel in wanted - self._listening:
                connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self._listening |= wanted

    def _wait(self, timeout: float) -> None:
        connection = self.connection()
        try:
            waiter = runtime.Waiter(connection)
        except (psycopg.Error, OSError):  # it was lost, or closed, just now, which the next statement tells
            return
        self._waiters.append(waiter)
        try:
            # Who closes the party sets the one before it looks for the other, as is done here.
            if not self._has_heard(connection) and not self._closed:
                waiter.wait(timeout)
            self._has_heard(connection)
        except PgpsError:
            if not self._closed:
                raise
        finally:
            self._waiters.remove(waiter)
            waiter.close()

    def _has_heard(self, connection: AnyConnection) -> bool:
        """Tell whether the broker has said something since this was asked last, also while a statement was run."""
        heard, self._is_told = self._is_told, False
        with connection.lock, mapped():
            if not connection.closed:
                connection.pgconn.consume_input()
                while connection.pgconn.notifies():
                    heard = True
        return heard

    def _told(self, _: psycopg.Notify) -> None:
        self._is_told = True

    # -----------------------------------------------------------------------------------------------------------------
    # SYNCPOINT
    # -----------------------------------------------------------------------------------------------------------------

    def syncpoint(
        self,
        option: str,
        uow_id: str | None = None,
        *,
        conversation: str | None = None,
        user_status: str | None = None,
    ) -> UnitOfWork:
        """Do what `option` says to a unit of work; with uow_id "both" return how the one received stands."""
        params = {"option": option, "uow_id": uow_id, "conversation": conversation, "user_status": user_status}
        rows = self._rows(units.SYNCPOINT, params)
        if option.lower() in units.ENDS:
            self._hand.forget([row[0] for row in rows], self.undo)
        return UnitOfWork(*rows[0])

    def last(self, *, conversation: str | None = None) -> UnitOfWork | None:
        """Return the unit of work that this role and token began last, None when there is none."""
        found = self.syncpoint("last", conversation=conversation)
        return None if found.code else found

    def query(self, uow_id: str) -> UnitOfWork | None:
        """Return how a unit of work stands, None when no trace of it is left."""
        found = self.syncpoint("query", uow_id)
        return None if found.code else found

    def end_conversation(self, conversation: str) -> None:
        """End a conversation: nothing more is sent in it, what was committed can still be received."""
        self._rows(units.END, [conversation])
