# Made by tools/unasync_client.py from pgps/client/_async/delivery.py: change that, then `make generate`.
"""What runs beside a program that is known by name: fetching direct events, and calling handlers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import psycopg

from pgps.client import _names
from pgps.client._names import Registration, Registrations
from pgps.client._sync import runtime
from pgps.client._sync.direct import Direct, log_failure
from pgps.client._sync.event_queue import EventQueue
from pgps.client._sync.occurrence import Occurrence
from pgps.client._sync.seat import Seat
from pgps.client._sync.session import AnyConnection
from pgps.errors import ClientClosed, ConnectionLost, PgpsError, SessionTaken, TryAgain, from_database

__all__ = ["Delivery"]

_log = logging.getLogger("pgps.client")
_LOOK = 60.0
_PAUSE = 1.0
"""How long after the broker has refused something it is asked again."""


class Delivery:
    """The tasks beside a named client: one for direct events, one for queued ones."""

    def __init__(self, seat: Seat, registrations: Registrations, max_local: int) -> None:
        self.direct = Direct(seat, registrations, max_local)
        self._seat = seat
        self._queues: dict[int, EventQueue] = {}
        self._registrations = registrations
        self._queued = runtime.Signal()
        self._tasks: list[runtime.Task] = []

    def start(self) -> None:
        """Begin."""
        if not self._tasks:
            self.direct.is_started = True
            name = self._seat.name
            self._tasks = [
                runtime.Task(self._follow_notes, f"pgps-{name}-direct"),
                runtime.Task(self._follow_queues, f"pgps-{name}-queued"),
            ]

    def stop(self) -> None:
        """End; a handler that runs is waited for."""
        self.wake()
        for task in self._tasks:
            task.stop(grace=self._seat.core.grace)

    def wake(self) -> None:
        """Look what there is."""
        self.direct.arrived.set()
        self._queued.set()

    # -----------------------------------------------------------------------------------------------------------------
    # Direct
    # -----------------------------------------------------------------------------------------------------------------

    def _follow_notes(self) -> None:
        direct = self.direct
        while not self._seat.is_closed:
            if not direct.arrived.wait(_LOOK):
                direct.look_again = True  # rights that came later than a type are told by nobody
            direct.arrived.clear()
            with self._surviving():
                direct.look()
                direct.hand_out()

    # -----------------------------------------------------------------------------------------------------------------
    # Queued
    # -----------------------------------------------------------------------------------------------------------------

    def _follow_queues(self) -> None:
        seat = self._seat
        while not seat.is_closed:
            self._queued.wait(_LOOK)
            self._queued.clear()
            with self._surviving():
                for registration in list(self._registrations.values()):
                    while registration.mode == "queued" and registration.is_handled and not seat.is_closed:
                        if not self._handle(registration):
                            break

    def has(self, registration: Registration) -> bool:
        """Tell whether what this registration has in hand is a handler's, and for nobody else to complete."""
        is_handled = registration.handler is not None and bool(self._tasks)
        return registration.mode == "queued" and (is_handled or registration.in_hand is not None)

    def give_back(self, registration: Registration) -> Occurrence | None:
        """Return the occurrence that a handler was given and has not completed, for somebody else to handle."""
        found = None if registration.in_hand is None else self._queue(registration).receive_open()
        registration.is_done()
        return found

    def _queue(self, registration: Registration) -> EventQueue:
        def among() -> list[int]:
            return [registration.number]

        return self._queues.setdefault(registration.number, EventQueue(self._seat, among))

    def _next(self, registration: Registration) -> Occurrence | None:
        """Return what the handler, or the session before, has in hand, else the next occurrence."""
        queue = self._queue(registration)
        if registration.in_hand is not None or not registration.is_known:
            # Completed it may be all the same: the answer to that was lost.
            found = queue.receive_open()
            registration.is_known = True
            if found is not None:
                return found
            registration.is_done()
        return queue.receive(registration.event_name)

    def _handle(self, registration: Registration) -> bool:
        """Handle the next occurrence, or the one that is in hand; False when there is none."""
        occurrence = self._next(registration)
        if occurrence is None:
            return False
        registration.in_hand = occurrence.event_id
        if registration.handler is None:
            return False
        try:
            if registration.transactional:
                with self._seat.core.transaction() as connection:
                    self._call(registration, occurrence, connection)
                    self._complete(registration, occurrence, connection)
            else:
                self._call(registration, occurrence)
                self._queue(registration).commit()
        except _FailedError as failed:
            self._note_failure(registration, occurrence, failed.error)
        except (ClientClosed, ConnectionLost, SessionTaken, TryAgain):
            raise
        except _CompletedError:
            _log.info("client %s: %r was completed before", self._seat.name, occurrence)
            registration.is_done()
        except Exception as error:  # of the completion, or of COMMIT
            told = from_database(error) if isinstance(error, psycopg.Error) else error
            if isinstance(told, ConnectionLost):
                raise told from error
            self._note_failure(registration, occurrence, error)
        else:
            registration.is_done()
        return True

    def _complete(self, registration: Registration, occurrence: Occurrence, connection: AnyConnection) -> None:
        """Complete an occurrence in the transaction of its handler, or undo that when it was completed before."""
        if self._queue(registration).commit(connection=connection) != occurrence.event_id:
            raise _CompletedError

    def _call(self, registration: Registration, occurrence: Occurrence, *connection: AnyConnection) -> None:
        """Call the handler; what it raises is the application's own, unless its session is over or was cut off."""
        if registration.handler is None:
            return
        try:
            runtime.call(registration.handler, occurrence, *connection)
        except runtime.STOPPED:
            raise
        except BaseException as error:
            if self._seat.has_raised(error):
                raise
            if any(one.broken for one in connection):
                raise ConnectionLost(str(error), sqlstate="08006") from error
            raise _FailedError(error) from error

    def _note_failure(self, registration: Registration, occurrence: Occurrence, error: BaseException) -> None:
        registration.note_failure_on(occurrence.event_id, error)
        log_failure(registration, occurrence, error)
        if isinstance(error, runtime.ENDS_PROGRAM):
            raise error
        if registration.error is None:
            runtime.sleep(registration.retry_in)

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        """Go on whatever happens, but end when the session is another program's, or there is no such client."""
        try:
            yield
        except ClientClosed:
            self._seat.is_closed = True
        except ConnectionLost as lost:
            _log.info("client %s: %s", self._seat.name, lost.message)
            self.wake()
        except PgpsError as error:
            if self._seat.error is None:
                _log.warning("client %s: %s", self._seat.name, error.message)
                self._require_client()
                runtime.sleep(_PAUSE)
                self.wake()
        except runtime.STOPPED:
            raise
        except BaseException as error:  # of the function that returns the checkpoint
            _log.error("client %s: %s: %s", self._seat.name, type(error).__name__, error, exc_info=error)
            if isinstance(error, runtime.ENDS_PROGRAM):
                raise
            runtime.sleep(_PAUSE)
            self.wake()

    def _require_client(self) -> None:
        """End when the broker does not know this client any more."""
        try:
            self._seat.rows(_names.CHANNELS, {})
        except (ClientClosed, ConnectionLost):
            return
        except PgpsError as error:
            if self._seat.error is None:
                self._seat.end(error)


class _CompletedError(Exception):
    """The occurrence is not in hand any more."""


class _FailedError(Exception):
    """A handler has raised this."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
