"""The graph of a composite event as text, as a Mermaid flowchart and as SVG, with what is open and detected."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, NamedTuple

from rich.text import Text
from rich.tree import Tree

from pgps.cli._format import count, plain

__all__: list[str] = []

Row = dict[str, Any]

_LETTER = 7.2  # the width of a letter of 12 pixels in a monospaced font
_LINE = 16
_GAP = 28
_STEP = 96
_MARGIN = 20
_TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#546e7a"/></marker>'
)


class Node(NamedTuple):
    """Hold a node of the graph: what it says in lines, and which nodes it is made of."""

    name: str
    lines: list[str]
    parts: list[str]


class Box(NamedTuple):
    """Hold where a node is drawn."""

    left: float
    top: float
    width: float
    height: float


def graph_of(event: Row, nodes: Iterable[Row]) -> list[Node]:
    """Return the nodes, the whole expression first, each with its counts."""
    found = []
    for place, row in enumerate(nodes):
        lines = [plain(row["expression"])]
        if place == 0:
            lines = [f"{plain(event['name'])}: {count(event['detected'])} detected", *lines]
        if not row["parts"] and row["brokers"]:
            lines.append(f"at {', '.join(map(plain, row['brokers']))}")
        if row["parts"]:
            lines.append(f"{count(row['open'])} open")
        found.append(Node(row["node"], lines, list(row["parts"])))
    return found


def as_tree(nodes: list[Node]) -> Tree:
    """Return a tree; a node that is a part of several stands below each."""
    by_name = {node.name: node for node in nodes}
    tree = Tree(Text(" \u00b7 ".join(nodes[0].lines)))
    waiting = [(tree, nodes[0])]
    while waiting:
        branch, node = waiting.pop()
        parts = [by_name[part] for part in node.parts]
        waiting += [(branch.add(Text(" \u00b7 ".join(part.lines))), part) for part in parts]
    return tree


def as_mermaid(nodes: list[Node]) -> str:
    """Return a Mermaid flowchart; its ids are numbers of its own, texts stand in quotes."""
    numbers = {node.name: f"n{number}" for number, node in enumerate(nodes)}
    lines = ["flowchart BT"]
    lines += [f'    {numbers[node.name]}["{"<br/>".join(map(_entity, node.lines))}"]' for node in nodes]
    lines += [f"    {numbers[part]} --> {numbers[node.name]}" for node in nodes for part in node.parts]
    return "\n".join(lines)


def _entity(text: str) -> str:
    """Return a text as Mermaid takes it between quotes: what could mean something is a character's number."""
    return "".join(c if c.isalnum() or c in " _-.,:" else f"#{ord(c)};" for c in text)


def as_svg(nodes: list[Node], title: str) -> str:
    """Return a drawing: the whole expression at the top, leaves at the bottom, each node once."""
    boxes = _place(nodes)
    width = max(box.left + box.width for box in boxes.values()) + _MARGIN
    height = max(box.top + box.height for box in boxes.values()) + _MARGIN
    style = f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="12"'
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" {style}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        f"<defs>{_TIP}</defs>",
    ]
    drawn += [_arrow(boxes[part], boxes[node.name]) for node in nodes for part in node.parts]
    for place, node in enumerate(nodes):
        drawn += _draw(node, boxes[node.name], fill="#bbdefb" if place == 0 else "#eceff1" if node.parts else "#fff8e1")
    return "\n".join([*drawn, "</svg>", ""])


def _arrow(below: Box, above: Box) -> str:
    return (
        f'<line x1="{below.left + below.width / 2:.1f}" y1="{below.top:.1f}" '
        f'x2="{above.left + above.width / 2:.1f}" y2="{above.top + above.height:.1f}" '
        'stroke="#546e7a" marker-end="url(#tip)"/>'
    )


def _draw(node: Node, box: Box, fill: str) -> Iterable[str]:
    yield (
        f'<rect x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6" '
        f'fill="{fill}" stroke="#37474f"/>'
    )
    for number, line in enumerate(node.lines):
        yield (
            f'<text x="{box.left + box.width / 2:.1f}" y="{box.top + 20 + _LINE * number:.1f}" '
            f'text-anchor="middle">{escape(line)}</text>'
        )


def _place(nodes: list[Node]) -> dict[str, Box]:
    """Put each node into the row below all that it is a part of, and each row into the middle."""
    levels = {node.name: 0 for node in nodes}
    for node in nodes:  # what a node is a part of comes before it
        for part in node.parts:
            levels[part] = max(levels[part], levels[node.name] + 1)
    rows: dict[int, list[Node]] = {}
    for node in nodes:
        rows.setdefault(levels[node.name], []).append(node)
    sizes = {node.name: (max(map(len, node.lines)) * _LETTER + 24, _LINE * len(node.lines) + 16.0) for node in nodes}
    widths = {level: sum(sizes[n.name][0] for n in row) + _GAP * (len(row) - 1) for level, row in rows.items()}
    boxes: dict[str, Box] = {}
    for level, row in rows.items():
        left = _MARGIN + (max(widths.values()) - widths[level]) / 2
        # Parts stand in the order in which the expression has them.
        for node in sorted(row, key=lambda n: _order(n, nodes)):
            width, height = sizes[node.name]
            boxes[node.name] = Box(left, _MARGIN + _STEP * level, width, height)
            left += width + _GAP
    return boxes


def _order(node: Node, nodes: list[Node]) -> tuple[int, int]:
    """Return the place of a node among the parts of the first node that it is a part of."""
    for number, other in enumerate(nodes):
        if node.name in other.parts:
            return number, other.parts.index(node.name)
    return -1, 0
