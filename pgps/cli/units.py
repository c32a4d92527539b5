"""`pgps service` and `pgps uow`: services, and the units of work that are sent to them."""

from __future__ import annotations

from typing import Annotated

import typer

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, Yes, command, group
from pgps.cli._format import ago, count
from pgps.cli._output import Column

__all__ = ["services", "units"]

services = group("Services: what clients send units of work to.")
units = group("Units of work: what was sent to services, and how it stands.")

Service = Annotated[str, typer.Argument(metavar="CLASS/SERVER/SERVICE", help="Name of the service.")]
Unit = Annotated[str, typer.Argument(metavar="UOW", help="Id of the unit of work.")]

SERVICES = [
    Column("name", "service"),
    Column("servers", right=True),
    Column("depth", format=count, right=True),
    Column("oldest", format=ago),
    Column("attempts", right=True),
    Column("store"),
    Column("lifetime"),
    Column("deferred"),
    Column("channel"),
]
UNITS = [
    Column("uow_id", "uow"),
    Column("conversation"),
    Column("status"),
    Column("user_status"),
    Column("name", "service"),
    Column("sender"),
    Column("sender_token", "token"),
    Column("attempts", right=True),
    Column("committed_at", "committed", format=ago),
]
DETAILS = [
    *UNITS,
    Column("sent_to"),
    Column("receiver"),
    Column("receiver_token"),
    Column("store"),
    Column("messages", format=count),
    Column("began_at", "began"),
    Column("lifetime_ends"),
    Column("status_ends"),
]


@command(services, "ls")
def list_services(session: Session) -> None:
    """List the services you may send to or serve."""
    session.out.rows(SERVICES, session.rows(_catalogue.services()), nothing="no services")


@command(services, "add", changes=True)
def add(
    session: Session,
    service: Service,
    store: Annotated[str | None, typer.Option("--store", help="broker or off.")] = None,
    lifetime: Annotated[str | None, typer.Option("--lifetime", help="How long a unit of work may take.")] = None,
    status_lifetime: Annotated[
        int | None, typer.Option("--status-lifetime", help="For how many lifetimes its status is kept.")
    ] = None,
    deferred: Annotated[
        bool | None, typer.Option("--deferred/--not-deferred", help="May be sent to while nobody serves it.")
    ] = None,
) -> None:
    """Create a service; what is left out is as the broker's settings (uow_...) say."""
    attributes = {"store": store, "lifetime": lifetime, "status_lifetime": status_lifetime, "deferred": deferred}
    call = _statements.of_service("create_service", service, **attributes)
    session.change([call], done=f'service "{service}" is there')


@command(services, "rm", changes=True)
def remove(session: Session, service: Service, yes: Yes = False) -> None:
    """Drop a service, with what waits for it."""
    session.confirm(f'Drop service "{service}", and what waits for it?', yes=yes)
    session.change([_statements.of_service("drop_service", service)], done=f'service "{service}" is dropped')


@command(units, "ls")
def list_units(session: Session) -> None:
    """List the units of work that you have sent or received and whose status is known."""
    session.out.rows(UNITS, session.rows(_catalogue.units_of_work()), nothing="no units of work")


@command(units, "show")
def show(session: Session, uow: Unit) -> None:
    """Show one unit of work."""
    row = session.named(_catalogue.units_of_work(uow.upper()), "unit of work", uow, hint="pgps uow ls")
    session.out.record(row, columns=None if session.out.json else DETAILS)


@command(units, "cancel", changes=True)
def cancel(session: Session, uow: Unit, yes: Yes = False) -> None:
    """Cancel a unit of work of your role that nobody has begun to receive."""
    row = session.named(_catalogue.units_of_work(uow.upper()), "unit of work", uow, hint="pgps uow ls")
    session.confirm(f"Cancel unit of work {row['uow_id']} ({row['status']})?", yes=yes)
    call = _statements.call("cancel_unit", uow_id=row["uow_id"])
    session.change([call], done=f"unit of work {row['uow_id']} is cancelled")
