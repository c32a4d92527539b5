"""`pgps type advertise` and `unadvertise`: who may be expected to publish."""

from __future__ import annotations

import typer

from pgps.cli import _statements
from pgps.cli._command import Session, command
from pgps.cli.event_types import Name

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "advertise", changes=True)(advertise)
    command(app, "unadvertise", changes=True)(unadvertise)


def advertise(session: Session, name: Name) -> None:
    """Announce that you publish this type; needed before publishing."""
    session.change([_statements.call("advertise", event_type=name)], done=f'event type "{name}" advertised')


def unadvertise(session: Session, name: Name) -> None:
    """Withdraw your announcement."""
    statement = _statements.call("unadvertise", event_type=name)
    session.change([statement], done=f'event type "{name}" no longer advertised')
