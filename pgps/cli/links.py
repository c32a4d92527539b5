"""`pgps link`: links to other brokers."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, Yes, command, group
from pgps.cli._errors import WrongUsage
from pgps.cli._format import ago, argument, clip, count, duration, rate, yes_no
from pgps.cli._output import Column
from pgps.cli._session import Row

__all__ = ["COLUMNS", "app", "link_style"]

app = group("Links: brokers that exchange events.")

Name = Annotated[str, typer.Argument(metavar="LINK", help="Name of the link.")]
Conninfo = Annotated[
    str, typer.Argument(metavar="CONNINFO", help="How to connect: 'host=… dbname=… user=… passfile=…', or a URI.")
]

_SECRETS = ("password", "sslpassword")
_MASK = "********"
_LOOK = 0.25  # seconds between two looks at a link that is being drained


class Direction(StrEnum):
    """Which way events may cross."""

    BOTH = "both"
    IN = "in"
    OUT = "out"


class Life(StrEnum):
    """What a database is that is not the one it was."""

    RESTORED = "restored"
    CLONE = "clone"


def link_style(state: Any) -> str:
    """Return the colour of a link's state."""
    styles = {
        "up": "green",
        "elsewhere": "green",
        "incomplete": "yellow",
        "blocked": "bold red",
        "waiting": "red",
        "restored": "bold red",
    }
    return styles.get(state, "yellow")


def _first_line(value: Any) -> str:
    return clip((value or "").partition("\n")[0])


COLUMNS = [
    Column("name"),
    Column("neighbour"),
    Column("direction"),
    Column("state", style=link_style),
    Column("lag_events", "to send", format=count, right=True),
    Column("lag_seconds", "lag", format=duration, right=True),
    Column("sent_rate", "out", format=rate, right=True),
    Column("received_rate", "in", format=rate, right=True),
    Column("last_error", format=_first_line),
]

DETAILS = [
    Column("name"),
    Column("neighbour"),
    Column("broker_id", "its id"),
    Column("epoch", "its epoch"),
    Column("direction"),
    Column("defined_here", format=yes_no),
    Column("role"),
    Column("state", style=link_style),
    Column("changed_at", "since", format=ago),
    Column("connected_since", "connected", format=ago),
    Column("last_error", style=lambda v: "red" if v else ""),
    Column("hint", "remedy"),
    Column("lag_events", "to send", format=count),
    Column("lag_seconds", "lag", format=duration),
    Column("events_sent", format=count),
    Column("sent_rate", "out", format=rate),
    Column("events_received", format=count),
    Column("received_rate", "in", format=rate),
    Column("last_received_at", "last received", format=ago),
    Column("sent", "numbers sent", format=count),
    Column("confirmed", "numbers confirmed", format=count),
    Column("received", "numbers received", format=count),
    Column("filters_sent", format=count),
    Column("filters_received", format=count),
    Column("refused", "refused here", format=count),
    Column("gaps", format=count, style=lambda v: "bold red" if v else ""),
]


@command(app, "add", changes=True)
def add(
    session: Session,
    name: Name,
    conninfo: Conninfo,
    direction: Annotated[Direction, typer.Option(help="in: events come here only; out: they go there only.")] = (
        Direction.BOTH
    ),
    role: Annotated[
        str | None,
        typer.Option(help="With whose rights the other broker receives and publishes here. Default: pgps_neighbour."),
    ] = None,
) -> None:
    """Link this broker to another; a worker of this one connects and serves both ways.

    Prefer passfile= or service= to a password: the string is stored.

    Example: pgps link add hospital "host=db.example dbname=hospital user=home_link" --role hospital
    """
    masked = mask(conninfo)
    arguments = {"direction": direction.value if direction is not Direction.BOTH else None, "role": role}
    session.change(
        [_statements.call("create_link", name=name, conninfo=conninfo, **arguments)],
        shown=[_statements.call("create_link", name=name, conninfo=masked, **arguments)],
        done=f'link "{name}" defined; a running worker connects it: pgps link show {argument(name)}',
    )
    if masked != conninfo:
        session.out.say("warning: the password is stored in this database; passfile= or service= keeps it out")


def mask(conninfo: str) -> str:
    """Return a connection string with its secrets covered, unchanged when it has none; raises WrongUsage."""
    try:
        given = conninfo_to_dict(conninfo)
    except psycopg.Error:
        # libpq's own message repeats parts of the string.
        raise WrongUsage("CONNINFO is no libpq connection string: 'host=… dbname=… user=… passfile=…'.") from None
    secrets = {key: _MASK for key in _SECRETS if given.get(key)}
    return make_conninfo(conninfo, **secrets) if secrets else conninfo


@command(app, "ls")
def ls(session: Session) -> None:
    """List the links: those defined here, and those of brokers that connect from the other side."""
    session.out.rows(COLUMNS, session.rows(_catalogue.links()), nothing="no links: pgps link add LINK CONNINFO")


