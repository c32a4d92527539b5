"""`pgps listen --direct`: events as they are raised, for whoever is there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from types import FrameType

from rich.text import Text

from pgps.cli._format import plain, printable
from pgps.cli._output import dumps
from pgps.cli._session import Session
from pgps.client import Client, Identity, Occurrence

__all__ = ["listen_directly"]


class _LeaveError(Exception):
    """Ctrl-C or SIGTERM."""


def listen_directly(session: Session, event_name: str, *, max_events: int | None, timeout: float | None) -> None:
    """Register as a client of this program's own, and print what is pushed."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise _LeaveError

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    name = f"listen-{socket.gethostname()[:20]}-{os.getpid()}"
    try:
        # It may be asked to leave while it connects, too, or once more while it leaves.
        with contextlib.suppress(_LeaveError), Client(session.dsn(), name=name, grace=1.0) as client:
            try:
                with contextlib.suppress(_LeaveError), client.identify(name) as me:
                    # Started first: what is raised before that is ignored, although the session listens already.
                    me.start()
                    me.register(event_name, mode="direct")
                    if session.out.stderr.is_terminal:
                        session.out.say(f'listening to "{event_name}"; Ctrl-C leaves')
                    _follow(session, me, max_events=max_events, timeout=timeout)
            finally:
                client.execute("select pgps.drop_client(%s)", [name])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _follow(session: Session, me: Identity, *, max_events: int | None, timeout: float | None) -> None:
    printed, last = 0, time.monotonic()
    while True:
        remaining = None if timeout is None else max(0.0, last + timeout - time.monotonic())
        occurrence = me.get_event(timeout=remaining)
        if occurrence is None:
            return
        for payload in occurrence:
            _print(session, occurrence, payload)
            printed += 1
            if printed == max_events:
                return
        session.out.flush()
        last = time.monotonic()


def _print(session: Session, occurrence: Occurrence, payload: dict[str, object]) -> None:
    event = {
        "event_id": occurrence.event_id,
        "event_type": occurrence.event_type,
        "payload": payload,
        "published_at": occurrence.published_at,
        "publisher": occurrence.publisher,
        "raiser": occurrence.raiser,
        "origin": occurrence.origin,
    }
    if session.out.json:
        session.out.line(dumps(event))
        return
    line = Text.assemble(
        (f"{event['event_id']} ", "cyan"),
        (f"{plain(event['published_at'])} ", "dim"),
        (f"{plain(event['event_type'])} ", "bold"),
        printable(dumps(payload)),
    )
    if session.out.stdout.is_terminal:
        session.out.stdout.print(line, soft_wrap=True)
    else:
        session.out.line(line.plain)
