"""The event graph: each sub-expression once, whatever definitions have it in common."""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Optional

from composite.definition import Definition
from composite.syntax import TEMPORAL, TRANSACTION, Expression, leaves, print_expression
from composite.texts import Condition, rename

SLOTS = {"seq": 1, "not": 2, "absence": 1, "a": 2, "a*": 2, "p": 1, "p*": 1, "plus": 1, "repeat": 1}


class Test(NamedTuple):
    """Hold a condition where it is tested: paths lead from the node to the leaves it is about."""

    text: str
    paths: tuple[tuple[str, tuple[int, ...]], ...]
    many: tuple[bool, ...]


class Node:
    """Hold a sub-expression, what is made of it and what it is made of.

    name: the same for the same sub-expression in any graph, since stored state refers to it.
    parents: (node, role). roots: the definitions whose whole expression this is.
    mixed: two of its parts may hold the same event. point: an occurrence begins and ends where it is detected.
    distinct: and no two do so in the same place, as ticks may.
    ranks: for each operand, where it comes in what this is made of; of what operands bring in one step that is the
    order, whatever other definitions are in the graph.
    """

    __slots__ = (
        "amount", "bare", "base", "children", "columns", "distinct", "expression", "index", "mixed", "name", "op",
        "others", "parents", "point", "ranks", "roots", "slots", "sources", "tests", "text", "upper",
    )  # fmt: skip

    def __init__(self, expression: Expression, children: "list[Node]", index: int, name: str, base: int) -> None:
        self.expression = expression
        self.op = expression.op
        self.amount = expression.amount
        self.upper = expression.upper or expression.amount
        self.children = children
        self.index = index
        self.name = name
        self.base = base
        self.slots = SLOTS.get(self.op, len(children) if self.op in ("and", "any") else 0)
        self.parents: list[tuple[Node, int]] = []
        self.roots: list[Definition] = []
        self.tests: tuple[Test, ...] = ()
        self.columns: tuple[str, ...] = ()
        self.others: tuple[str, ...] = ()
        self.text = print_expression(expression)
        self.bare = print_expression(bare(expression))
        types = [child.sources for child in children]
        self.sources: frozenset[str] = frozenset().union(*types) if types else own_source(expression)
        self.mixed = sum(map(len, types)) > len(self.sources)
        order: dict[str, int] = {}
        for child in children:
            child.count_in(order)
        self.ranks = tuple(order[child.name] for child in children)
        self.distinct: bool = self.op == "leaf" or (self.op == "or" and all(child.distinct for child in children))
        self.point: bool = all(child.point for child in children) and self.op in (
            "leaf",
            "or",
            "plus",
            *TEMPORAL,
            *TRANSACTION,
        )

    def count_in(self, order: dict[str, int]) -> None:
        """Number what this is made of, each once and behind its own parts, and this."""
        if self.name not in order:
            for child in self.children:
                child.count_in(order)
            order[self.name] = len(order)


class Frame(NamedTuple):
    """Hold what definitions must have in common to be detected in one graph."""

    context: str
    within: Optional[int]
    time_basis: str
    lateness: int
    max_open: int
    partitioned: bool


class Graph:
    """Hold the nodes, each behind those it is made of."""

    def __init__(self, frame: Frame, intervals: frozenset[str]) -> None:
        self.frame = frame
        self.intervals = intervals
        self.nodes: list[Node] = []
        self.names: dict[str, Node] = {}
        self.slot_nodes: list[tuple[Node, int]] = []

    @property
    def leaves(self) -> list[Node]:
        """Return the nodes at which events come in."""
        return [node for node in self.nodes if node.op == "leaf"]

    @property
    def ticking(self) -> list[Node]:
        """Return the nodes that tick by the clock alone."""
        return [node for node in self.nodes if node.op in TEMPORAL]

    @property
    def transactional(self) -> list[Node]:
        """Return the nodes for the beginning and the end of transactions."""
        return [node for node in self.nodes if node.op in TRANSACTION]

    def add(self, definition: Definition) -> None:
        """Add a definition, which must have the frame of the graph."""
        if frame_of(definition) != self.frame:
            raise ValueError(f"{definition.name} has another frame than the graph")
        named = {alias.name: alias for alias in definition.aliases if alias.name}
        keys = {name: alias.leaf for name, alias in named.items()}
        waiting = [
            (condition, frozenset(keys[name] for name in condition.names)) for condition in definition.conditions
        ]
        builder = Builder(self, definition, waiting, {name: alias.many for name, alias in named.items()}, keys)
        builder.place(definition.expression, 0, folded=None)[0].roots.append(definition)


