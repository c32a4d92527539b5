"""`pgps network`: networks of other brokers, for messages that are spooled there."""

from __future__ import annotations

from typing import Annotated

import typer

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, Yes, command, group
from pgps.cli._format import ago, count
from pgps.cli._output import Column

__all__ = ["app"]

app = group("Networks: brokers elsewhere, for messages that are spooled there.")

Name = Annotated[str, typer.Argument(metavar="NETWORK", help="Name of the network.")]
Contacts = Annotated[
    list[str], typer.Argument(metavar="CONNINFO…", help="Its contact points: 'host=… dbname=…', one broker each.")
]
MaybeContacts = Annotated[
    list[str] | None, typer.Argument(metavar="CONNINFO…", help="Its contact points from now on; none: as they are.")
]
User = Annotated[str | None, typer.Option("--user", help="Role of contact points whose string has none.")]
Passfile = Annotated[str | None, typer.Option("--passfile", help="File with passwords, where the worker runs.")]

COLUMNS = [
    Column("name"),
    Column("state"),
    Column("up", right=True),
    Column("contacts", format=lambda contacts: str(len(contacts)), right=True),
    Column("waiting", format=count, right=True),
    Column("last_error", "error"),
]
DETAILS = [
    Column("name"),
    Column("state"),
    Column("waiting", format=count),
    Column("username"),
    Column("passfile"),
    Column("last_error", "error"),
    Column("hint"),
    Column("created_at", "created"),
]
CONTACTS = [
    Column("place", right=True),
    Column("conninfo"),
    Column("state"),
    Column("arrived_seqn", "arrived", right=True),
    Column("waiting", format=count, right=True),
    Column("manager", right=True),
    Column("changed_at", "changed", format=ago),
    Column("last_error", "error"),
]


@command(app, "ls")
def ls(session: Session) -> None:
    """List the networks that are defined here."""
    session.out.rows(COLUMNS, session.rows(_catalogue.networks()), nothing="no networks: pgps network add")


@command(app, "show")
def show(session: Session, name: Name) -> None:
    """Show one network: what waits for it, and how the connection to each contact point is."""
    row = session.named(_catalogue.networks(name), "network", name, hint="pgps network ls")
    contacts = session.rows(_catalogue.network_contacts(name))
    if session.out.json:
        session.out.record(row | {"contact_points": contacts})
        return
    session.out.record(row, columns=DETAILS)
    session.out.heading("contact points")
    session.out.table(CONTACTS, contacts)


@command(app, "add", changes=True)
def add(session: Session, name: Name, contacts: Contacts, user: User = None, passfile: Passfile = None) -> None:
    """Define a network by its contact points; each gets what is spooled for it."""
    call = _statements.call("create_network", name=name, contacts=contacts, username=user, passfile=passfile)
    session.change([call], done=f'network "{name}" defined')


@command(app, "set", changes=True)
def change(
    session: Session, name: Name, contacts: MaybeContacts = None, user: User = None, passfile: Passfile = None
) -> None:
    """Change a network; contact points that stay go on where they are."""
    call = _statements.call("alter_network", name=name, contacts=contacts or None, username=user, passfile=passfile)
    session.change([call], done=f'network "{name}" changed')


@command(app, "rm", changes=True)
def rm(
    session: Session,
    name: Name,
    cascade: Annotated[bool, typer.Option("--cascade", help="Also what has not arrived everywhere.")] = False,
    yes: Yes = False,
) -> None:
    """Drop a network."""
    session.confirm(f'Drop network "{name}"' + (" and what waits for it?" if cascade else "?"), yes=yes)
    call = _statements.call("drop_network", name=name, cascade=cascade or None)
    session.change([call], done=f'network "{name}" dropped')
