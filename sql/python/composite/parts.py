"""Which parts of an expression are detected elsewhere: the largest whose events all come by one neighbour."""

from collections.abc import Iterator
from typing import Any, Optional

from composite.definition import Definition, define
from composite.graph import Graph, Node, build
from composite.syntax import TEMPORAL, TRANSACTION, Expression, leaves, print_expression, print_name
from lexer import SqlTextError

HERE = ""
KEPT = ("context", "within", "time_basis", "lateness", "max_open", "zone")


class Part:
    """Hold a sub-expression that could be detected elsewhere; first: the number of its first leaf."""

    def __init__(self, expression: Expression, node: Node, first: int) -> None:
        self.expression = expression
        self.node = node
        self.numbers = range(first, first + len(leaves(expression)))
        self.types = {leaf.type for leaf in leaves(expression)}


class Planner:
    """Find the parts of one composite event.

    places: for each leaf from where its events come, HERE or a neighbour. barred: why a leaf is detected here, else
    None. refusing: neighbours that detect nothing, with the reason.
    """

    def __init__(self, given: dict[str, Any], definition: Definition, graph: Graph) -> None:
        self.given = given
        self.definition = definition
        self.graph = graph
        self.places: list[list[str]] = given["places"]
        self.barred: list[Optional[str]] = given["barred"]
        self.refusing: dict[str, str] = given["refusing"]
        self.parts: dict[str, list[Part]] = {}
        self.reasons: dict[str, str] = {}

    def plan(self) -> dict[str, Any]:
        """Return what each neighbour is asked for, and why other sub-expressions behind one are detected here."""
        root = next(node for node in self.graph.nodes if self.definition in node.roots)
        self.walk(self.definition.expression, root, 0)
        found = []
        for place, parts in sorted(self.parts.items()):
            if all(part.expression.op == "leaf" for part in parts):
                continue
            told, reason = self.ask(place, parts)
            if told is None:
                self.reasons |= {part.node.name: reason for part in parts if part.expression.op != "leaf"}
            else:
                found.append(told)
        return {"parts": found, "reasons": self.reasons}

    def walk(self, expression: Expression, node: Node, first: int) -> None:
        """Note the largest parts in an expression whose leaves are numbered from `first`."""
        numbers = range(first, first + len(leaves(expression)))
        behind = {place for number in numbers for place in self.places[number] or [HERE]}
        if len(behind) == 1 and HERE not in behind:
            (place,) = behind
            reason = self.obstacle(node, numbers, place)
            if reason is None:
                self.parts.setdefault(place, []).append(Part(expression, node, first))
                return
            if expression.op != "leaf":
                self.reasons[node.name] = reason
        for inner, child in zip(expression.parts, node.children):
            self.walk(inner, child, first)
            first += len(leaves(inner))

    def obstacle(self, node: Node, numbers: range, place: str) -> Optional[str]:
        """Return why a sub-expression behind a neighbour has to be detected here, None when it has not."""
        if self.given.get("time_basis") == "event":
            return "in event time all sources are put in order at one place"
        if self.given.get("start") == "earliest":
            return "its history begins with what is held here"
        if any(part.op in (*TEMPORAL, *TRANSACTION) for part in walk_parts(self.definition.expression)):
            return "clocks and transactions are those of this broker"
        if any(below.tests for below in walk_nodes(node)):
            return "a condition of its filter is asked here"
        barred = [reason for number in numbers if (reason := self.barred[number])]
        return barred[0] if barred else self.refusing.get(place)

    def ask(self, place: str, parts: list[Part]) -> tuple[Optional[dict[str, Any]], str]:
        """Return what a neighbour is asked for: one stream for all parts, so that they come in order; or why not."""
        inside = [number for part in parts for number in part.numbers]
        outside = [number for number in range(len(self.places)) if number not in inside]
        if any(place in self.places[number] for number in outside):
            return None, "other events of the expression come by that neighbour, too, and are to stay in order"
        found = leaves(self.definition.expression)
        rest = {found[number].type for number in outside}
        for part in parts:
            if part.types & rest:
                return None, "its events stand at other places of the expression, too"
            rest |= part.types
        whole = parts[0].expression
        for part in parts[1:]:
            whole = Expression("or", (whole, part.expression))
        given: dict[str, Any] = {name: self.given[name] for name in KEPT if self.given.get(name) is not None}
        given["expression"] = print_expression(whole)
        if self.definition.partition:
            keys = [self.definition.partition[number] for number in inside]
            given["partition_by"] = ", ".join("(" + ", ".join(map(print_name, key)) + ")" for key in keys)
        nodes = [part.node.name for part in parts]
        try:
            asked = define("", given["expression"], **{name: given[name] for name in given if name != "expression"})
        except SqlTextError as error:
            return None, error.message
        # Nodes are named by a digest of all that they depend on.
        if not set(nodes) <= build([asked])[0].names.keys():
            return None, "it means something else when it is detected alone"
        return {"place": place, "leaves": inside, "nodes": nodes, "given": given}, ""


def walk_parts(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all below it."""
    yield expression
    for part in expression.parts:
        yield from walk_parts(part)


def walk_nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all below it."""
    yield node
    for child in node.children:
        yield from walk_nodes(child)


def find_parts(given: dict[str, Any], definition: Definition, graph: Graph) -> dict[str, Any]:
    """Return {parts, reasons}: see Planner; raises SqlTextError 22023 when a place is not said for each leaf."""
    count = len(leaves(definition.expression))
    lists = (given["places"], given.get("barred"))
    if not all(isinstance(one, list) and len(one) == count for one in lists) or not all(
        isinstance(places, list) and all(isinstance(place, str) for place in places) for places in given["places"]
    ):
        message = "places and barred are not arrays with an item for each leaf"
        raise SqlTextError(message, 1, "Use pgps.plan_composite_event.", sqlstate="22023")
    if not isinstance(given.get("refusing"), dict):
        raise SqlTextError("refusing is not an object", 1, "Use pgps.plan_composite_event.", sqlstate="22023")
    return Planner(given, definition, graph).plan()