@command(app, "show")
def show(session: Session, name: Name) -> None:
    """Show one link: state, last error and what to do, how far behind, how much has crossed."""
    row = dict(session.named(_catalogue.links(name), "link", name, hint="pgps link ls"))
    row |= next(each for each in session.rows(_catalogue.link_details()) if _same(each, row))
    if session.out.json:
        session.out.record(row)
        return
    session.out.record(row, columns=DETAILS)
    for advice in remedies(row):
        session.out.say(f"hint: {session.typed(advice)}")


def _same(one: Row, other: Row) -> bool:
    return (one["name"], one["neighbour"]) == (other["name"], other["neighbour"])


def remedies(row: Row) -> list[str]:
    """Return what to type or do for a link in this state."""
    name = argument(row["name"])
    if row["state"] == "paused":
        return [f"pgps link resume {name}"]
    if row["state"] == "waiting" and not row["defined_here"]:
        return [f'the worker of broker "{row["neighbour"]}" connects it: look there']
    if row["state"] == "waiting":
        return [*([row["hint"]] if row["hint"] else []), f"when that is mended: pgps link resume {name}"]
    if row["state"] == "defined":
        return ["pgps-worker --dsn DSN"]
    return [row["hint"]] if row["hint"] else []


@command(app, "pause", changes=True)
def pause(session: Session, name: Name) -> None:
    """Disconnect a link; what should cross waits, and is kept."""
    session.change([_statements.call("alter_link", name=name, enabled=False)], done=f'link "{name}" paused')


@command(app, "resume", changes=True)
def resume(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="[LINK]", help="Name of a paused link.")] = None,
    life: Annotated[
        Life | None,
        typer.Option(
            "--as",
            help="Of this broker, after a restore or copy of its database. restored: the original is gone; "
            "clone: it lives on, and this is another broker.",
        ),
    ] = None,
) -> None:
    """Connect a paused link again, or try one that waits at once; or all links of a broker that was restored or cloned.

    Example: pgps link resume --as restored
    """
    if (name is None) == (life is None):
        raise WrongUsage("Say either which LINK, or --as restored or --as clone for all links of this broker.")
    if life is not None:
        text = "in a new epoch" if life is Life.RESTORED else "as a broker of its own"
        done = f"links of this broker go on {text}"
        session.change([_statements.call("resume_links", **{'"as"': life.value})], done=done)
    else:
        session.change([_statements.call("alter_link", name=name, enabled=True)], done=f'link "{name}" resumed')


@command(app, "rm", changes=True)
def rm(
    session: Session,
    name: Name,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="At once, on this side only; what waits for the neighbour is lost to it.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is gone.")] = True,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="Wait no longer, in seconds; it goes on.")] = None,
    yes: Yes = False,
) -> None:
    """Drop a link on both sides, when what is under way has been delivered; what has another way takes it.

    A neighbour that connects from the other side is dropped by its own name.
    Ctrl-C ends the waiting, not the dropping.
    """
    question = f'Drop link "{name}"' + (" and what waits for the neighbour?" if cascade else "?")
    session.confirm(question, yes=yes)
    statement = _statements.call("drop_link", name=name, cascade=cascade or None)
    patience = (math.inf if timeout is None else timeout) if wait and not session.options.dry_run else 0.0
    session.change([statement], done=lambda _: _dropped(session, name, patience))
    if wait and timeout is not None and not session.options.dry_run and session.rows(_catalogue.links(name)):
        raise typer.Exit(1)


def _dropped(session: Session, name: str, patience: float) -> str:
    """Wait while a link is being drained, and return what has become of it."""
    began = time.monotonic()
    with _bar(session, name) as show:
        while rows := session.rows(_catalogue.links(name)):
            show(rows[0])
            if session.options.dry_run or time.monotonic() - began >= patience:
                return f'link "{name}" is being drained: pgps link show {argument(name)}'
            time.sleep(_LOOK)
    return f'link "{name}" dropped'


@contextlib.contextmanager
def _bar(session: Session, name: str) -> Iterator[Callable[[Row], None]]:
    """Give a function that shows how far a link is drained: on a terminal with a bar, else only what is in the way."""
    console, told = session.out.stderr, set[str]()
    with Progress(
        SpinnerColumn(),
        TextColumn("draining {task.description}"),
        BarColumn(),
        TextColumn("{task.fields[left]} events to send"),
        console=console,
        transient=True,
        disable=session.out.json or not console.is_terminal,
    ) as progress:
        task = progress.add_task(name, total=None, left="0")

        def show(row: Row) -> None:
            left = row["lag_events"]
            most = max(left, int(progress.tasks[0].total or 0), 1)
            progress.update(task, total=most, completed=most - left, left=count(left))
            if row["hint"] and row["hint"] not in told:
                told.add(row["hint"])
                session.out.say(f"hint: {row['hint']}")

        yield show


@command(app, "resync", changes=True)
def resync(session: Session, name: Name) -> None:
    """Tell the neighbour everything anew, and compare event types with it again; no event is lost or repeated."""
    session.change([_statements.call("resync_link", name=name)], done=f'link "{name}" is told everything anew')
