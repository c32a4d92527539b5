"""`pgps client`: clients that are known by name, what they are registered for, and what waits for them."""

from __future__ import annotations

from typing import Annotated

import typer

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, Yes, command, group
from pgps.cli._format import ago, argument, count
from pgps.cli._output import Column

__all__ = ["app"]

app = group("Clients: applications known by name, their registrations, queues and checkpoints.")

Name = Annotated[str, typer.Argument(metavar="CLIENT", help="Name of the client.")]

COLUMNS = [
    Column("name"),
    Column("connected"),
    Column("session", right=True),
    Column("registrations", right=True),
    Column("pending_events", "events", format=count, right=True),
    Column("pending_requests", "requests", format=count, right=True),
    Column("pending_replies", "replies", format=count, right=True),
    Column("connected_at", "since", format=ago),
    Column("owner"),
]
DETAILS = [
    Column("name"),
    Column("owner"),
    Column("connected"),
    Column("session"),
    Column("pid"),
    Column("address"),
    Column("connected_at"),
    Column("disconnected", "disconnected cleanly"),
    Column("last_received_event"),
    Column("last_committed_event"),
    Column("pending_events", format=count),
    Column("event_checkpoint_bytes", format=count),
    Column("last_sent_request"),
    Column("last_received_request"),
    Column("last_committed_request"),
    Column("pending_requests", format=count),
    Column("pending_replies", format=count),
    Column("reply_checkpoint_bytes", format=count),
    Column("created_at", "created"),
]
REGISTRATIONS = [
    Column("event_name", "event"),
    Column("mode"),
    Column("style"),
    Column("state", style=lambda state: "red" if state != "valid" else ""),
    Column("reason"),
    Column("attempts", format=count, right=True),
    Column("subscription"),
    Column("registered_at", "registered", format=ago),
]
REQUESTS = [
    Column("request_id", "request", right=True),
    Column("state", style=lambda state: "red" if state == "failed" else ""),
    Column("role"),
    Column("sent_at", "sent", format=ago),
    Column("row_count", "rows", format=count, right=True),
    Column("sqlstate"),
    Column("error"),
]


@command(app, "ls")
def ls(session: Session) -> None:
    """List the clients you may see."""
    session.out.rows(COLUMNS, session.rows(_catalogue.clients()), nothing="no clients")


@command(app, "show")
def show(session: Session, name: Name) -> None:
    """Show one client: where it stands, what it is registered for, which requests it has sent."""
    row = session.named(_catalogue.clients(name), "client", name, hint="pgps client ls")
    registrations = session.rows(_catalogue.registrations(name))
    requests = session.rows(_catalogue.requests(name))
    if session.out.json:
        session.out.record(row | {"registrations": registrations, "requests": requests})
        return
    session.out.record(row, columns=DETAILS)
    for heading, columns, rows in (
        ("registrations", REGISTRATIONS, registrations),
        ("requests", REQUESTS, requests),
    ):
        if rows:
            session.out.heading(heading)
            session.out.table(columns, rows)
    if any(registration["state"] != "valid" for registration in registrations):
        session.out.say(f"hint: {argument(name)} has to register again for what is invalid")


@command(app, "rm", changes=True)
def rm(session: Session, name: Name, yes: Yes = False) -> None:
    """Drop a client with its registrations, what waits for it, its requests and checkpoints."""
    session.confirm(f'Drop client "{name}" with its registrations, queues and checkpoints?', yes=yes)
    session.change([_statements.call("drop_client", client=name)], done=f'client "{name}" dropped')


@command(app, "class")
def source(
    session: Session,
    event_types: Annotated[list[str], typer.Argument(metavar="TYPE...", help="Event types.")],
) -> None:
    """Write Python dataclasses for event types, to be used with pgps.client.

    Example: pgps client class quote > quote.py
    """
    # The client takes as long to import as all commands together, and only this one uses it.
    from pgps.client import Client, class_source  # noqa: PLC0415

    with Client(session.dsn()) as client:
        written = [class_source(client.shape(_catalogue.folded(name))) for name in event_types]
    if session.out.json:
        session.out.record(dict(zip(event_types, written, strict=True)))
    else:
        session.out.line("\n\n".join(written).rstrip())
