"""`pgps spool`: spools, what is in them, who is in their groups; replay and discard."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer
from psycopg.sql import Composed

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, Yes, command, group
from pgps.cli._format import ago, count, counted
from pgps.cli._output import Column

__all__ = ["app"]

app = group("Spools: messages for process groups that may be away.")

Name = Annotated[str, typer.Argument(metavar="SPOOL", help="Name of the spool.")]


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Which messages are meant, as options of a command; those that are not given do not count."""

    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="NAME=LOW..HIGH", help="Bounds of a numeric key; may be given often."),
    ] = None
    seqn: Annotated[str | None, typer.Option("--seqn", metavar="RANGE", help="Numbers, such as [10,20].")] = None
    spooled_at: Annotated[
        str | None,
        typer.Option("--spooled-at", metavar="RANGE", help="When they were spooled: [2026-01-31,2026-02-01)."),
    ] = None
    spooled_ago: Annotated[
        str | None,
        typer.Option("--spooled-ago", metavar="LONGER..SHORTER", help="How long ago, such as '2 hours..10 minutes'."),
    ] = None
    sender: Annotated[str | None, typer.Option("--sender", help="Role that sent the messages.")] = None
    spooler: Annotated[str | None, typer.Option("--spooler", help="Role that spooled them.")] = None
    keyword: Annotated[
        list[str] | None, typer.Option("--keyword", metavar="WORD", help="Exactly these keywords, in this order.")
    ] = None

    def call(self, function: str, spool: str) -> Composed:
        """Return the call of a function about the messages of a spool that match."""
        return _statements.of_pattern(
            function,
            spool,
            bounds(self.key),
            seqn=self.seqn,
            spooled_at=self.spooled_at,
            spooled_ago=period(self.spooled_ago),
            sender=self.sender,
            spooler=self.spooler,
            keywords=self.keyword,
        )


def takes_pattern(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command take the options of a pattern in place of its argument `pattern`."""
    names = [field.name for field in fields(Pattern)]

    @wraps(function)
    def called(session: Session, **given: Any) -> None:
        pattern = Pattern(**{name: given.pop(name) for name in names})
        function(session, pattern=pattern, **given)

    hints = get_type_hints(Pattern, include_extras=True)
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hints[name]) for name in names
    ]
    own = inspect.signature(function, eval_str=True).parameters.values()
    taken = [[one.replace(kind=inspect.Parameter.KEYWORD_ONLY)] if one.name != "pattern" else options for one in own]
    called.__signature__ = inspect.Signature([one for part in taken for one in part])  # type: ignore[attr-defined]
    return called


COLUMNS = [
    Column("name"),
    Column("operational"),
    Column("members", right=True),
    Column("first_seqn", "first", right=True),
    Column("last_seqn", "last", right=True),
    Column("checkpoint_pointer", "checkpoint", right=True),
    Column("replay_pointer", "pointer", right=True),
    Column("replayable", format=count, right=True),
    Column("new", format=count, right=True),
    Column("bytes", format=count, right=True),
]
DETAILS = [
    *COLUMNS,
    Column("discarded", format=count),
    Column("play_through"),
    Column("persistent"),
    Column("max_messages", format=count),
    Column("max_bytes", format=count),
    Column("retention"),
    Column("on_limit"),
    Column("owner"),
    Column("channel"),
    Column("created_at", "created"),
]
MEMBERS = [
    Column("member"),
    Column("owner"),
    Column("present"),
    Column("ready"),
    Column("phase"),
    Column("acked_seqn", "acked", right=True),
    Column("joined_at", "joined", format=ago),
]
MESSAGES = [
    Column("seqn", right=True),
    Column("entry", right=True),
    Column("message"),
    Column("keys"),
    Column("keywords", format=lambda words: " ".join(words or [])),
    Column("sender"),
    Column("spooled_at", "spooled", format=ago),
    Column("replayed"),
]


@command(app, "ls")
def ls(session: Session) -> None:
    """List the spools you may use."""
    session.out.rows(COLUMNS, session.rows(_catalogue.spools()), nothing="no spools")


@command(app, "show")
def show(
    session: Session,
    name: Name,
    messages: Annotated[int, typer.Option("--messages", "-n", help="How many messages to show, the newest.")] = 10,
) -> None:
    """Show one spool: its pointers and limits, the members of its group, and its newest messages."""
    row = session.named(_catalogue.spools(name), "spool", name, hint="pgps spool ls")
    members = session.rows(_catalogue.group_members(name))
    newest = session.rows(_catalogue.spooled_messages(name, messages))
    if session.out.json:
        session.out.record(row | {"group": members, "messages": newest})
        return
    session.out.record(row, columns=DETAILS)
    for heading, columns, rows in (("members", MEMBERS, members), ("messages", MESSAGES, newest)):
        if rows:
            session.out.heading(heading)
            session.out.table(columns, rows)


@command(app, "replay", changes=True)
@takes_pattern
def replay(session: Session, name: Name, pattern: Pattern) -> None:
    """Hand what has been processed, and matches, to every member present once more."""
    members = sum(row["members"] for row in session.rows(_catalogue.spools(name)))
    session.change(
        [pattern.call("spool_replay", name)],
        done=lambda found: f'spool "{name}": {counted(found, "message")} to be replayed, members present: {members}',
    )


@command(app, "discard", changes=True)
@takes_pattern
def discard(session: Session, name: Name, pattern: Pattern, yes: Yes = False) -> None:
    """Discard what lies up to the replay pointer, and matches; without options all of it."""
    session.confirm(f'Discard what has been processed of spool "{name}"?', yes=yes)
    session.change(
        [pattern.call("spool_discard", name)],
        done=lambda found: f'spool "{name}": {counted(found, "message")} to be discarded at dispatch',
    )


@command(app, "watch")
def watch(
    session: Session,
    name: Name,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
    times: Annotated[int | None, typer.Option("--count", min=1, help="End after so many looks.")] = None,
) -> None:
    """Print a line about a spool whenever it has changed."""
    before = None
    looks = 0
    while times is None or looks < times:
        if looks:
            time.sleep(interval)
        row = session.named(_catalogue.spools(name), "spool", name, hint="pgps spool ls")
        if row != before and session.out.json:
            session.out.record(row)
        elif row != before:
            session.out.table(COLUMNS, [row], headed=before is None)
        before = row
        looks += 1


def number(text: str) -> float:
    """Return a number: a whole one with all its digits."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def period(ago: str | None) -> list[str | None] | None:
    """Return how long ago a period begins and ends, given as LONGER..SHORTER; either may be left out."""
    if ago is None:
        return None
    longer, is_range, shorter = (part.strip() for part in ago.partition(".."))
    if not is_range:
        raise typer.BadParameter(f"{ago!r}: give LONGER..SHORTER, such as '2 hours..10 minutes', or '2 hours..'")
    return [longer or None, shorter or None]


def bounds(keys: list[str] | None) -> dict[str, list[float | None]] | None:
    """Return bounds of numeric keys, given as NAME=LOW..HIGH; either may be left out."""
    found: dict[str, list[float | None]] = {}
    for key in keys or []:
        name, is_given, period = key.partition("=")
        low, is_range, high = period.partition("..")
        try:
            found[name] = [number(low) if low else None, number(high) if high else None]
        except ValueError:
            is_range = ""
        if not (is_given and is_range):
            raise typer.BadParameter(f"{key!r}: give NAME=LOW..HIGH, such as SP_ID=55.. for 55 and more")
    return found or None
