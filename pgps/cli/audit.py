"""`pgps audit`: whether what was published elsewhere arrived as it was."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, Yes, command
from pgps.cli._format import count
from pgps.cli._output import Column

__all__ = ["register"]


def _equal(value: Any) -> str:
    return {None: "", True: "equal", False: "differs"}[value]


def _verdict_style(verdict: Any) -> str:
    return {"complete": "green", "differs": "bold red"}.get(verdict, "yellow")


_COLUMNS = [
    Column("kind"),
    Column("neighbour"),
    Column("origin"),
    Column("event_type", "type"),
    Column("filter"),
    Column("events_there", "there", format=count, right=True),
    Column("events_here", "here", format=count, right=True),
    Column("digest_equal", "digest", format=_equal),
    Column("verdict", style=_verdict_style),
    Column("hint"),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "audit", changes=True)(audit)


def audit(
    session: Session,
    dismiss: Annotated[bool, typer.Option("--dismiss", help="End the alarm of what was found until now.")] = False,
    yes: Yes = False,
) -> None:
    """Compare what neighbours and origins say that they sent with what came.

    Exit status 1 when something differs: events were lost, repeated or
    altered in silence. It does so until that is dismissed.
    """
    if dismiss:
        session.confirm("End the alarm? Nobody is told of these findings any more.", yes=yes)
        session.change([_statements.call("dismiss_findings")], done=lambda n: f"{n} findings dismissed")
        return
    found = session.rows(_catalogue.AUDIT)
    session.out.rows(_COLUMNS, found, nothing="nothing has come from other brokers")
    if any(row["verdict"] == "differs" for row in found):
        raise typer.Exit(1)
