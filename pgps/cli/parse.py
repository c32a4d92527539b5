"""`pgps parse`: take definitions apart for a server without PL/Python, for roles that may not store the result."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pgps import parsing
from pgps.cli._command import Session, command
from pgps.cli._errors import WrongUsage
from pgps.cli._format import count

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "parse")(parse)


def parse(
    session: Session,
    details: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DETAIL]...", help="The detail of the error that a role got; - is stdin."),
    ] = None,
    commands: Annotated[
        list[str] | None,
        typer.Option("--command", "-c", metavar="TEXT", help="What a role will execute: run here, and undone."),
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="What the subscriptions need and nobody has parsed.")
    ] = False,
) -> None:
    """Parse for a database whose server has no PL/Python, and store the result.

    A role that may not store is refused a definition until its text has been
    parsed, and told in the error's detail what to give here; then the same
    call succeeds. Nothing of a detail is executed. With -c a statement is
    executed with your rights and undone: read it first.
    Needs the role that installed pgps, or a superuser.

    Example: pgps parse '{"parser": "…", "questions": [{"function": "parse_filter", "arguments": […]}]}'
    """
    if not (details or commands or missing):
        raise WrongUsage("Give the detail of an error, -c with a statement, or --missing.")
    stored = 0
    with session.connection.transaction():
        for detail in details or []:
            questions = parsing.questions_in(sys.stdin.read() if detail == "-" else detail)
            if not questions:
                raise WrongUsage(f"Nothing is asked in: {detail[:200]}")
            stored += parsing.store(session.connection, questions)
        if missing:
            stored += parsing.store_for_subscriptions(session.connection)
        for text in commands or []:
            parsing.prepare(session.connection, text)
    session.told(f"stored {count(stored)} results" if details or missing else "parsed what the statements need")
