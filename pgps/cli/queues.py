"""`pgps queue`: the three queues of each event type."""

from __future__ import annotations

from typing import Annotated

import typer

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, command, group
from pgps.cli._errors import WrongUsage
from pgps.cli._format import ago, clip, count, size, yes_no
from pgps.cli._output import Column

__all__ = ["COLUMNS", "app"]

app = group("Queues: <type>_in, <type>_out and <type>_exception.")

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue, as quote_in.")]

COLUMNS = [
    Column("queue"),
    Column("depth", format=count, right=True),
    Column("oldest", format=ago),
    Column("size_bytes", "size", format=size, right=True),
    Column("persistent", format=yes_no),
    Column("auditable", format=yes_no),
    Column("retention"),
]


@command(app, "ls")
def ls(
    session: Session,
    event_type: Annotated[str | None, typer.Option("--type", "-t", metavar="TYPE", help="Of one type.")] = None,
) -> None:
    """List the queues with their depth and size."""
    session.out.rows(COLUMNS, session.rows(_catalogue.queues(event_type=event_type)), nothing="no queues")


@command(app, "show")
def show(
    session: Session,
    name: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many events, newest first.")] = 10,
) -> None:
    """Show one queue and its newest events."""
    row = session.named(_catalogue.queues(name), "queue", name, hint="pgps queue ls")
    events = session.rows(_catalogue.queue_events(row["queue"], limit))
    if session.out.json:
        session.out.record({**row, "events": events})
        return
    session.out.record(row, columns=[Column("queue"), Column("event_type"), Column("kind"), *COLUMNS[1:]])
    if events:
        session.out.heading("Newest events")
        session.out.table([Column(key, key, format=clip) for key in events[0]], events)


@command(app, "set", changes=True)
def set_queue(
    session: Session,
    name: Name,
    auditable: Annotated[
        bool | None, typer.Option("--auditable/--non-auditable", help="Keep events after delivery, or not.")
    ] = None,
    persistent: Annotated[
        bool | None, typer.Option("--persistent/--non-persistent", help="Survive a crash, or not.")
    ] = None,
    retention: Annotated[
        str | None, typer.Option(metavar="INTERVAL", help="How long an auditable queue keeps events: '30 days'.")
    ] = None,
) -> None:
    """Change a queue.

    Example: pgps queue set quote_in --auditable --retention "30 days"
    """
    if auditable is None and persistent is None and retention is None:
        raise WrongUsage("Say what to change: --auditable, --persistent or --retention.")
    statement = _statements.call(
        "alter_queue", queue=name, auditable=auditable, persistent=persistent, retention=retention
    )
    session.change([statement], done=f'queue "{name}" changed')
