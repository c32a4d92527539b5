"""`pgps event`: composite events, their graphs, and files of their definitions."""

from __future__ import annotations

import json as jsons
from pathlib import Path
from typing import Annotated, Any

import typer
from psycopg.sql import SQL, Composed, Literal

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, command, group
from pgps.cli._errors import WrongUsage
from pgps.cli._event_graph import as_mermaid, as_svg, as_tree, graph_of
from pgps.cli._format import count
from pgps.cli._output import Column

__all__ = ["app"]

app = group("Composite events: patterns of other events.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the composite event.")]

COLUMNS = [
    Column("name"),
    Column("expression"),
    Column("context"),
    Column("state"),
    Column("lag", format=count, right=True),
    Column("open", format=count, right=True),
    Column("keys", format=count, right=True),
    Column("detected", format=count, right=True),
]
DETAILS = [
    *COLUMNS,
    Column("partition_by"),
    Column("within"),
    Column("filter"),
    Column("attributes"),
    Column("scope"),
    Column("time_basis"),
    Column("lateness"),
    Column("max_open"),
    Column("late", format=count),
    Column("given_up", format=count),
    Column("owner"),
    Column("last_error"),
    Column("created_at", "created"),
]
NODES = [
    Column("expression"),
    Column("brokers", format=lambda brokers: ", ".join(brokers or [])),
    Column("open", format=count, right=True),
]
GIVEN = (
    "name", "expression", "context", "partition_by", "within", "filter", "attributes", "scope", "time_basis",
    "lateness", "max_open", "start", "reliability", "persistent", "auditable", "handler",
)  # fmt: skip

# What a composite event keeps of the session that creates it.
_SETTINGS = """
    select current_setting('search_path') as search_path, current_setting('timezone') as timezone,
           current_setting('datestyle') as datestyle, current_setting('intervalstyle') as intervalstyle
"""


@command(app, "ls")
def ls(session: Session) -> None:
    """List the composite events you may subscribe to."""
    session.out.rows(COLUMNS, session.rows(_catalogue.composite_events()), nothing="no composite events")


@command(app, "show")
def show(session: Session, name: Name) -> None:
    """Show one composite event: its definition, its counts, and what is open in each part of it."""
    row = found(session, name)
    nodes = session.rows(_catalogue.composite_nodes(name))
    if session.out.json:
        session.out.record(row | {"nodes": nodes})
        return
    session.out.record(row, columns=DETAILS)
    session.out.heading("nodes")
    session.out.table(NODES, nodes)


@command(app, "draw")
def draw(
    session: Session,
    name: Name,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="A Mermaid flowchart on stdout.")] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it into a file.")] = None,
) -> None:
    """Draw the event graph of a composite event, with what is open in each node and where leaves come from."""
    if session.out.json + mermaid + (svg is not None) > 1:
        raise WrongUsage("Choose one of --json, --mermaid and --svg.")
    row = found(session, name)
    nodes = session.rows(_catalogue.composite_nodes(name))
    drawn = graph_of(row, nodes)
    if session.out.json:
        session.out.record({"name": row["name"], "nodes": nodes})
    elif mermaid:
        session.out.line(as_mermaid(drawn))
    elif svg is not None:
        svg.write_text(as_svg(drawn, f"composite event {row['name']}"), encoding="utf-8")
        session.told(f"{len(drawn)} nodes drawn into {svg}")
    else:
        session.out.stdout.print(as_tree(drawn))


@command(app, "pause", changes=True)
def pause(session: Session, name: Name) -> None:
    """Stop detecting; events wait, and nothing is lost."""
    call = _statements.call("alter_composite_event", name=name, enabled=False)
    session.change([call], done=f'composite event "{name}" is paused')


@command(app, "resume", changes=True)
def resume(session: Session, name: Name) -> None:
    """Go on detecting where it was stopped."""
    call = _statements.call("alter_composite_event", name=name, enabled=True)
    session.change([call], done=f'composite event "{name}" goes on')


@command(app, "export")
def export(
    session: Session,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Composite events; all.")] = None,
) -> None:
    """Write definitions of composite events, and the sources that they may name, as JSON on stdout."""
    # What is detected for neighbours is asked for by them.
    every = [row for row in session.rows(_catalogue.composite_events()) if not row["name"].startswith("pgps_part_")]
    chosen = [found(session, name) for name in names] if names else every
    definitions = {
        "sources": session.rows(_catalogue.event_sources()),
        "composite_events": [
            {key: row[key] for key in GIVEN if row[key] is not None} | {"settings": jsons.loads(row["settings"])}
            for row in chosen
        ],
    }
    session.out.line(jsons.dumps(definitions, indent=2, ensure_ascii=False))


@command(app, "import", changes=True)
def import_(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that pgps event export has written.")],
    replace: Annotated[bool, typer.Option("--replace", help="Drop and create again what exists.")] = False,
) -> None:
    """Create the sources and composite events of a file, in its order; what exists is left as it is."""
    given = definitions_in(file)
    calls = []
    sources = {row["name"] for row in session.rows(_catalogue.event_sources())}
    calls += [_statements.call("create_source", **one) for one in given["sources"] if one["name"] not in sources]
    known = {row["name"] for row in session.rows(_catalogue.composite_events())}
    own = session.one(_SETTINGS)
    for one in given["composite_events"]:
        name = quoted(one["name"])
        if one["name"] in known and not replace:
            continue
        if one["name"] in known:
            calls.append(_statements.call("drop_event_type", name=name, cascade=True))
        # It keeps the settings that it was created with, and its clock their time zone.
        settings = one.pop("settings", {})
        calls += [_set_locally(key, settings.get(key, value)) for key, value in own.items()]
        calls.append(_statements.call("create_composite_event", **(one | {"name": name})))
    if not calls:
        session.told("nothing to create: all of it is there")
        return
    session.change(calls, done=f"{len(calls)} definitions of {file} taken over")


def _set_locally(name: str, value: str) -> Composed:
    return SQL("select set_config({}, {}, true)").format(Literal(name), Literal(str(value)))


def found(session: Session, name: str) -> dict[str, Any]:
    """Return one composite event."""
    return session.named(_catalogue.composite_events(name), "composite event", name, hint="pgps event ls")


def quoted(name: str) -> str:
    """Return a name of the catalogue as functions take it, which fold what is not quoted."""
    return '"' + name.replace('"', '""') + '"'


def definitions_in(file: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what is in a file; raises WrongUsage when it is none of definitions."""
    try:
        given = jsons.loads(file.read_text(encoding="utf-8"))
        return {
            "sources": [dict(one) for one in given.get("sources", [])],
            "composite_events": [
                {key: one[key] for key in GIVEN if key in one} | {"settings": dict(one.get("settings", {}))}
                for one in given["composite_events"]
                if one["name"]
            ],
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WrongUsage(f'"{file}" is no file of definitions ({error}); pgps event export writes one.') from None
