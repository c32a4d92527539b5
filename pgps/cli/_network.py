"""The network of brokers as one of them knows it: a graph made of its links and routes, as text, Mermaid and SVG."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from pgps.cli._format import count, duration, plain
from pgps.cli._session import Row
from pgps.errors import PgpsError

__all__ = ["Edge", "Network", "as_mermaid", "as_tree", "network", "write_svg"]

_STYLES = {"up": "green", "elsewhere": "green", "incomplete": "yellow", "blocked": "bold red", "waiting": "red"}
_COLOURS = {
    "up": "#2e7d32",
    "elsewhere": "#2e7d32",
    "incomplete": "#f9a825",
    "blocked": "#c62828",
    "waiting": "#c62828",
    "": "#9e9e9e",
}
_OTHER = "#ef6c00"


@dataclass(frozen=True, slots=True)
class Edge:
    """A link of this broker, or one between others that a path goes over: of that the state, "", is not known."""

    one: str
    other: str
    link: str = ""
    state: str = ""
    direction: str = "both"


@dataclass(slots=True)
class Network:
    """This broker, its links, the routes to each origin, and the graph that they make."""

    me: str
    links: list[Row]
    routes: list[Row]
    types: dict[str, list[str]] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    @property
    def brokers(self) -> dict[str, int]:
        """Every broker, with how many links it is away from this one."""
        distances, to_do = {self.me: 0}, deque([self.me])
        while to_do:
            here = to_do.popleft()
            for edge in self.edges:
                if here in (edge.one, edge.other):
                    there = edge.other if edge.one == here else edge.one
                    if there not in distances:
                        distances[there] = distances[here] + 1
                        to_do.append(there)
        return distances


def network(links: Sequence[Row], routes: Sequence[Row]) -> Network:
    """Return the graph of what `pgps.links` and `pgps.routes` say."""
    mine = next(row for row in routes if row["is_self"])
    made = Network(me=mine["origin"], links=list(links), routes=[row for row in routes if not row["is_self"]])
    made.types[made.me] = list(mine["event_types"])
    for row in made.routes:
        made.types[row["origin"]] = sorted({*made.types.get(row["origin"], []), *row["event_types"]})
    known: dict[frozenset[str], Edge] = {}
    for link in made.links:
        there = link["neighbour"] or f"? ({link['name']})"
        edge = Edge(made.me, there, link["name"], link["state"], link["direction"])
        known[frozenset((made.me, there))] = edge
    for row in made.routes:
        for one, other in itertools.pairwise([made.me, *row["path"]]):
            known.setdefault(frozenset((one, other)), Edge(one, other))
    made.edges = list(known.values())
    return made


# ---------------------------------------------------------------------------
# Text
# ---------------------------------------------------------------------------


def as_tree(drawn: Network) -> Tree:
    """Return a tree: this broker, its links, and below each the origins that are offered over it."""
    tree = Tree(_text(f"[bold]{_safe(drawn.me)}[/]{_advertised(drawn.types[drawn.me])}"))
    for link in drawn.links:
        branch = tree.add(_text(_link_line(link)))
        if link["last_error"]:
            branch.add(_text(f"[red]{_safe(link['last_error'].partition(chr(10))[0])}[/]"))
        if link["hint"]:
            branch.add(_text(f"[yellow]{_safe(link['hint'])}[/]"))
        for row in drawn.routes:
            if row["neighbour"] == link["neighbour"]:
                branch.add(_text(_route_line(row)))
    if not drawn.links:
        tree.add(Text("no links: pgps link add LINK CONNINFO", style="dim"))
    return tree


def _text(markup: str) -> Text:
    """Return styled text; the consoles of the command line take no markup."""
    return Text.from_markup(markup, emoji=False)


def _link_line(link: Row) -> str:
    arrow = {"both": "⇄", "in": "←", "out": "→"}[link["direction"]]
    state = f"[{_STYLES.get(link['state'], 'yellow')}]{_safe(link['state'])}[/]"
    lag = f", {count(link['lag_events'])} to send for {duration(link['lag_seconds'])}" if link["lag_events"] else ""
    return f"{arrow} [bold]{_safe(link['neighbour'] or '?')}[/] (link {_safe(link['name'])}, {state}{lag})"


def _route_line(row: Row) -> str:
    way = " > ".join(map(_safe, row["path"]))
    chosen = "" if row["is_parent"] else " [dim](not used)[/]"
    return f"{_safe(row['origin'])} by {way}, cost {row['cost']}{_advertised(row['event_types'])}{chosen}"


def _advertised(types: Iterable[str]) -> str:
    names = ", ".join(map(_safe, types))
    return f": {names}" if names else ""


def _safe(text: Any) -> str:
    return escape(plain(text))


# ---------------------------------------------------------------------------
# Mermaid
# ---------------------------------------------------------------------------


def as_mermaid(drawn: Network) -> str:
    """Return a Mermaid flowchart; its ids are numbers of its own, names stand in quotes."""
    numbers = {name: f"b{number}" for number, name in enumerate(drawn.brokers)}
    lines = ["flowchart LR"]
    for name, number in numbers.items():
        lines.append(f'    {number}["{"<br/>".join(map(_entity, [name, *drawn.types.get(name, [])]))}"]')
    for place, edge in enumerate(drawn.edges):
        label = f'|"{_entity(edge.link)}: {_entity(edge.state)}"|' if edge.link else ""
        arrow = {"both": "<-->", "in": "-->", "out": "-->"}[edge.direction] if edge.link else "-.-"
        ends = (edge.other, edge.one) if edge.direction == "in" else (edge.one, edge.other)
        lines.append(f"    {numbers[ends[0]]} {arrow}{label} {numbers[ends[1]]}")
        lines.append(f"    linkStyle {place} stroke:{_COLOURS.get(edge.state, _OTHER)}")
    lines.append("    style b0 stroke-width:3px")
    return "\n".join(lines)


def _entity(text: str) -> str:
    """Return a text as Mermaid takes it between quotes: what could mean something is a character's number."""
    return "".join(c if c.isalnum() or c in " _-.,:()?" else f"#{ord(c)};" for c in plain(text))


