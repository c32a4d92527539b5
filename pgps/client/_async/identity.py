"""A client that is known by name: registrations, recoverable events, requests and replies (Hanson et al. 1994)."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from pgps.client import _arguments, _names
from pgps.client._async.core import AsyncCore
from pgps.client._async.delivery import AsyncDelivery
from pgps.client._async.event_queue import AsyncEventQueue
from pgps.client._async.hub import Heard
from pgps.client._async.occurrence import AsyncOccurrence, AsyncReply
from pgps.client._async.seat import AsyncIntake, AsyncSeat
from pgps.client._async.session import AnyConnection
from pgps.client._names import Registration, Registrations, State
from pgps.errors import BadArgument, ClientClosed, PgpsError

__all__ = ["AsyncIdentity"]

_log = logging.getLogger("pgps.client")
# The paper says: "If there has been no communication for T time units (default five minutes)". A lost notification
# delays an event by no more than that.
_LOOK = 300.0


class AsyncIdentity:
    """A named client, with a session that no other program has; made by `AsyncClient.identify`.

    `state` says where the last session stood. Everything is recoverable after a
    crash, except for events of registrations in mode `direct`, which reach only
    a program that is connected.
    """

    def __init__(
        self,
        core: AsyncCore,
        name: str,
        *,
        take_over: bool,
        max_local: int,
        claim: Callable[[AsyncIdentity], None],
        release: Callable[[AsyncIdentity], None],
    ) -> None:
        """Describe it; the client has one identity at a time, which `claim` says and `release` ends."""
        self.name = name
        self._core = core
        self._take_over = take_over
        self._max_local = max_local
        self._claim = claim
        self._release = release
        # The server may take a moment to see that the connection of the session before has gone.
        self._token = secrets.token_hex(16)
        self._renew()

    def _renew(self, save: Callable[[], bytes | None] | None = None) -> None:
        """Have nothing of a session before."""
        self._seat = AsyncSeat(self._core, self.name, self._token, take_over=self._take_over, when_ended=self._wake)
        self._seat.save = save
        self._events = AsyncEventQueue(self._seat, self._polled)
        self._replies = AsyncIntake(self._seat, _names.RECEIVE_REPLY, _names.RE_RECEIVE_REPLY)
        self._registrations = Registrations()
        self._delivery = AsyncDelivery(self._seat, self._registrations, self._max_local)
        self._numbers: set[int] | None = None
        self._has_left = False

    async def __aenter__(self) -> AsyncIdentity:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -----------------------------------------------------------------------------------------------------------------
    # Connecting
    # -----------------------------------------------------------------------------------------------------------------

    async def connect(self) -> State:
        """Begin a session; return where the last one stood.

        Raises WrongState when the name is connected elsewhere, NotPermitted
        when it is another role's. After `close`, or when another program has
        taken the name, the session is one as after a restart of the program:
        what is to be handled, or polled, is registered again.
        """
        if self._seat.is_closed:
            await self.close()
            self._renew(self._seat.save)
        if not self._seat.is_taken:
            self._claim(self)
            try:
                await self._begin()
            except BaseException:
                # The client is free for another name, or for this one again.
                await self.close()
                raise
        return self.state

    async def _begin(self) -> None:
        await self._seat.take()
        self._events.intake.last = (self.state.last_received_event,)
        self._replies.last = (self.state.last_received_request,)
        await self._seat.listen(self.state.channel, self._delivery.direct.ear(self.state.channel))

    @property
    def state(self) -> State:
        """Where the last session stood."""
        return self._seat.state

    @property
    def error(self) -> PgpsError | None:
        """The error that ended the session: another program is this client now, or the client was dropped."""
        return self._seat.error

    @property
    def is_connected(self) -> bool:
        """Whether this program is the client, as far as it knows; it is not after another one has taken over."""
        return self._seat.is_taken and not self._seat.is_closed and self.error is None

    @property
    def dropped(self) -> int:
        """How many direct notifications were dropped because there was no room for them."""
        return self._delivery.direct.dropped

    async def disconnect(self) -> None:
        """End the session cleanly: WrongState while an event or a reply is pending, or a request has no reply."""
        await self._seat.rows(_names.DISCONNECT, {})
        await self.close()

    async def close(self) -> None:
        """Stop handlers and leave; the next session finds everything as it is now."""
        if self._has_left:
            return
        self._has_left = self._seat.is_closed = True
        self._seat.signal.set()
        try:
            await self._delivery.stop()
        finally:
            try:
                await self._seat.leave()
            finally:
                self._release(self)

    def _wake(self) -> None:
        self._delivery.wake()

    # -----------------------------------------------------------------------------------------------------------------
    # Registrations
    # -----------------------------------------------------------------------------------------------------------------

    async def register(
        self,
        event_name: str,
        *,
        mode: str = "queued",
        handler: Callable[..., Any] | None = None,
        transactional: bool = False,
    ) -> Registration:
        """Register for an event type, or all of a `prefix*`; with a handler, or to poll with `get_event`.

        `direct`: pushed while this session is connected, never kept.
        `queued`: kept until it is completed, at least once; with
        `transactional` the handler is given a connection, too, and what it
        writes there commits together with the completion: exactly once.
        Raises UnknownName, NotPermitted, BadArgument.
        """
        style = "handler" if handler is not None else "polling"
        params = {"event_name": event_name, "mode": mode, "style": style}
        number, subscription, channels, snapshot = (await self._seat.rows(_names.REGISTER, params))[0]
        made = Registration(number, event_name, mode, subscription, handler, transactional)
        before = self._registrations.get(event_name)
        if before is not None and before.number == number:
            made.in_hand = before.in_hand
        self._registrations[event_name] = made
        if self._numbers is not None:
            self._numbers.add(number)
        if mode == "queued":
            for channel in channels:
                await self._seat.listen(channel, self._queued(made))
        else:
            await self._delivery.direct.listen(channels, snapshot)
        self._delivery.wake()
        return made

    def _queued(self, registration: Registration) -> Heard:
        def heard(_payload: str | None) -> None:
            registration.ready = True
            self._delivery.wake()
            self._seat.signal.set()

        return heard

    async def unregister(self, event_name: str) -> None:
        """End a registration, with what waits for it. Raises UnknownName."""
        await self._seat.rows(_names.UNREGISTER, {"event_name": event_name})
        self._registrations.pop(event_name, None)

    def set_handler(self, event_name: str, handler: Callable[..., Any], *, transactional: bool = False) -> None:
        """Have a registration's events handled from now on, instead of polled."""
        registration = self._registrations.named(event_name)
        registration.handler, registration.transactional = handler, transactional
        registration.error, registration.attempts = None, 0
        self._delivery.wake()

    def unset_handler(self, event_name: str) -> None:
        """Have a registration's events polled from now on, at first the one that the handler has not completed."""
        registration = self._registrations.named(event_name)
        registration.handler, registration.ready = None, True

    def set_event_state(self, save: Callable[[], bytes | None] | None) -> None:
        """Set the function that returns the event checkpoint to store whenever an event is received or completed."""
        self._seat.save = save

    async def start(self) -> AsyncIdentity:
        """Begin with events: direct ones before this are ignored, handlers are called from now on."""
        self._delivery.start()
        return self

    # -----------------------------------------------------------------------------------------------------------------
    # Polling
    # -----------------------------------------------------------------------------------------------------------------

    async def get_event(self, event_name: str | None = None, *, timeout: float | None = 0.0) -> AsyncOccurrence | None:
        """Return the next occurrence of a polled registration, of all if None; None when `timeout` seconds are over.

        The answer comes from what has arrived here; the server is asked only if
        it has said that something is queued. With `timeout` None it waits for ever. Raises ConnectionLost when the
        server is away for longer than the client waits for it.
        """
        patience, heard = self._core.reconnect_timeout, time.monotonic()
        if event_name is not None and self._registrations.named(event_name).handler is not None:
            raise BadArgument(f'"{event_name}" has a handler', hint="Unset it to poll.")
        deadline = _arguments.deadline(timeout)
        while not self._seat.is_closed:
            self._seat.signal.clear()
            found = self._take_local(event_name) or await self._take_queued(event_name)
            remaining = _LOOK if deadline is None else min(_LOOK, deadline - time.monotonic())
            if found is not None or remaining <= 0:
                return found
            self._seat.raise_error()
            await self._seat.signal.wait(min(remaining, self._core.poll))
            if not self._core.hub.is_lost:
                heard = time.monotonic()
            elif patience is not None and time.monotonic() - heard > patience:
                await self._core.hub.insist()
        self._seat.raise_error()
        raise ClientClosed("the client is closed", hint="Connect again.")

    def _take_local(self, event_name: str | None) -> AsyncOccurrence | None:
        local = self._delivery.direct.local
        for occurrence in local:
            if event_name in (None, occurrence.event_name):
                local.remove(occurrence)
                return occurrence
        return None

    async def _take_queued(self, event_name: str | None) -> AsyncOccurrence | None:
        for one in list(self._registrations.values()):
            if one.mode != "queued" or one.handler is not None or event_name not in (None, one.event_name):
                continue
            now = time.monotonic()
            if one.ready or now - one.looked > _LOOK:
                # The signal is cleared before the look, since what comes in the meantime sets it again.
                one.ready, one.looked = False, now
                found = None
                try:
                    found = await self.receive_event(one.event_name)
                except BaseException:
                    one.ready = True  # what was asked for may be here, and be asked for again
                    raise
                if found is not None:
                    one.ready = True
                    return found
        return None

    async def _polled(self) -> list[int] | None:
        """Return the registrations whose occurrences no handler has in hand, None for all there are."""
        handled = {one.number for one in self._registrations.values() if self._delivery.has(one)}
        if not handled:
            return None
        if self._numbers is None:
            queued = await self._seat.rows(_names.QUEUED, {"channel": self.state.channel})
            self._numbers = {number for (number,) in queued}
        return sorted(self._numbers - handled)

    # -----------------------------------------------------------------------------------------------------------------
    # The event queue
    # -----------------------------------------------------------------------------------------------------------------

    async def receive_event(
        self, event_name: str | None = None, *, checkpoint: bytes | None = None
    ) -> AsyncOccurrence | None:
        """Return the next queued occurrence, None when there is none; complete the one before, save the checkpoint.

        What handlers work on is left alone. What a handler has left in hand that was unset comes first, when its
        registration is asked for; that completes nothing.
        """
        left = None if event_name is None else self._registrations.found(event_name)
        if left is not None and left.handler is None and left.in_hand is not None:
            found = await self._delivery.give_back(left)
            if found is not None:
                return found
        return await self._events.receive(event_name, checkpoint)

    async def re_receive_event(self) -> AsyncOccurrence | None:
        """Return the occurrence received last, in this session or the one before, but not what a handler works on."""
        for one in self._registrations.values():
            if one.handler is None:
                one.is_done()  # what was its handler's is whose this is
        return await self._events.receive_again()

    async def commit_event(
        self, *, checkpoint: bytes | None = None, connection: AnyConnection | None = None
    ) -> int | None:
        """Complete the occurrence received last and save the checkpoint, in one; return its id.

        With `connection` in its transaction: with the application's own
        writes there, processing is exactly once.
        """
        return await self._events.commit(checkpoint, connection)

    # -----------------------------------------------------------------------------------------------------------------
    # Requests and replies
    # -----------------------------------------------------------------------------------------------------------------

    async def send(
        self,
        request: str,
        *,
        request_id: int | None = None,
        connection: AnyConnection | None = None,
    ) -> int:
        """Put SQL into the request queue; return its id.

        If the application gives a number, sending a request again is harmless: a
        number at or below the last one changes nothing. Without a number, the
        request is not sent again after the connection was lost; whether it has
        arrived, `state.last_sent_request` tells the next session.
        """
        params = {"request": request, "id": request_id}
        rows = await self._seat.rows(_names.SEND, params, connection, again=request_id is not None)
        return int(rows[0][0])

    async def cancel(self, request_id: int) -> bool:
        """End a request that waits or runs: its reply, in its turn, is an error 57014. False when it has a reply.

        Raises UnknownName.
        """
        rows = await self._seat.rows(_names.CANCEL, {"id": request_id})
        return bool(rows[0][0])

    async def receive_reply(self, *, checkpoint: bytes | None = None, timeout: float | None = 0.0) -> AsyncReply | None:
        """Return the next reply, None when none came in `timeout` seconds; completes the one before."""
        deadline = _arguments.deadline(timeout)
        while not self._seat.is_closed:
            self._seat.signal.clear()
            rows = await self._replies.next({"checkpoint": checkpoint})
            remaining = _LOOK if deadline is None else min(_LOOK, deadline - time.monotonic())
            if rows or remaining <= 0:
                return AsyncReply(self._seat, rows[0]) if rows else None
            self._seat.raise_error()
            await self._seat.signal.wait(min(remaining, self._seat.core.poll))
        self._seat.raise_error()
        raise ClientClosed("the client is closed", hint="Connect again.")

    async def re_receive_reply(self) -> AsyncReply | None:
        """Return the reply received last, in this session or the one before."""
        rows = await self._seat.rows(_names.RE_RECEIVE_REPLY, {})
        return AsyncReply(self._seat, rows[0]) if rows else None

    async def commit_receive(
        self, *, checkpoint: bytes | None = None, connection: AnyConnection | None = None
    ) -> int | None:
        """Complete the reply received last and save the checkpoint, in one; return its request's id."""
        value: int | None = (await self._seat.rows(_names.COMMIT_RECEIVE, {"checkpoint": checkpoint}, connection))[0][0]
        return value
