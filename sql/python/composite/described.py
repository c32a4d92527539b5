"""A composite event as its definer wrote it, taken apart for the broker."""

import json
from typing import Any, Optional

from composite.definition import Definition, define
from composite.detector import State
from composite.graph import Graph, Node, build
from composite.parts import find_parts
from composite.syntax import Expression, leaves, print_expression, print_name
from lexer import SqlTextError

GIVEN = ("context", "partition_by", "within", "filter", "attributes", "time_basis", "lateness", "max_open", "zone")


def define_from(given: dict[str, Any]) -> Definition:
    """Return the definition of arguments in JSON; those that are missing have their defaults."""
    chosen = {name: given[name] for name in (*GIVEN, "types") if given.get(name) is not None}
    return define(given.get("name") or "", given["expression"], **chosen)


def object_of(given: str) -> dict[str, Any]:
    """Return the arguments of a definition from their JSON; raises SqlTextError 22023 when they are something else."""
    try:
        found = json.loads(given)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("expression"), str):
        raise SqlTextError(
            "the arguments of a composite event are not an object with an expression",
            1,
            "Use pgps.create_composite_event or pgps.try_composite_event.",
            sqlstate="22023",
        )
    return found


def describe_composite(given: str) -> dict[str, Any]:
    """Return the parts of a composite event; raises SqlTextError as `define` does."""
    told = object_of(given)
    definition = define_from(told)
    found = leaves(definition.expression)
    (graph,) = build([definition])
    if "places" in told:
        return find_parts(told, definition, graph)
    return {
        "expression": definition.text,
        "leaves": [
            {
                "type": leaf.type,
                "moment": leaf.moment,
                "source": leaf.source,
                "predicate": leaf.predicate,
                "columns": list(definition.partition[number]) if definition.partition else [],
            }
            for number, leaf in enumerate(found)
        ],
        "aliases": [alias._asdict() if hasattr(alias, "_asdict") else vars(alias) for alias in definition.aliases],
        "conditions": [
            {"text": one.text, "names": list(one.names), "given": one.given, "at": one.at}
            for one in definition.conditions
        ],
        "attributes": [
            {"name": one.name, "type": one.type, "text": one.text, "names": list(one.names)}
            | {"given": one.given, "at": one.at}
            for one in definition.attributes
        ],
        "timed": bool(State(graph, dict.fromkeys(tests_of(graph), always)).timed or graph.ticking),
        "ticking": bool(graph.ticking),
        "fastest": fastest(graph),
        "transactional": bool(graph.transactional),
        "nodes": described_nodes(definition, graph),
    }


def fastest(graph: Graph) -> Optional[dict[str, Any]]:
    """Return what ticks most often without an event, and the microseconds between two ticks; None when nothing does."""
    found = [node for node in graph.nodes if node.op == "every" or node in ticking_windows(graph)]
    least = min(found, key=lambda node: node.amount, default=None)
    return None if least is None else {"text": least.text, "period": least.amount}


def ticking_windows(graph: Graph) -> list[Node]:
    """Return the nodes whose windows tick again and again: P, where it is not told all at once."""
    return [node for node in graph.nodes if node.op == "p" and graph.frame.context != "cumulative"]


def always(_: dict[str, Any]) -> bool:
    """Stand for a condition that is not asked."""
    return True


def tests_of(graph: Graph) -> list[str]:
    """Return the conditions of a graph."""
    return [test.text for node in graph.nodes for test in node.tests]


def described_nodes(definition: Definition, graph: Graph) -> list[dict[str, Any]]:
    """Return the nodes of the graph, the whole expression first, each with the numbers of the leaves below it."""
    about: dict[str, set[int]] = {node.name: set() for node in graph.nodes}
    written: dict[str, list[Expression]] = {node.name: [] for node in graph.nodes}

    def walk(part: Expression, node: Node, first: int) -> None:
        number = first
        written[node.name].append(part)
        for inner, child in zip(part.parts, node.children):
            walk(inner, child, number)
            number += len(leaves(inner))
        about[node.name].update(range(first, number) if part.parts else range(first, first + len(leaves(part))))

    walk(definition.expression, next(node for node in graph.nodes if definition in node.roots), 0)
    return [
        {
            "name": node.name,
            "op": node.op,
            "text": text_of_all(written[node.name]) or node.text,
            "parts": [child.name for child in node.children],
            "leaves": sorted(about[node.name]),
            "tests": [test.text for test in node.tests],
        }
        for node in reversed(graph.nodes)
    ]


def text_of_all(parts: list[Expression]) -> str:
    """Return the text of what one node is for: parts of the expression that differ in their aliases alone."""
    if len({print_expression(part) for part in parts}) == 1:
        return print_expression(parts[0])
    text = print_expression(without_aliases(parts[0])) if parts else ""
    aliases = dict.fromkeys(print_name(part.alias) for part in parts if part.alias)
    return f"{text} {', '.join(aliases)}" if aliases else text


def without_aliases(expression: Expression) -> Expression:
    """Return an expression in which no leaf has a name of its own."""
    return expression._replace(alias="", parts=tuple(without_aliases(part) for part in expression.parts))


def leaf_nodes(definition: Definition, graph: Graph) -> list[Node]:
    """Return the node of each leaf, in the order of the expression."""
    root = next(node for node in graph.nodes if definition in node.roots)
    found: list[Node] = []

    def walk(part: Expression, node: Node) -> None:
        if part.op == "leaf":
            found.append(node)
        for inner, child in zip(part.parts, node.children):
            walk(inner, child)

    walk(definition.expression, root)
    return found
