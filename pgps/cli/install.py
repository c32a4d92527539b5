"""`pgps install`, `upgrade`, `uninstall`, `status`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import typer

from pgps import _catalogue, _scripts
from pgps import install as installer
from pgps.cli._command import Session, Yes, command
from pgps.cli._errors import WrongUsage
from pgps.cli._format import count, duration, yes_no
from pgps.cli._output import Column
from pgps.cli._session import Row
from pgps.errors import InstallError, NotPermitted

__all__ = ["installed_here", "register"]

Who = Annotated[
    Literal["server", "client"] | None,
    typer.Option(
        "--parser",
        help="Who takes definitions apart: the server, with PL/Python 3, or the client where the server has none. "
        "Default: as it is installed, at first the server.",
        show_default=False,
    ),
]
TargetDsn = Annotated[
    str | None, typer.Argument(metavar="[DSN]", help="Where to; the same as --dsn.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "install", changes=True)(install)
    command(app, "upgrade", changes=True)(upgrade)
    command(app, "uninstall", changes=True)(uninstall)
    command(app, "status")(status)


def install(session: Session, dsn_argument: TargetDsn = None, parser: Who = None) -> None:
    """Install pgps into a database, or bring it to this release.

    Needs a superuser once, and PL/Python 3 on the server; --parser client
    does without that, but for composite events. Does nothing when there is
    nothing to do.

    Example: pgps install "host=db.example dbname=orders user=postgres"
    """
    _apply(session, dsn_argument if dsn_argument is not None else session.dsn(), parser, only_upgrade=False)


def upgrade(session: Session, dsn_argument: TargetDsn = None, parser: Who = None) -> None:
    """Bring an installed pgps to this release: new revisions, then functions and views."""
    _apply(session, dsn_argument if dsn_argument is not None else session.dsn(), parser, only_upgrade=True)


def _apply(session: Session, dsn: str, parser: _scripts.Parser | None, *, only_upgrade: bool) -> None:
    before = installer.status(dsn)
    if only_upgrade and not before.installed:
        raise InstallError(f'pgps is not installed in database "{before.database}"', hint="Install it: pgps install")
    scripts = installer.pending(dsn, parser=parser)
    _show(session, scripts)
    if session.options.dry_run:
        after = before
        done = f'{len(scripts)} scripts to run in database "{before.database}": {", ".join(scripts) or "none"}'
    else:
        after = (installer.upgrade if only_upgrade else installer.install)(dsn, parser=parser)
        what = "is up to date" if not scripts else "upgraded" if before.installed else "installed"
        done = f'pgps {what} in database "{after.database}", revision {after.revision}'
    session.told(done, database=after.database, revision=after.revision, scripts=scripts)


def uninstall(session: Session, dsn_argument: TargetDsn = None, yes: Yes = False) -> None:
    """Remove pgps and all its events from a database; --yes is required."""
    dsn = dsn_argument if dsn_argument is not None else session.dsn()
    before = installer.status(dsn)
    if not yes and not session.options.dry_run:
        raise WrongUsage(
            f'This removes pgps and all events from database "{before.database}". Add --yes to do it.',
        )
    _show(session, ["uninstall.sql"])
    if not session.options.dry_run:
        installer.uninstall(dsn)
    done = f'pgps removed from database "{before.database}"' if before.installed else "pgps was not installed"
    session.told(done, database=before.database)


def _show(session: Session, scripts: Iterable[str]) -> None:
    session.show(f"-- sql/{name}\n{_scripts.read(name)}" for name in scripts)


def status(session: Session) -> None:
    """Show what is installed, and how much waits.

    A role that is not an administrator sees neither the revision nor what is
    not its own.
    """
    facts: Row = session.one(_catalogue.STATUS)
    state = installed_here(session) if facts["installed"] else None
    facts |= {
        "revision": state.revision if state else None,
        "head": _scripts.head(),
        "up_to_date": state.up_to_date if state else None,
    }
    if facts["installed"]:
        facts |= session.one(_catalogue.summary(has_clock=session.has_clock))
        # Brokers that stand alone are not told of links.
        links = (
            session.one(_catalogue.LINKS_SUMMARY) if session.one(_catalogue.HAS_LINKS)["has_links"] else {"links": 0}
        )
        facts |= links if links["links"] else {}
    session.out.record(facts, columns=[column for column in _STATUS if column.key in facts])
    if not facts["installed"]:
        session.out.say("hint: pgps install")
        raise typer.Exit(1)
    if state and not state.up_to_date:
        what = f"revision {state.head}" if state.revision != state.head else "its functions and views differ"
        session.out.say(f"hint: pgps upgrade ({what})")


def installed_here(session: Session) -> installer.Installation | None:
    """Return what is installed, or None when this role may not read it."""
    try:
        return installer.status(session.dsn())
    except NotPermitted:
        return None


_STATUS = [
    Column("database"),
    Column("server_version", "PostgreSQL", format=lambda v: f"{v // 10_000}.{v % 10_000}"),
    Column("installed", format=yes_no),
    Column("revision"),
    Column("up_to_date", format=yes_no),
    Column("event_types", format=count),
    Column("subscriptions", format=count),
    Column("workers", format=count),
    Column("waiting", "events to dispatch", format=count),
    Column("lag_seconds", "oldest of them", format=lambda v: "none" if v is None else duration(v)),
    Column("depth", "deliveries to consume", format=count),
    Column("exceptions", format=count),
    Column("links", format=count),
    Column("links_up", "links connected", format=count),
    Column("gaps", format=count, style=lambda v: "bold red" if v else ""),
]
