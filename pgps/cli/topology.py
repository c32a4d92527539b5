"""`pgps topology`: the network of brokers as this one knows it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pgps import _catalogue
from pgps.cli._command import Session, command
from pgps.cli._errors import WrongUsage
from pgps.cli._network import as_mermaid, as_tree, network, write_svg
from pgps.errors import NotPermitted

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "topology")(topology)


def topology(
    session: Session,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="A Mermaid flowchart on stdout.")] = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it into a file; needs pip install 'pgps[topology]'.")
    ] = None,
) -> None:
    """Draw the brokers this one knows of: neighbours, links and their state, origins with paths, costs and types."""
    if session.out.json + mermaid + (svg is not None) > 1:
        raise WrongUsage("Choose one of --json, --mermaid and --svg.")
    if svg is not None and svg.suffix.lower() != ".svg":
        raise WrongUsage(f'--svg draws SVG, and "{svg}" is named as something else: give a name that ends in .svg.')
    routes, links = session.rows(_catalogue.routes()), session.rows(_catalogue.links())
    if not routes:
        raise NotPermitted("only administrators see the network", hint="Ask for: grant pgps_admin to you")
    drawn = network(links, routes)
    if session.out.json:
        mine = next(row for row in routes if row["is_self"])
        edges = [
            {"one": e.one, "other": e.other, "link": e.link or None, "state": e.state or None} for e in drawn.edges
        ]
        session.out.record({"broker": mine, "links": drawn.links, "routes": drawn.routes, "edges": edges})
    elif mermaid:
        session.out.line(as_mermaid(drawn))
    elif svg is not None:
        write_svg(drawn, svg)
        session.told(f"{len(drawn.brokers)} brokers drawn into {svg}")
    else:
        session.out.stdout.print(as_tree(drawn))
