"""`pgps top`: a live view of the broker."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.live import Live

from pgps import _catalogue
from pgps.cli._command import Session, command
from pgps.cli._frame import Frame, as_json, render
from pgps.cli._output import dumps

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "top")(top)


def top(
    session: Session,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One look, then leave.")] = False,
) -> None:
    """Watch throughput, depth, lag, exceptions and workers; q or Ctrl-C leaves.

    With --json one object for each look, on a line of its own. Rates are of
    the time between two looks; the first shows what the broker keeps itself.
    """
    with contextlib.suppress(KeyboardInterrupt):
        if once:
            _print(session, _look(session, None))
        elif session.out.json or not session.out.stdout.is_terminal:
            _stream(session, interval)
        else:
            _live(session, interval)


def _look(session: Session, before: Frame | None) -> Frame:
    with session.connection.transaction():  # one moment for all of it
        session.connection.execute(_catalogue.ONE_SNAPSHOT)
        frame = Frame(
            taken=time.monotonic(),
            moment=session.one(_catalogue.moment(has_clock=session.has_clock)),
            types=session.rows(_catalogue.activity(has_clock=session.has_clock)),
            subscriptions=session.rows(_catalogue.subscriptions()),
            workers=session.rows(_catalogue.workers()),
            links=session.rows(_catalogue.links()) if session.one(_catalogue.HAS_LINKS)["has_links"] else [],
        )
    frame.measure(before)
    return frame


def _print(session: Session, frame: Frame) -> None:
    if session.out.json:
        session.out.line(dumps(as_json(frame)))
    else:
        session.out.stdout.print(render(frame, height=None, width=session.out.stdout.width))
    session.out.flush()


def _stream(session: Session, interval: float) -> None:
    frame = None
    while True:
        frame = _look(session, frame)
        _print(session, frame)
        time.sleep(interval)


def _live(session: Session, interval: float) -> None:
    console = session.out.stdout
    frame = _look(session, None)

    def drawn() -> object:
        return render(frame, height=console.height, width=console.width)

    with _keys(), Live(drawn(), console=console, screen=True, auto_refresh=False) as live:  # type: ignore[arg-type]
        while not _quit(interval):
            frame = _look(session, frame)
            live.update(drawn(), refresh=True)  # type: ignore[arg-type]


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Let single keys be read, without Enter and without echo."""
    if not sys.stdin.isatty():
        yield
        return
    import termios  # noqa: PLC0415 - Unix only, and only on a terminal
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _quit(timeout: float) -> bool:
    """Wait; return True when q was pressed meanwhile."""
    if not sys.stdin.isatty():
        time.sleep(timeout)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], timeout)
    # One byte, past the buffer of sys.stdin: what is typed ahead belongs to the next program.
    return bool(ready) and os.read(sys.stdin.fileno(), 1) in (b"q", b"Q")
