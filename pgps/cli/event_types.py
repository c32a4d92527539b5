"""`pgps type`: event types."""

from __future__ import annotations

import fnmatch
import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, Yes, command, group
from pgps.cli._errors import WrongUsage
from pgps.cli._format import ago, clip, count, plain, size, yes_no
from pgps.cli._output import Column
from pgps.cli._session import Row

__all__ = ["COLUMNS", "Name", "app", "show_type"]

app = group("Event types: their attributes, and who may publish and subscribe.")

Name = Annotated[str, typer.Argument(metavar="TYPE", help="Name of the event type.")]


class Visibility(StrEnum):
    """When an event is seen outside its transaction."""

    DEFERRED = "deferred"
    IMMEDIATE = "immediate"


class Reliability(StrEnum):
    """What is promised for an event."""

    GUARANTEED = "guaranteed"
    NON_GUARANTEED = "non-guaranteed"


class Privilege(StrEnum):
    """What a role may do with a type: INSERT and SELECT on its publish endpoint."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


def _attributes(value: Any) -> str:
    """Return the attributes as in CREATE TABLE."""
    return ", ".join(f"{a['name']} {a['type']}" for a in _loaded(value))


def _loaded(value: Any) -> list[dict[str, Any]]:
    return list(json.loads(value)) if isinstance(value, str) else list(value or [])


COLUMNS = [
    Column("name"),
    Column("attributes", format=lambda value: clip(_attributes(value))),
    Column("visibility"),
    Column("reliability"),
    Column("subscriptions", format=count, right=True),
    Column("published", format=count, right=True),
    Column("last_published_at", "last", format=ago),
    Column("owner"),
]

_DETAILS = [
    Column("name"),
    Column("owner"),
    Column("visibility"),
    Column("reliability"),
    Column("persistent", format=yes_no),
    Column("auditable", format=yes_no),
    Column("handler"),
    Column("can_publish", "you may publish", format=yes_no),
    Column("can_subscribe", "you may subscribe", format=yes_no),
    Column("published", format=count),
    Column("last_published_at", "last published"),
    Column("created_at", "created"),
]

_ATTRIBUTES = [
    Column("name", "attribute"),
    Column("type"),
    Column("not_null", format=lambda v: "not null" if v else ""),
    Column("default", format=plain),
]


@command(app, "ls")
def ls(
    session: Session,
    pattern: Annotated[str, typer.Argument(help="Which: a name, with * for anything.")] = "*",
) -> None:
    """List the event types you may see."""
    rows = [row for row in session.rows(_catalogue.event_types()) if fnmatch.fnmatchcase(row["name"], pattern)]
    session.out.rows(COLUMNS, rows, nothing="no event types")


@command(app, "show")
def show(session: Session, name: Name) -> None:
    """Show one event type: attributes, queues, advertisers, privileges, policies, subscriptions."""
    show_type(session, name)


def show_type(session: Session, name: str) -> None:
    """Write everything about one event type."""
    row = session.named(_catalogue.event_types(name), "event type", name, hint="pgps type ls")
    parts: dict[str, list[Row]] = {
        "queues": session.rows(_catalogue.queues(event_type=name)),
        "advertisements": session.rows(_catalogue.advertisements(name)),
        "privileges": session.rows(_catalogue.privileges(name)),
        "policies": session.rows(_catalogue.policies(name)),
        "subscriptions": session.rows(_catalogue.subscriptions(event_type=name)),
    }
    if session.out.json:
        # The type's own `subscriptions` is a count; here the list takes its place.
        session.out.record({**row, **parts})
        return
    session.out.record(row, columns=_DETAILS)
    attributes = [{"default": None, "not_null": False, **a} for a in _loaded(row["attributes"])]
    for heading, columns, rows in (
        ("Attributes", _ATTRIBUTES, attributes),
        ("Queues", _QUEUES, parts["queues"]),
        ("Advertised by", _ADVERTISEMENTS, parts["advertisements"]),
        ("Privileges", _PRIVILEGES, parts["privileges"]),
        ("Policies", _POLICIES, parts["policies"]),
        ("Subscriptions", _SUBSCRIPTIONS, parts["subscriptions"]),
    ):
        if rows:
            session.out.heading(heading)
            session.out.table(columns, rows)


_QUEUES = [
    Column("queue"),
    Column("depth", format=count, right=True),
    Column("oldest", format=ago),
    Column("size_bytes", "size", format=size, right=True),
    Column("auditable", format=yes_no),
    Column("retention"),
]
_ADVERTISEMENTS = [Column("role"), Column("advertised_at", "since", format=ago), Column("origin")]
_PRIVILEGES = [Column("role"), Column("publish", format=yes_no), Column("subscribe", format=yes_no)]
_POLICIES = [Column("name"), Column("role"), Column("using_expression", "using", format=clip)]
_SUBSCRIPTIONS = [
    Column("name"),
    Column("owner"),
    Column("filter", format=clip),
    Column("execute"),
    Column("state"),
    Column("depth", format=count, right=True),
]


@command(app, "create", changes=True)
def create(
    session: Session,
    name: Name,
    attributes: Annotated[str, typer.Argument(help="Columns as in CREATE TABLE.")],
    visibility: Annotated[Visibility, typer.Option(help="Default of its events.")] = Visibility.DEFERRED,
    reliability: Annotated[Reliability, typer.Option(help="Default of its events.")] = Reliability.GUARANTEED,
    persistent: Annotated[bool, typer.Option(help="Logged queues, which survive a crash.")] = True,
    auditable: Annotated[bool, typer.Option(help="Keep events in the queues after delivery.")] = False,
    handler: Annotated[str | None, typer.Option(help="Who gets an event: all, any or raiser.")] = None,
    advertise: Annotated[bool, typer.Option("--advertise", help="Advertise it at once.")] = False,
) -> None:
    """Create an event type.

    Example: pgps type create quote "symbol text not null, price numeric check (price > 0)" --advertise
    """
    made = _statements.call(
        "create_event_type",
        name=name,
        attributes=attributes,
        visibility=visibility.value if visibility is not Visibility.DEFERRED else None,
        reliability=reliability.value if reliability is not Reliability.GUARANTEED else None,
        persistent=None if persistent else False,
        auditable=auditable or None,
        handler=handler,
    )
    statements = [made, _statements.call("advertise", event_type=name)] if advertise else [made]
    session.change(statements, done=f'event type "{name}" created')


@command(app, "alter", changes=True)
def alter(
    session: Session,
    name: Name,
    add: Annotated[str | None, typer.Option(metavar="COLUMN", help="Add an attribute, as in CREATE TABLE.")] = None,
    drop: Annotated[str | None, typer.Option(metavar="NAME", help="Drop an attribute.")] = None,
) -> None:
    """Change an event type; events in its queues survive."""
    if add is None and drop is None:
        raise WrongUsage("Say what to change: --add or --drop.")
    statement = _statements.call("alter_event_type", name=name, add_attribute=add, drop_attribute=drop)
    session.change([statement], done=f'event type "{name}" changed')


@command(app, "drop", changes=True)
def drop(
    session: Session,
    name: Name,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="With its subscriptions, its rules and undelivered events.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Drop an event type; refused while it is in use, unless --cascade."""
    if cascade:
        session.confirm(f'Drop "{name}" with its subscriptions and undelivered events?', yes=yes)
    dropped = _statements.call("drop_event_type", name=name, cascade=cascade or None)
    session.change([dropped], done=f'event type "{name}" dropped')


Privileges = Annotated[list[Privilege], typer.Argument(help="publish, subscribe, or both.")]
Role = Annotated[str, typer.Option("--role", "-r", help="Which role; public is everybody.")]


@command(app, "grant", changes=True)
def grant(session: Session, name: Name, privileges: Privileges, role: Role) -> None:
    """Let a role publish or subscribe.

    Example: pgps type grant quote subscribe --role trader
    """
    statement = _statements.grant("grant", [p.value for p in privileges], name, role)
    session.change([statement], done=f'granted {_and(privileges)} on "{name}" to "{role}"')


@command(app, "revoke", changes=True)
def revoke(session: Session, name: Name, privileges: Privileges, role: Role) -> None:
    """Take back the right to publish or subscribe."""
    statement = _statements.grant("revoke", [p.value for p in privileges], name, role)
    session.change([statement], done=f'revoked {_and(privileges)} on "{name}" from "{role}"')


def _and(privileges: list[Privilege]) -> str:
    return " and ".join(p.value for p in privileges)
