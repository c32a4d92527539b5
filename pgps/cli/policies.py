"""`pgps type policy`: which events of a type a role may ever receive."""

from __future__ import annotations

from typing import Annotated

import typer

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, command, group
from pgps.cli._format import clip
from pgps.cli._output import Column
from pgps.cli.event_types import Name

__all__ = ["app"]

app = group("Row-level policies: which events of a type a role may ever receive.")

PolicyName = Annotated[str, typer.Argument(metavar="POLICY", help="Name of the policy.")]


@command(app, "ls")
def ls(session: Session, name: Annotated[str | None, typer.Argument(metavar="[TYPE]")] = None) -> None:
    """List the policies, of one type or of all."""
    columns = [
        Column("event_type"),
        Column("name"),
        Column("role"),
        Column("using_expression", "using", format=clip),
    ]
    session.out.rows(columns, session.rows(_catalogue.policies(name)), nothing="no policies: every event for all")


@command(app, "add", changes=True)
def add(
    session: Session,
    name: Name,
    policy: PolicyName,
    role: Annotated[str, typer.Argument(help="Whom it limits.")],
    using: Annotated[str, typer.Argument(metavar="PREDICATE", help="SQL over the attributes.")],
) -> None:
    """Let a role receive only the events that meet a predicate.

    Example: pgps type policy add quote emea trader "region = 'EMEA'"
    """
    statement = _statements.call("create_policy", event_type=name, name=policy, role=role, using_expression=using)
    session.change([statement], done=f'policy "{policy}" created on "{name}" for "{role}"')


@command(app, "rm", changes=True)
def rm(session: Session, name: Name, policy: PolicyName) -> None:
    """Remove a policy."""
    statement = _statements.call("drop_policy", event_type=name, name=policy)
    session.change([statement], done=f'policy "{policy}" on "{name}" dropped')
