"""`pgps rule`: active rules, which publish what statements change."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, command, group
from pgps.cli._format import clip
from pgps.cli._output import Column

__all__ = ["COLUMNS", "app"]

app = group("Active rules: ON {INSERT | UPDATE | DELETE} … WHERE … PUBLISH.")

Name = Annotated[str, typer.Argument(metavar="RULE", help="Name of the rule.")]

COLUMNS = [
    Column("name"),
    Column("table_name", "table"),
    Column("operations", "on"),
    Column("event_type", "publishes"),
    Column("attributes", format=clip),
    Column("condition", "where", format=clip),
    Column("run_as"),
    Column("owner"),
]


class RunAs(StrEnum):
    """With whose rights a rule publishes."""

    INVOKER = "invoker"
    OWNER = "owner"


@command(app, "ls")
def ls(
    session: Session,
    event_type: Annotated[str | None, typer.Option("--type", "-t", metavar="TYPE", help="Of one type.")] = None,
) -> None:
    """List the rules."""
    session.out.rows(COLUMNS, session.rows(_catalogue.rules(event_type)), nothing="no rules")


@command(app, "create", changes=True)
def create(
    session: Session,
    name: Name,
    table: Annotated[str, typer.Argument(help="Which table to watch.")],
    operations: Annotated[str, typer.Argument(help="insert, update, delete; several with commas.")],
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="What to publish.")],
    attributes: Annotated[
        list[str], typer.Argument(metavar="EXPRESSION...", help="One for each attribute, over new and old.")
    ],
    where: Annotated[str | None, typer.Option("--where", "-w", metavar="PREDICATE", help="Over new and old.")] = None,
    run_as: Annotated[RunAs, typer.Option(help="With whose rights.")] = RunAs.INVOKER,
) -> None:
    """Publish an event for each row that a statement changes.

    Example: pgps rule create moved quotes update quote new.symbol new.price --where "new.price <> old.price"
    """
    statement = _statements.call(
        "create_rule",
        name=name,
        table_name=table,
        operations=operations,
        event_type=event_type,
        attributes=attributes,
        condition=where,
        run_as=run_as.value if run_as is not RunAs.INVOKER else None,
    )
    session.change([statement], done=f'rule "{name}" created')


@command(app, "rm", changes=True)
def rm(session: Session, name: Name) -> None:
    """Remove a rule."""
    session.change([_statements.call("drop_rule", name=name)], done=f'rule "{name}" removed')
