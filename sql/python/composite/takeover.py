"""What is open of a composite event, under the names of its altered definition."""

import json
from typing import Any

from composite.described import define_from
from composite.graph import Node, build
from composite.queries import WRITE_OPENED, Queries

OPEN_NOW = """
select o.key, o.node, o.slot, o.serial, o.start_at::text as start_at, o.data::text as data
from pgps_internal.open_now o where o.state_id = any ($1::bigint[])"""


def take_over(db: Any, memory: dict[str, Any], job: dict[str, Any]) -> int:
    """Write what is open in one state into another, whose nodes have other names; return how many rows."""
    queries = Queries(db, memory)
    pairs: dict[str, list[tuple[Node, Node]]] = {}
    (before,) = build([define_from(job["before"])], job["intervals"])
    (after,) = build([define_from(job["after"])], job["intervals"])

    def walk(old: Node, new: Node) -> None:
        known = pairs.setdefault(old.name, [])
        if all(new is not other for _, other in known):
            known.append((old, new))
        for one, other in zip(old.children, new.children):
            walk(one, other)

    walk(root_of(before.nodes), root_of(after.nodes))
    rows = []
    for row in queries.rows(OPEN_NOW, [job["from"]]):
        for old, new in pairs.get(row["node"], ()):
            data = json.loads(row["data"])
            inner = inner_node(old, new, data[3])
            if row["slot"] == -1:
                inner = new
            data = renamed(data, inner)
            rows.append(
                (job["to"], row["key"], new.name, row["slot"], row["serial"], row["start_at"], json.dumps(data))
            )
    if rows:
        queries.rows(WRITE_OPENED, *(list(column) for column in zip(*rows)))
    return len(rows)


def root_of(nodes: list[Node]) -> Node:
    """Return the node of the whole expression."""
    return next(node for node in nodes if node.roots)


def inner_node(old: Node, new: Node, name: str) -> Node:
    """Return the operand of the altered node for that of the node before which has this name."""
    return next((other for one, other in zip(old.children, new.children) if one.name == name), new)


def renamed(data: list[Any], node: Node) -> list[Any]:
    """Return a dumped occurrence with the names of a node and of those below it."""
    if data[3] is None:
        return data
    if len(data) == 7:
        return [*data[:3], node.name, *data[4:]]
    groups = [[renamed(one, node.children[role]) for one in group] for role, group in enumerate(data[4])]
    return [*data[:3], node.name, groups]
