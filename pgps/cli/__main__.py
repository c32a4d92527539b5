"""`pgps`: the command line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main

import pgps
from pgps._help import Command, Group
from pgps.cli import (
    _errors,
    advertisements,
    audit,
    clients,
    console,
    doctor,
    event_types,
    events,
    exceptions,
    install,
    links,
    listen,
    metrics,
    networks,
    parse,
    policies,
    publish,
    queues,
    rules,
    settings,
    spools,
    sql,
    subscriptions,
    top,
    topology,
    units,
)
from pgps.cli._command import Dsn, Json, Verbose
from pgps.cli._session import Options
from pgps.errors import PgpsError

__all__ = ["app", "main"]

app = typer.Typer(
    name="pgps",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="Exit status: 0 done, 1 failed, 2 wrong usage. Data goes to stdout, everything else to stderr.",
)

# What typer raises for wrong usage; it keeps the class to itself.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer calls it with the option's value
    if value:
        sys.stdout.write(f"pgps {pgps.__version__}\n")
        raise typer.Exit


@app.callback()
def _pgps(  # --version has done its work when this runs
    ctx: typer.Context,
    dsn: Dsn = None,
    json: Json = False,
    verbose: Verbose = False,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Content-based publish/subscribe inside PostgreSQL."""
    ctx.obj = Options(dsn=dsn, json=json, verbose=verbose)


def _register() -> None:
    install.register(app)
    event_types.app.add_typer(policies.app, name="policy")
    advertisements.register(event_types.app)
    app.add_typer(event_types.app, name="type")
    app.add_typer(queues.app, name="queue")
    app.add_typer(subscriptions.app, name="sub")
    app.add_typer(rules.app, name="rule")
    app.add_typer(exceptions.app, name="exceptions")
    app.add_typer(links.app, name="link")
    app.add_typer(clients.app, name="client")
    app.add_typer(events.app, name="event")
    app.add_typer(spools.app, name="spool")
    app.add_typer(networks.app, name="network")
    app.add_typer(units.services, name="service")
    app.add_typer(units.units, name="uow")
    app.add_typer(settings.app, name="config")
    for module in (publish, listen, sql, parse, doctor, audit, top, topology, console, metrics):
        module.register(app)
    demo = _demo()
    app.command("demo", cls=Command, hidden=demo is None)(demo or _no_demo)


def _demo() -> Any:
    """Return the demonstration's command, None where it is not: it comes with a checkout, not with a package."""
    directory = Path(pgps.__file__).parents[1] / "examples" / "demo"
    if not (directory / "pgps_demo" / "main.py").is_file():
        return None
    sys.path.append(str(directory))
    return importlib.import_module("pgps_demo.main").demo


def _no_demo() -> None:
    """Say where the demonstration is."""
    hint = "In a checkout of pgps: make demo. Without one, docs/tutorial.md takes fifteen minutes."
    _errors.report(PgpsError("the demonstration comes with a checkout of pgps, not with the package", hint=hint))
    raise typer.Exit(_errors.FAILED)


_register()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit status."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        status = typer.main.get_command(app).main(args=list(arguments), prog_name="pgps", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        return _wrong_usage(error, arguments)
    except typer.Abort:
        sys.stderr.write("\n")
        return _errors.FAILED
    except KeyboardInterrupt:
        return _errors.INTERRUPTED
    except BrokenPipeError:
        # Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _errors.FAILED
    return status if isinstance(status, int) else 0


def _wrong_usage(error: Exception, arguments: Sequence[str]) -> int:
    """Tell what is wrong with the command line, in the form of every other error."""
    context = getattr(error, "ctx", None)
    message = str(getattr(error, "format_message", error.__str__)())
    if not message or type(error).__name__ == "NoArgsIsHelpError":
        return _errors.USAGE  # the help has been printed
    path = context.command_path if context else "pgps"
    _errors.report(PgpsError(message, hint=f"{path} --help"), json="--json" in arguments)
    return _errors.USAGE


if __name__ == "__main__":
    main()
