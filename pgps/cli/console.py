"""`pgps console`: a console in the browser."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from pgps.cli._command import Session, command
from pgps.errors import ConfigError

__all__ = ["register"]

_MISSING = {"starlette", "jinja2", "markupsafe", "uvicorn"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "console")(console)


def console(
    session: Session,
    host: Annotated[str, typer.Option(envvar="PGPS_CONSOLE_HOST", help="The address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="PGPS_CONSOLE_PORT", min=1, max=65535, help="The port.")] = 8090,
    root_path: Annotated[str, typer.Option(metavar="PATH", help="Where a proxy serves it, such as /pgps.")] = "",
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name it is called by; several may be given.")
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="A proxy whose X-Forwarded-Proto and -For are believed."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, and change nothing.")] = False,
    without_password: Annotated[
        bool, typer.Option("--without-password", help="Let in whom the server asks for no password.")
    ] = False,
) -> None:
    """Serve a console for browsers until stopped; it needs the package's extra "console".

    Visitors log in as roles of the database, and see and change what these may.
    """
    try:
        config = importlib.import_module("pgps_console.config")
        server = importlib.import_module("pgps_console.server")
    except ModuleNotFoundError as error:
        if error.name not in _MISSING:
            raise
        raise ConfigError(
            f'the console needs the package "{error.name}"', hint="Install it: pip install 'pgps[console]'"
        ) from None
    session.out.say(f"http://{host}:{port}{root_path}")
    server.serve(
        config.ConsoleConfig(
            dsn=session.dsn(),
            host=host,
            port=port,
            root_path=root_path.rstrip("/"),
            hosts=("127.0.0.1", "localhost", "[::1]", *(allow_host or [])),
            proxies=tuple(proxy or []),
            read_only=read_only,
            without_password=without_password,
        )
    )
