"""Which leaves an event matches, for callers that do not know already."""

from collections.abc import Callable, Mapping
from typing import Any, Optional

from composite.graph import Graph, Node
from composite.points import Event
from composite.texts import read_tokens, split_conditions

Matches = Callable[[Any], Optional[bool]]


class Matcher:
    """Find the leaves of a graph for events whose payload is a mapping.

    predicates: for each predicate text what tells whether a payload satisfies it; unknown is no match.
    equalities: for a predicate the attribute and the value that it asks for, by which it is found; give them
    only where equal values are equal in Python, and see `equality_of`. What they cover entirely needs no predicate.
    """

    def __init__(
        self,
        graph: Graph,
        predicates: Mapping[str, Matches],
        equalities: Optional[Mapping[str, tuple[str, Any]]] = None,
    ) -> None:
        self.plain: dict[str, list[tuple[Node, Optional[Matches]]]] = {}
        self.indexed: dict[str, dict[str, dict[Any, list[tuple[Node, Optional[Matches]]]]]] = {}
        self.names: dict[str, Node] = {}
        for node in graph.leaves:
            text, kind = node.expression.predicate, node.expression.type
            predicate = predicates.get(text)
            equality = (equalities or {}).get(text)
            if text and predicate is None and equality is None:
                raise ValueError(f"no callback for the predicate {text}")
            if equality is None:
                self.plain.setdefault(kind, []).append((node, predicate))
            else:
                values = self.indexed.setdefault(kind, {}).setdefault(equality[0], {})
                values.setdefault(equality[1], []).append((node, predicate))

    def __call__(self, event: Event) -> list[tuple[str, Any]]:
        """Return the names of the leaves that an event matches, each with its key."""
        candidates = list(self.plain.get(event.type, ()))
        for attribute, values in self.indexed.get(event.type, {}).items():
            candidates += values.get(event.payload.get(attribute), ())
        return [
            (node.name, tuple(event.payload.get(column) for column in node.columns) if node.columns else ())
            for node, predicate in candidates
            if (not node.expression.source or node.expression.source == event.origin)
            and (predicate is None or predicate(event.payload) is True)
        ]


def equality_of(predicate: str) -> Optional[tuple[str, Any, bool]]:
    """Return attribute and value of the first condition `attribute = constant`, and whether it is the only one.

    The value is text or a whole number as it is written: the caller knows whether the attribute's type agrees.
    """
    conditions = split_conditions(read_tokens(predicate, "predicate"))
    for tokens in conditions:
        if len(tokens) == 3 and tokens[1].kind == "operator" and tokens[1].value == "=":
            sides = (tokens[0], tokens[2])
            for name, value in (sides, sides[::-1]):
                if name.kind in ("ident", "quoted") and value.kind in ("string", "integer"):
                    found = int(value.value) if value.kind == "integer" else value.value
                    return name.value, found, len(conditions) == 1
    return None
