"""`pgps sql`: a shell that takes the statement language and SQL, mixed."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from pgps.cli._command import Session, command
from pgps.cli._errors import WrongUsage
from pgps.cli.shell.meta import Quit, ScriptFailed, run_script
from pgps.cli.shell.run import Runner

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "sql")(sql)


def sql(
    session: Session,
    commands: Annotated[
        list[str] | None, typer.Option("--command", "-c", metavar="TEXT", help="Run this and leave; repeatable.")
    ] = None,
    files: Annotated[
        list[str] | None, typer.Option("--file", "-f", metavar="FILE", help="Run a file and leave; - is stdin.")
    ] = None,
    single: Annotated[
        bool, typer.Option("--single-transaction", "-1", help="All of -c and -f in one transaction.")
    ] = False,
    parse_as: Annotated[
        str | None,
        typer.Option(
            "--parse-as",
            metavar="DSN",
            help="Where the server has no PL/Python: connect so to store what was parsed, if your role may not.",
        ),
    ] = None,
    expanded: Annotated[bool, typer.Option("--expanded", "-x", help="One line for each column.")] = False,
) -> None:
    """Type statements of the pgps language and SQL, mixed.

    A statement ends with a semicolon; \\? helps. Without a terminal, or with
    -c or -f, statements are run as they come, and the first that fails ends
    the run with exit status 1.

    Example: pgps sql -c "create event type quote as (symbol text, price numeric); advertise quote"
    """
    interactive = not commands and not files and sys.stdin.isatty()
    if single and interactive:
        raise WrongUsage("--single-transaction goes with -c, -f or a script on stdin.")
    session.parse_as = parse_as
    runner = Runner(session, interactive=interactive)
    runner.expanded = expanded
    runner.connection  # noqa: B018 - fails here, not behind the first prompt
    if interactive:
        # prompt_toolkit takes longer to import than everything else together.
        from pgps.cli.shell.repl import converse  # noqa: PLC0415

        converse(runner)
        return
    texts = list(commands or [])
    texts += [_read(file) for file in files or ([] if commands else ["-"])]
    try:
        # Who quits has not failed: with --single-transaction what was done until then is committed.
        with session.connection.transaction() if single else contextlib.nullcontext(), contextlib.suppress(Quit):
            for text in texts:
                run_script(runner, text)
    except ScriptFailed:
        raise typer.Exit(1) from None


def _read(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
