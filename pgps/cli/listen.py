"""`pgps listen`: receive, print, acknowledge."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Annotated, Any

import psycopg
import typer
from rich.text import Text

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, command
from pgps.cli._format import plain, printable
from pgps.cli._output import dumps
from pgps.cli._session import Row
from pgps.cli.subscriptions import Name
from pgps.errors import WrongState

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "listen")(listen)


class _LeaveError(Exception):
    """Ctrl-C or SIGTERM came while nothing was in hand."""


class _Signals:
    """Let a batch be finished before a signal ends the program; the second signal ends it at once."""

    def __init__(self) -> None:
        self.asked = False
        self.idle = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self.idle:
            raise _LeaveError(signal.Signals(number).name)

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Take over SIGINT and SIGTERM."""
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Allow a signal to interrupt what is inside."""
        self.idle = True
        try:
            if self.asked:
                raise _LeaveError
            yield
        finally:
            self.idle = False


def listen(
    session: Session,
    name: Name,
    direct: Annotated[
        bool,
        typer.Option("--direct", help="Not a subscription: an event type, or 'prefix*', pushed as it is raised."),
    ] = False,
    max_events: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="Leave after so many events; without it, stay.")
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Acknowledge what was printed; or look, take nothing, and leave.")
    ] = True,
    batch: Annotated[int, typer.Option(min=1, help="Receive and acknowledge so many at once.")] = 100,
    poll: Annotated[float, typer.Option(min=0.05, help="Look at least this often, in seconds.")] = 1.0,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, help="Leave when nothing has come for so many seconds.")
    ] = None,
) -> None:
    """Receive the events of a subscription, print and acknowledge them.

    With --json one object a line. Events are acknowledged in the transaction
    that received them, after they were written out: if the program or the
    connection dies in between, they are printed again. Exactly once needs the
    acknowledgement in the same transaction as what an event causes, which
    only an application that writes to this database can do: pgps.receive and
    pgps.ack beside its own statements.

    With --direct the argument is an event type, or a prefix and *: events are
    printed as they are raised, while this program listens; nothing is kept.
    """
    if direct:
        from pgps.cli._direct import listen_directly  # noqa: PLC0415 - it needs the client, which is slow to import

        listen_directly(session, name, max_events=max_events, timeout=timeout)
        return
    row = session.named(_catalogue.subscriptions(name), "subscription", name, hint="pgps sub ls")
    if row["kind"] == "internal":
        raise WrongState(
            f'subscription "{name}" runs {row["execute"]}; nobody can receive from it',
            hint=f"Create one without --execute: pgps sub create NAME {row['event_type']}",
        )
    if not ack:
        with session.connection.transaction(force_rollback=True):
            _print(session, _receive(session, name, max_events or batch))
        return
    signals = _Signals()
    with signals.handled(), contextlib.suppress(_LeaveError):
        session.connection.execute(_statements.listen(row["channel"]))
        if max_events is None and session.out.stderr.is_terminal:
            session.out.say(f'listening on "{name}"; Ctrl-C leaves')
        _follow(session, signals, name, max_events=max_events, batch=batch, poll=poll, timeout=timeout)


def _follow(
    session: Session,
    signals: _Signals,
    name: str,
    *,
    max_events: int | None,
    batch: int,
    poll: float,
    timeout: float | None,
) -> None:
    printed, last = 0, time.monotonic()
    while max_events is None or printed < max_events:
        wanted = batch if max_events is None else min(batch, max_events - printed)
        events = _take(session, name, wanted)
        printed += events
        if events:
            last = time.monotonic()
        elif timeout is not None and time.monotonic() - last >= timeout:
            return
        else:
            remaining = poll if timeout is None else max(0.0, min(poll, last + timeout - time.monotonic()))
            with signals.waiting():
                _wait(session.connection, remaining)
        if signals.asked:
            return


def _take(session: Session, name: str, wanted: int) -> int:
    """Receive, print and acknowledge one batch in one transaction; return how many events it had."""
    with session.connection.transaction():
        events = _receive(session, name, wanted)
        if events:
            _print(session, events)
            session.out.flush()  # before the acknowledgement, or a broken pipe would lose them
            session.rows(_statements.ACK, {"subscription": name})
    return len(events)


def _receive(session: Session, name: str, wanted: int) -> list[Row]:
    return session.rows(_statements.RECEIVE, {"subscription": name, "max_events": wanted})


def _wait(connection: psycopg.Connection[Any], timeout: float) -> None:
    """Wait for the subscription's channel; a lost notification only costs the time."""
    for _ in connection.notifies(timeout=timeout, stop_after=1):
        pass


def _print(session: Session, events: list[Row]) -> None:
    for event in events:
        if session.out.json:
            session.out.line(dumps(event))
        elif session.out.stdout.is_terminal:
            session.out.stdout.print(_styled(event), soft_wrap=True)
        else:
            session.out.line(_styled(event).plain)


def _styled(event: Row) -> Text:
    again = f" (attempt {event['attempt']})" if event["attempt"] > 1 else ""
    return Text.assemble(
        (f"{event['event_id']} ", "cyan"),
        (f"{plain(event['published_at'])} ", "dim"),
        (f"{plain(event['event_type'])} ", "bold"),
        printable(str(event["payload"])),
        (again, "yellow"),
    )
