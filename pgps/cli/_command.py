"""What a command is: a function of a session, with the options that all share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Concatenate, ParamSpec

import psycopg
import typer

from pgps._help import Command, Group
from pgps.cli._errors import FAILED, report
from pgps.cli._session import Options, Session
from pgps.errors import PgpsError

__all__ = ["Dsn", "Json", "Session", "Verbose", "Yes", "command", "group"]

P = ParamSpec("P")
_PANEL = "Options of every command"

Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        rich_help_panel=_PANEL,
        help="libpq connection string or URI. Default: PGPS_DSN, then libpq's PG* variables and service file.",
    ),
]
Json = Annotated[bool, typer.Option("--json", rich_help_panel=_PANEL, help="JSON on stdout, for programs.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", rich_help_panel=_PANEL, help="Errors with SQLSTATE, position and context."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", rich_help_panel=_PANEL, help="Do it in a transaction and roll that back.")
]
ShowSql = Annotated[
    bool, typer.Option("--show-sql", rich_help_panel=_PANEL, help="Write the SQL to stdout as it is run.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_READ = {"dsn": Dsn, "json": Json, "verbose": Verbose}
_CHANGE = {**_READ, "dry_run": DryRun, "show_sql": ShowSql}


def group(help: str) -> typer.Typer:  # noqa: A002 - typer's own name for it
    """Return an empty group of commands: a noun that waits for its verbs."""
    return typer.Typer(cls=Group, help=help, no_args_is_help=True, pretty_exceptions_enable=False)


def command(
    app: typer.Typer, name: str, *, changes: bool = False, **settings: Any
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[Concatenate[Session, P], None]]:
    """Register a function of a session as a command.

    Adds --dsn, --json and --verbose, and with `changes` --dry-run and
    --show-sql; they are also taken before the command's name. Errors become
    exit status 1 and a line on stderr. The function itself stays as it is.
    """
    shared = _CHANGE if changes else _READ

    def register(
        function: Callable[Concatenate[Session, P], None],
    ) -> Callable[Concatenate[Session, P], None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def run(ctx: typer.Context, **values: Any) -> None:
            options = _options(ctx.obj, {key: values.pop(key) for key in shared})
            _run(function, options, values)

        run.__doc__ = function.__doc__
        run.__name__ = getattr(function, "__name__", name)
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
                *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
                *(
                    inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=_default(key), annotation=kind)
                    for key, kind in shared.items()
                ),
            ]
        )
        app.command(name, cls=Command, **settings)(run)
        return function

    return register


def _default(key: str) -> Any:
    return None if key == "dsn" else False


def _options(before: Options | None, given: dict[str, Any]) -> Options:
    """Join what stands before the command's name with what stands after it, which wins."""
    before = before or Options()
    return Options(
        dsn=given["dsn"] if given["dsn"] is not None else before.dsn,
        json=given["json"] or before.json,
        verbose=given["verbose"] or before.verbose,
        dry_run=given.get("dry_run", False),
        show_sql=given.get("show_sql", False),
    )


def _run(function: Callable[..., None], options: Options, values: dict[str, Any]) -> None:
    session = Session(options)
    try:
        function(session, **values)
        session.out.flush()
    except BrokenPipeError:
        raise  # nobody reads: not a failure to tell about
    except (PgpsError, psycopg.Error, OSError) as error:
        report(error, json=options.json, verbose=options.verbose)
        raise typer.Exit(FAILED) from None
    finally:
        session.close()