class Builder:
    """Place the expression of one definition in a graph."""

    def __init__(
        self,
        graph: Graph,
        definition: Definition,
        waiting: list[tuple[Condition, frozenset[int]]],
        many: dict[str, bool],
        keys: dict[str, int],
    ) -> None:
        self.graph = graph
        self.definition = definition
        self.waiting = waiting
        self.many = many
        self.keys = keys

    def place(
        self, expression: Expression, first: int, *, folded: Optional[bool]
    ) -> tuple[Node, dict[int, tuple[int, ...]]]:
        """Return the node of an expression whose leaves are numbered from `first`, and the paths to these.

        folded: None for the whole expression, True where an operator above makes sets of what is found here.
        """
        children: list[Node] = []
        paths: dict[int, tuple[int, ...]] = {first: ()} if expression.op == "leaf" else {}
        number = first
        cumulative = self.definition.context == "cumulative"
        for role, part in enumerate(expression.parts):
            gathers = cumulative or (expression.op, role) in (("a*", 1), ("repeat", 0))
            child, below = self.place(part, number, folded=bool(folded) or gathers)
            children.append(child)
            number += len(leaves(part))
            paths.update({leaf: (role, *path) for leaf, path in below.items()})
        tests = self.tests_at(paths, folded=folded)
        columns = self.definition.partition[first] if expression.op == "leaf" and self.definition.partition else ()
        others: tuple[str, ...] = ()
        if expression.op in TRANSACTION:
            others = tuple(sorted({print_expression(bare(leaf)) for leaf in leaves(self.definition.expression)}))
        return self.node(expression, children, tests, columns, others), paths

    def tests_at(self, paths: dict[int, tuple[int, ...]], *, folded: Optional[bool]) -> list[tuple[str, Test]]:
        """Return the conditions to test here: where their leaves come together, sets of them being complete."""
        ready = [
            (condition, about)
            for condition, about in self.waiting
            if folded is None
            or (about and about <= paths.keys() and not (folded and any(self.many[name] for name in condition.names)))
        ]
        self.waiting = [item for item in self.waiting if item not in ready]
        found = []
        for condition, _ in ready:
            where = tuple((name, paths[self.keys[name]]) for name in condition.names)
            places = dict(where)
            text = rename(condition, lambda name, places=places: ".".join(map(str, places[name])))  # type: ignore[misc]
            found.append((text, Test(condition.text, where, tuple(self.many[name] for name in condition.names))))
        return found

    def node(
        self,
        expression: Expression,
        children: list[Node],
        tests: list[tuple[str, Test]],
        columns: tuple[str, ...],
        others: tuple[str, ...],
    ) -> Node:
        """Return the node for a sub-expression, made when it is not there yet."""
        graph = self.graph
        own = bare(expression)._replace(parts=())
        key = repr((graph.frame, own, [child.name for child in children], [text for text, _ in tests], columns, others))
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        node = graph.names.get(name)
        if node is None:
            node = Node(expression, children, len(graph.nodes), name, len(graph.slot_nodes))
            node.tests = tuple(test for _, test in tests)
            node.columns, node.others = columns, others
            node.point = node.point and expression.type not in graph.intervals
            graph.slot_nodes += [(node, slot) for slot in range(node.slots)]
            graph.nodes.append(node)
            graph.names[name] = node
            for role, child in enumerate(children):
                child.parents.append((node, role))
        return node


def build(definitions: Iterable[Definition], intervals: Iterable[str] = ()) -> list[Graph]:
    """Return the graphs of definitions: one for each frame, in order of first appearance.

    `intervals` names the event types whose events have a beginning of their own: composite events.
    """
    graphs: dict[Frame, Graph] = {}
    for definition in definitions:
        frame = frame_of(definition)
        if frame not in graphs:
            graphs[frame] = Graph(frame, frozenset(intervals))
        graphs[frame].add(definition)
    return list(graphs.values())


def frame_of(definition: Definition) -> Frame:
    """Return what a definition must have in common with others."""
    d = definition
    return Frame(d.context, d.within, d.time_basis, d.lateness, d.max_open, bool(d.partition))


def bare(expression: Expression) -> Expression:
    """Return an expression without what only names it."""
    return expression._replace(alias="")


def own_source(expression: Expression) -> frozenset[str]:
    """Return the event type of a leaf; a tick is an event of its own."""
    return frozenset([expression.type] if expression.op == "leaf" else [print_expression(expression)])
