"""`pgps config`: the settings of the broker, kept in the database."""

from __future__ import annotations

from typing import Annotated

import typer

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, command, group
from pgps.cli._output import Column

__all__ = ["app"]

app = group("Settings of the broker, kept in the database.")


@command(app, "ls")
def ls(session: Session) -> None:
    """List the settings and what they mean."""
    columns = [Column("name"), Column("value"), Column("description")]
    session.out.rows(columns, session.rows(_catalogue.settings()), nothing="no settings")


@command(app, "set", changes=True)
def set_setting(
    session: Session,
    name: Annotated[str, typer.Argument(help="Which setting.")],
    value: Annotated[str, typer.Argument(help="Its new value.")],
) -> None:
    """Change a setting."""
    session.change([_statements.call("configure", name=name, value=value)], done=f"{name} is now {value}")
