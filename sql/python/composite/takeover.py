"""What is open of a composite event, under the names of its altered definition."""

import json
from typing import Any

from composite.described import define_from
from composite.graph import Node, build
from composite.keys import read_ranges, write_ranges
from composite.queries import WRITE_KEYS, WRITE_OPENED, Queries

OPEN_NOW = """
select o.key, o.node, o.slot, o.serial, o.start_at::text as start_at, o.data::text as data
from pgps_internal.open_now o where o.state_id = any ($1::bigint[])"""

KEYS_NOW = """
select k.key, k.version, k.serial, k.clock::text as clock, k.ticked, k.due, k.live::text as live
from pgps_internal.key_now k where k.state_id = any ($1::bigint[])"""


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
    kept = {row["key"]: row for row in queries.rows(KEYS_NOW, [job["from"]])}
    rows = []
    for row in queries.rows(OPEN_NOW, [job["from"]]):
        for copy, (old, new) in enumerate(pairs.get(row["node"], ())):
            data = json.loads(row["data"])
            held = row["slot"] == -1
            data = renamed(data, new if held else inner_node(old, new, data[3]))
            serial = row["serial"]
            if not held:
                # What one node held, two may hold now, and each closes its own: the second copies get serials above.
                serial = data[0] = serial + copy * kept[row["key"]]["serial"]
            rows.append((job["to"], row["key"], new.name, row["slot"], serial, row["start_at"], json.dumps(data)))
    if rows:
        queries.rows(WRITE_OPENED, *(list(column) for column in zip(*rows)))
    copies = max(len(known) for known in pairs.values())
    keys = [copied_key(job["to"], row, copies) for row in kept.values()]
    if keys:
        queries.rows(WRITE_KEYS, *(list(column) for column in zip(*keys)))
    return len(rows)


def copied_key(state_id: int, row: dict[str, Any], copies: int) -> tuple[Any, ...]:
    """Return the row of a key in another state, in which its serials are repeated, each time above those before."""
    serial, live = row["serial"], read_ranges(row["live"])
    live = [(low + copy * serial, high + copy * serial) for copy in range(copies) for low, high in live]
    clock, ticked, due = row["clock"], row["ticked"], row["due"]
    return (state_id, row["key"], 0, row["version"], serial * copies, clock, ticked, due, write_ranges(live))


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
