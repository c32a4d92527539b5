"""A client that is known by name: registrations, recoverable events, requests and replies (Hanson et al. 1994)."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pgps.client import _names
from pgps.client._async import runtime
from pgps.client._async.delivery import AsyncDelivery
from pgps.client._async.hub import Heard
from pgps.client._async.occurrence import AsyncOccurrence, AsyncReply
from pgps.client._async.session import AnyConnection, fetch, is_pooled
from pgps.client._names import Registration, State
from pgps.client._wire import mapped
from pgps.client.events import Reader
from pgps.errors import BadArgument, ClientClosed, ConnectionLost, PgpsError, SessionTaken, WrongState

if TYPE_CHECKING:
    from pgps.client._async.client import AsyncClient

__all__ = ["AsyncIdentity"]

_log = logging.getLogger("pgps.client")
# "If there has been no communication for T time units (default five minutes)": a lost notification costs no more.
_LOOK = 300.0


class AsyncIdentity:
    """A named client, with a session that no other program has; made by `AsyncClient.identify`.

    `state` is where the last session stood. Everything here is recoverable
    except registrations in mode `direct`, which are for whoever is there.
    """

    def __init__(self, client: AsyncClient, name: str, *, take_over: bool, max_local: int) -> None:
        self.name = name
        self.state = State()
        self.error: PgpsError | None = None
        self._client = client
        self._take_over = take_over
        self._max_local = max_local
        self._session: int | None = None
        self._registrations: dict[str, Registration] = {}
        self._channels: dict[str, Heard] = {}
        self._local: deque[AsyncOccurrence] = deque()
        self._signal = runtime.Signal()
        self._delivery = AsyncDelivery(self, max_local)
        self._closed = False
        self._looked = 0.0
        self._last_event: int | None = None
        self._last_reply: int | None = None
        self._save: Callable[[], bytes | None] | None = None
        self._readers: dict[str, Reader] = {}

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
        when it is another role's.
        """
        if self._session is None:
            if await self._client._session.run(is_pooled):
                raise WrongState(
                    f'client "{self.name}" needs a session of its own, and there is a pooler between',
                    hint="Connect to the server itself.",
                    sqlstate="55000",
                )
            await self._client._hub.attach(self._connected)
            await self._listen(self.state.channel, self._delivery.heard)
        return self.state

    @property
    def is_connected(self) -> bool:
        """Whether this program is the client, as far as it knows: no more, once another has taken over."""
        return self._session is not None and not self._closed and self.error is None

    @property
    def dropped(self) -> int:
        """How many direct notifications came when there was no room for them."""
        return self._delivery.dropped

    async def disconnect(self) -> None:
        """End the session cleanly: WrongState while an event or a reply is pending, or a request has no reply."""
        await self._rows(_names.DISCONNECT, {})
        await self.close()

    async def close(self) -> None:
        """Stop handlers and leave; the next session finds everything as it is now."""
        if self._closed:
            return
        self._closed = True
        self._signal.set()
        await self._delivery.stop()
        for channel, heard in self._channels.items():
            await self._client._hub.forget(channel, heard)
        await self._client._hub.detach(self._connected)
        self._client._left()

    async def _connected(self, connection: AnyConnection) -> None:
        """Begin a session on a connection that listens, and again when there is a new one."""
        params = {"client": self.name, "take_over": self._take_over and self._session is None, "resume": self._session}
        try:
            with mapped():
                state = State(*(await fetch(connection, _names.CONNECT, params))[0])
        except ConnectionLost:
            raise
        except PgpsError as error:
            if self._session is None:
                raise
            return self._end(error)
        if self._session is None:
            self.state = state
            self._last_event, self._last_reply = state.last_received_event, state.last_received_request
        self._session = state.session
        await self._client._use(self.name, state.session)
        return None

    async def _listen(self, channel: str, heard: Heard) -> None:
        if channel not in self._channels:
            await self._client._hub.listen(channel, heard)
            self._channels[channel] = heard

    def _end(self, error: PgpsError) -> None:
        """Be no more, since another program is this client, or it is dropped."""
        self.error = error
        self._closed = True
        self._delivery.wake()
        self._signal.set()
        _log.error("client %s ends: %s", self.name, error.message)

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
        _, subscription, channels = (await self._rows(_names.REGISTER, params))[0]
        made = Registration(event_name, mode, subscription, handler, transactional)
        self._registrations[event_name] = made
        for channel in channels:
            await self._listen(channel, self._delivery.heard if mode == "direct" else self._queued(made))
        self._delivery.wake()
        return made

    def _queued(self, registration: Registration) -> Heard:
        def heard(_payload: str | None) -> None:
            registration.ready = True
            self._delivery.wake()
            self._signal.set()

        return heard

    async def unregister(self, event_name: str) -> None:
        """End a registration, with what waits for it. Raises UnknownName."""
        await self._rows(_names.UNREGISTER, {"event_name": event_name})
        self._registrations.pop(event_name, None)

    def set_handler(self, event_name: str, handler: Callable[..., Any], *, transactional: bool = False) -> None:
        """Have a registration's events handled from now on, instead of polled."""
        self._registered(event_name).handler = handler
        self._registered(event_name).transactional = transactional
        self._registered(event_name).error = None
        self._delivery.wake()

    def unset_handler(self, event_name: str) -> None:
        """Have a registration's events polled from now on."""
        self._registered(event_name).handler = None

    def set_event_state(self, save: Callable[[], bytes | None] | None) -> None:
        """Say what to store as the event checkpoint whenever one is received or completed."""
        self._save = save

    async def start(self) -> AsyncIdentity:
        """Begin with events: direct ones before this are ignored, handlers are called from now on."""
        self._delivery.start()
        return self

    def _direct(self, event_type: str) -> Registration | None:
        """Return the most particular registration of this session that gets events of a type directly."""
        found = (
            one
            for one in self._registrations.values()
            if one.mode == "direct" and _names.covers(one.event_name, event_type)
        )
        return max(found, key=lambda one: _names.precision(one.event_name), default=None)

    def _registered(self, event_name: str) -> Registration:
        found = self._registrations.get(event_name)
        if found is None:
            raise BadArgument(f'this session has not registered for "{event_name}"', hint="Register for it first.")
        return found

    # -----------------------------------------------------------------------------------------------------------------
    # Polling
    # -----------------------------------------------------------------------------------------------------------------

    async def get_event(self, event_name: str | None = None, *, timeout: float | None = 0.0) -> AsyncOccurrence | None:
        """Return the next occurrence of a polled registration, of all if None; None when `timeout` seconds are over.

        Answered from what has arrived here: the server is asked only when it
        has said that something is queued. `timeout` None waits for ever.
        """
        if event_name is not None and self._registered(event_name).handler is not None:
            raise BadArgument(f'"{event_name}" has a handler', hint="Unset it to poll.")
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            self._signal.clear()
            found = self._take_local(event_name) or await self._take_queued(event_name)
            remaining = _LOOK if deadline is None else min(_LOOK, deadline - time.monotonic())
            if found is not None or remaining <= 0:
                return found
            self._raise_error()
            await self._signal.wait(remaining)
        raise ClientClosed("the client is closed", hint="Connect again.")

    def _take_local(self, event_name: str | None) -> AsyncOccurrence | None:
        for occurrence in self._local:
            if event_name in (None, occurrence.event_name):
                self._local.remove(occurrence)
                return occurrence
        return None

    async def _take_queued(self, event_name: str | None) -> AsyncOccurrence | None:
        now = time.monotonic()
        overdue = now - self._looked > _LOOK
        for one in list(self._registrations.values()):
            if one.mode != "queued" or one.handler is not None or event_name not in (None, one.event_name):
                continue
            if one.ready or overdue:
                # Before the look: what comes meanwhile says so again.
                one.ready, self._looked = False, now
                found = await self.receive_event(one.event_name)
                if found is not None:
                    one.ready = True
                    return found
        return None

    # -----------------------------------------------------------------------------------------------------------------
    # The event queue
    # -----------------------------------------------------------------------------------------------------------------

    async def receive_event(
        self, event_name: str | None = None, *, checkpoint: bytes | None = None
    ) -> AsyncOccurrence | None:
        """Return the next queued occurrence, None when there is none; complete the one before, save the checkpoint."""
        params = {"event_name": event_name, "checkpoint": self._checkpoint(checkpoint)}
        rows = await self._received(_names.RECEIVE_EVENT, params, _names.RE_RECEIVE_EVENT, self._last_event)
        self._last_event = rows[0][0] if rows else self._last_event
        return AsyncOccurrence(self, rows[0]) if rows else None

    async def re_receive_event(self) -> AsyncOccurrence | None:
        """Return the occurrence received last, in this session or the one before."""
        rows = await self._rows(_names.RE_RECEIVE_EVENT, {})
        return AsyncOccurrence(self, rows[0]) if rows else None

    async def commit_event(
        self, *, checkpoint: bytes | None = None, connection: AnyConnection | None = None
    ) -> int | None:
        """Complete the occurrence received last and save the checkpoint, in one; return its id.

        With `connection` in its transaction: with the application's own
        writes there, processing is exactly once.
        """
        rows = await self._rows(_names.COMMIT_EVENT, {"checkpoint": self._checkpoint(checkpoint)}, connection)
        value: int | None = rows[0][0]
        return value

    def _checkpoint(self, given: bytes | None) -> bytes | None:
        return given if given is not None or self._save is None else self._save()

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

        A number the application gives makes sending again harmless: at or
        below the last one, it changes nothing. Without one the request is not
        sent again after a lost connection: compare `state.last_sent_request`.
        """
        params = {"request": request, "id": request_id}
        rows = await self._rows(_names.SEND, params, connection, again=request_id is not None)
        return int(rows[0][0])

    async def cancel(self, request_id: int) -> bool:
        """End a request that waits or runs: its reply, in its turn, is an error 57014. False when it has a reply.

        Raises UnknownName.
        """
        rows = await self._rows(_names.CANCEL, {"id": request_id})
        return bool(rows[0][0])

    async def receive_reply(self, *, checkpoint: bytes | None = None, timeout: float | None = 0.0) -> AsyncReply | None:
        """Return the next reply, None when none came in `timeout` seconds; completes the one before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            self._signal.clear()
            params = {"checkpoint": checkpoint}
            rows = await self._received(_names.RECEIVE_REPLY, params, _names.RE_RECEIVE_REPLY, self._last_reply)
            self._last_reply = rows[0][0] if rows else self._last_reply
            remaining = _LOOK if deadline is None else min(_LOOK, deadline - time.monotonic())
            if rows or remaining <= 0:
                return AsyncReply(self, rows[0]) if rows else None
            self._raise_error()
            await self._signal.wait(min(remaining, self._client.poll))
        raise ClientClosed("the client is closed", hint="Connect again.")

    async def re_receive_reply(self) -> AsyncReply | None:
        """Return the reply received last, in this session or the one before."""
        rows = await self._rows(_names.RE_RECEIVE_REPLY, {})
        return AsyncReply(self, rows[0]) if rows else None

    async def commit_receive(
        self, *, checkpoint: bytes | None = None, connection: AnyConnection | None = None
    ) -> int | None:
        """Complete the reply received last and save the checkpoint, in one; return its request's id."""
        value: int | None = (await self._rows(_names.COMMIT_RECEIVE, {"checkpoint": checkpoint}, connection))[0][0]
        return value

    # -----------------------------------------------------------------------------------------------------------------
    # Calls
    # -----------------------------------------------------------------------------------------------------------------

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    async def _rows(
        self, query: str, params: dict[str, Any], connection: AnyConnection | None = None, *, again: bool = True
    ) -> list[Any]:
        while True:
            self._raise_error()
            session = self._session
            full = params | {"client": self.name, "session": session}
            try:
                if connection is None:
                    return await self._client._session.rows(query, full, again=again)
                with mapped():
                    return await fetch(connection, query, full)
            except SessionTaken as taken:
                # A connection lost is greeted with the next number: not somebody else's.
                await self._client._hub.settled()
                if connection is not None or self._session == session:
                    if self._session == session:
                        self._end(taken)
                    raise

    async def _is_completed(self, query: str, number: int) -> bool:
        return bool((await self._rows(query, {"id": number, "channel": self.state.channel}))[0][0])

    async def _received(self, query: str, params: dict[str, Any], again: str, last: int | None) -> list[Any]:
        """Receive; if the answer is lost, see what it was: to receive once more would complete what nobody has seen."""
        try:
            return await self._rows(query, params, again=False)
        except ConnectionLost:
            rows = await self._rows(again, {})
            return rows if rows and rows[0][0] != last else await self._rows(query, params, again=False)

    async def _native(self, event_type: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Return a payload with values as psycopg gives them."""
        reader = self._readers.get(event_type)
        if reader is None or reader.keys != payload.keys():
            reader = self._readers[event_type] = Reader(await self._client.shape(event_type), None)
        value: dict[str, Any] = reader(payload)
        return value
