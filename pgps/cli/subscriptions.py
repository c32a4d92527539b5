"""`pgps sub`: subscriptions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, Yes, command, group
from pgps.cli._format import ago, argument, clip, count, duration, rate
from pgps.cli._output import Column

__all__ = ["COLUMNS", "DETAILS", "Name", "app", "show_subscription"]

app = group("Subscriptions: which events go where.")

Name = Annotated[str, typer.Argument(metavar="SUB", help="Name of the subscription.")]


class Scope(StrEnum):
    """From where events are wanted."""

    LOCAL = "local"
    GLOBAL = "global"


class State(StrEnum):
    """Whether a subscription is served."""

    ACTIVE = "active"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    SLOW = "slow"


def state_style(state: Any) -> str:
    """Return the colour of a state."""
    return {"suspended": "bold red", "paused": "yellow", "slow": "yellow"}.get(state, "")


COLUMNS = [
    Column("name"),
    Column("event_type", "type"),
    Column("filter", format=clip),
    Column("execute", "runs", format=lambda v: v or "(receive)"),
    Column("state", style=state_style),
    Column("depth", format=count, right=True),
    Column("lag_seconds", "lag", format=duration, right=True),
    Column("failed", format=count, right=True, style=lambda v: "red" if v else ""),
    Column("owner"),
]

DETAILS = [
    Column("name"),
    Column("subscription_id", "id"),
    Column("owner"),
    Column("event_type"),
    Column("filter"),
    Column("scope"),
    Column("kind"),
    Column("execute", "runs"),
    Column("priority"),
    Column("handler"),
    Column("state", style=state_style),
    Column("channel"),
    Column("max_attempts"),
    Column("depth", format=count),
    Column("oldest", format=ago),
    Column("lag_events", format=count),
    Column("lag_seconds", "lag", format=duration),
    Column("rate", format=rate),
    Column("attempts", format=count),
    Column("retrying", format=count),
    Column("failed", format=count),
    Column("last_error", style=lambda v: "red" if v else ""),
    Column("created_at", "created"),
]


@command(app, "ls")
def ls(
    session: Session,
    event_type: Annotated[str | None, typer.Option("--type", "-t", metavar="TYPE", help="On one type.")] = None,
    state: Annotated[State | None, typer.Option(help="In one state.")] = None,
) -> None:
    """List the subscriptions you may see."""
    query = _catalogue.subscriptions(event_type=event_type, state=state.value if state else None)
    session.out.rows(COLUMNS, session.rows(query), nothing="no subscriptions")


@command(app, "show")
def show(session: Session, name: Name) -> None:
    """Show one subscription with its counters."""
    show_subscription(session, name)


def show_subscription(session: Session, name: str) -> None:
    """Write everything about one subscription."""
    row = session.named(_catalogue.subscriptions(name), "subscription", name, hint="pgps sub ls")
    session.out.record(row, columns=DETAILS)
    if row["state"] != "active":
        session.out.say(f"hint: pgps sub resume {argument(row['name'])}")
    if row["failed"]:
        session.out.say(f"hint: pgps exceptions ls --sub {argument(row['name'])}")


@command(app, "create", changes=True)
def create(
    session: Session,
    name: Name,
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="A type, or a prefix and *: 'security*'.")],
    where: Annotated[
        str | None, typer.Option("--where", "-w", metavar="PREDICATE", help="SQL over the attributes and your tables.")
    ] = None,
    scope: Annotated[Scope, typer.Option(help="From this broker, or from all.")] = Scope.LOCAL,
    execute: Annotated[
        str | None,
        typer.Option("--execute", "-x", metavar="FUNCTION", help="Function to run for each event or batch."),
    ] = None,
    priority: Annotated[int, typer.Option(help="Higher runs first.")] = 0,
    start: Annotated[str | None, typer.Option(help="now, earliest, or an event id.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, help="Then to the exception queue.")] = None,
    handler: Annotated[str | None, typer.Option(help="all: each reader gets every event; any: one of them.")] = None,
) -> None:
    """Subscribe. Without --execute, events wait to be received: pgps listen SUB.

    Example: pgps sub create cheap quote --where "symbol = 'IBM' and price < 80"
    """
    statement = _statements.call(
        "subscribe",
        name=name,
        event_type=event_type,
        filter=where,
        scope=scope.value if scope is not Scope.LOCAL else None,
        execute=execute,
        priority=priority or None,
        start=start,
        max_attempts=max_attempts,
        handler=handler,
    )
    session.change([statement], done=f'subscription "{name}" created')


@command(app, "rm", changes=True)
def rm(session: Session, name: Name, yes: Yes = False) -> None:
    """Unsubscribe; what was not consumed yet is lost to this subscription."""
    session.confirm(f'Remove subscription "{name}" and what waits for it?', yes=yes)
    session.change([_statements.call("unsubscribe", name=name)], done=f'subscription "{name}" removed')


@command(app, "pause", changes=True)
def pause(session: Session, name: Name) -> None:
    """Stop serving it; events keep collecting."""
    session.change([_statements.call("pause", name=name)], done=f'subscription "{name}" paused')


@command(app, "resume", changes=True)
def resume(session: Session, name: Name) -> None:
    """Serve it again, after a pause or a suspension."""
    session.change([_statements.call("resume", name=name)], done=f'subscription "{name}" resumed')


@command(app, "seek", changes=True)
def seek(
    session: Session,
    name: Name,
    start: Annotated[str, typer.Argument(help="now, earliest, or an event id.")],
) -> None:
    """Move its position: forward to skip, backward to receive again."""
    session.change([_statements.call("seek", name=name, start=start)], done=f'subscription "{name}" moved to {start}')


@command(app, "explain")
def explain(
    session: Session,
    name: Name,
    event_id: Annotated[int, typer.Argument(help="Which event.")],
) -> None:
    """Tell why an event did, or did not, reach a subscription."""
    rows = session.rows(_catalogue.explain(name, event_id))
    session.out.rows([Column("step"), Column("outcome")], rows, nothing="nothing is known of that event")
