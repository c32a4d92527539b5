"""`pgps exceptions`: events whose delivery failed, and what becomes of them."""

from __future__ import annotations

import contextlib
from typing import Annotated

import psycopg
import typer

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, Yes, command, group
from pgps.cli._errors import WrongUsage
from pgps.cli._format import ago, argument, clip, count, counted
from pgps.cli._output import Column
from pgps.cli._session import Row

__all__ = ["COLUMNS", "app"]

app = group("Exceptions: events whose delivery failed, waiting for a decision.")

TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="Of which event type.")]
EventId = Annotated[int | None, typer.Argument(metavar="[EVENT]", help="Which event; all of them when left out.")]
Sub = Annotated[str | None, typer.Option("--sub", "-s", metavar="SUB", help="Only those of one subscription.")]

COLUMNS = [
    Column("event_type", "type"),
    Column("event_id", "event", right=True),
    Column("subscription"),
    Column("failed_at", "failed", format=ago),
    Column("attempts", format=count, right=True),
    Column("sqlstate"),
    Column("error", format=clip),
    Column("state"),
]


@command(app, "ls")
def ls(
    session: Session,
    event_type: Annotated[str | None, typer.Option("--type", "-t", metavar="TYPE", help="Of one type.")] = None,
    sub: Sub = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, oldest first.")] = 100,
) -> None:
    """List what failed."""
    rows = session.rows(_catalogue.exceptions(event_type=event_type, subscription=sub, limit=limit))
    session.out.rows(COLUMNS, rows, nothing="no exceptions")
    if len(rows) == limit:
        session.out.say(f"the oldest {limit}; more with --limit")


@command(app, "show")
def show(session: Session, event_type: TypeName, event_id: Annotated[int, typer.Argument(metavar="EVENT")]) -> None:
    """Show one failed event: the whole error, and the event."""
    rows = session.rows(_catalogue.exceptions(event_type=event_type, event_id=event_id))
    if any(row["payload"] is None for row in rows):
        view = rows[0]["event_type"] + "_exception"
        event: list[Row] = []
        # An administrator may see what failed, and need not see the events.
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            event = session.rows(_catalogue.failed_event(view, event_id))
        rows = [{**row, "payload": row["payload"] or (event[0]["event"] if event else None)} for row in rows]
    details = [
        *(column for column in COLUMNS if column.key != "error"),
        Column("error"),
        Column("payload", "event"),
    ]
    if session.out.json or not rows:
        session.out.rows(details, rows, nothing="no such exception")
        return
    for number, row in enumerate(rows):
        if number:
            session.out.line("")
        session.out.record(row, columns=details)
    session.out.say(f"hint: pgps exceptions retry {argument(event_type)} {event_id}, or discard")


@command(app, "retry", changes=True)
def retry(session: Session, event_type: TypeName, event_id: EventId = None, sub: Sub = None) -> None:
    """Put failed events back, to be delivered again; publish what came over a link and was refused.

    Example: pgps exceptions retry glucose --sub "link hospital"
    """
    statement = _statements.call("retry_exception", event_type=event_type, event_id=event_id, subscription=sub)
    session.change([statement], done=lambda n: f"{_failed(n)} put back")


@command(app, "discard", changes=True)
def discard(
    session: Session,
    event_type: Annotated[str | None, typer.Argument(metavar="[TYPE]", help="Of which event type.")] = None,
    event_id: EventId = None,
    sub: Sub = None,
    gaps: Annotated[
        bool, typer.Option("--gaps", help="Acknowledge the gaps in what came over links; without TYPE.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Drop failed events for good.

    Example: pgps exceptions discard --gaps --sub "link hospital"
    """
    if (event_type is None) != gaps:
        raise WrongUsage("Say either of which TYPE, or --gaps.")
    if gaps:
        session.confirm("Acknowledge the gaps? Nobody is told of them any more.", yes=yes)
    elif event_id is None:
        of = f' of subscription "{sub}"' if sub else ""
        session.confirm(f'Discard all failed events of "{event_type}"{of}?', yes=yes)
    if event_type is None:
        statement = _statements.acknowledge_gaps(sub)
    else:
        statement = _statements.call("discard_exception", event_type=event_type, event_id=event_id, subscription=sub)
    session.change(
        [statement], done=lambda n: f"{counted(n, 'gap')} acknowledged" if gaps else f"{_failed(n)} discarded"
    )


def _failed(number: int) -> str:
    return counted(number, "failed delivery", "failed deliveries")