# ---------------------------------------------------------------------------
# SVG
# ---------------------------------------------------------------------------


def write_svg(drawn: Network, path: Path) -> None:
    """Draw the network from left to right by distance; needs the extra `topology`."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an optional extra, and slow to import
        import networkx as nx  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise PgpsError(f"an SVG needs {error.name}", hint="pip install 'pgps[topology]', or --mermaid") from error
    graph = nx.Graph()
    for name, distance in drawn.brokers.items():
        graph.add_node(name, distance=distance)
    graph.add_edges_from((edge.one, edge.other) for edge in drawn.edges)
    places = nx.multipartite_layout(graph, subset_key="distance")
    widest = max(list(drawn.brokers.values()).count(distance) for distance in drawn.brokers.values())
    figure = Figure(figsize=(3.0 * (max(drawn.brokers.values()) + 1), 1.6 * widest + 1.0), layout="tight")
    axes = figure.add_subplot()
    axes.set_axis_off()
    # Texts and arrows do not widen the axes by themselves.
    for bounds, axis in ((axes.set_xlim, 0), (axes.set_ylim, 1)):
        values = [float(place[axis]) for place in places.values()]
        room = 0.3 * (max(values) - min(values)) or 1.0
        bounds(min(values) - room, max(values) + room)
    for edge in drawn.edges:
        _draw_edge(axes, places, edge)
    for name, place in places.items():
        text = "\n".join(_literal(each) for each in [name, *drawn.types.get(name, [])])
        box = {
            "boxstyle": "round,pad=0.5",
            "facecolor": "#e3f2fd" if name == drawn.me else "white",
            "edgecolor": "#37474f",
        }
        axes.text(place[0], place[1], text, ha="center", va="center", fontsize=10, bbox=box, zorder=2)
    # Texts as text; without a date and with fixed ids the same network is the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pgps"}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Title": f"Brokers as {plain(drawn.me)} knows them"})


def _draw_edge(axes: Any, places: Any, edge: Edge) -> None:
    start, end = places[edge.one], places[edge.other]
    # Brokers of the same distance stand above each other: a straight line would run through those between.
    bend = 0.3 if abs(start[0] - end[0]) < 1e-9 else 0.0
    style = {"both": "<|-|>", "in": "<|-", "out": "-|>"}[edge.direction] if edge.link else "-"
    arrow = {
        "arrowstyle": style,
        "connectionstyle": f"arc3,rad={bend}",
        "color": _COLOURS.get(edge.state, _OTHER),
        "linestyle": "-" if edge.link else ":",
        "shrinkA": 30,
        "shrinkB": 30,
    }
    axes.annotate("", xy=end, xytext=start, arrowprops=arrow, zorder=1)
    if edge.link:
        middle = (start + end) / 2
        text = _literal(f"{edge.link}: {edge.state}")
        axes.annotate(text, middle, xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8, zorder=3)


def _literal(text: str) -> str:
    """Return a text in which a dollar sign is one, and does not begin a formula."""
    return plain(text).replace("$", r"\$")
