"""The SQL that Spark can evaluate as the broker does: conditions and attributes that read nothing but the events.

An expression is read once, into a tree whose values have kinds; what is not known here is refused, so that nothing is
evaluated in another way than PostgreSQL would.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pgps.errors import BrokerError
from pgps_spark.detecting.modules import module

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Node", "columns_in", "read", "refuse"]

_HINT = (
    "Detect it in the broker (pgps.create_composite_event), or compute it before as a column of the stream. Known are"
    " attributes, constants, comparisons, + - * / % ||, and, or, not, between, in, like, is null, interval '…', abs,"
    " coalesce, length, lower, upper, and over sets count, sum, avg, min, max."
)
NUMBERS = ("int", "decimal", "float")
AGGREGATES = ("count", "sum", "avg", "min", "max")
_COMPARISONS = ("=", "<>", "<", ">", "<=", ">=")
_FUNCTIONS = {"abs": 1, "coalesce": 0, "length": 1, "lower": 1, "upper": 1}


@dataclass(frozen=True, slots=True)
class Node:
    """Hold a part of an expression.

    op: literal, column, and, or, not, a comparison, an arithmetic operator, or a function.
    kind: of its values: int, decimal, float, text, bool, time, date, interval, null.
    value: of a literal; (alias, attribute) of a column; the pattern of like.
    """

    op: str
    kind: str
    parts: tuple[Node, ...] = ()
    value: Any = None


def refuse(message: str, hint: str = _HINT, sqlstate: str = "0A000") -> BrokerError:
    """Return the error for what Spark cannot do as the broker does."""
    return BrokerError(message, hint=hint, sqlstate=sqlstate)


def read(text: str, what: str, columns: Mapping[str, Mapping[str, str]], sets: frozenset[str] = frozenset()) -> Node:
    """Return the tree of an expression.

    `columns`: for each alias the kinds of its attributes; under "" those that need no alias. `sets`: the aliases that
    stand for a set of events. Raises BrokerError 0A000 for what is not known here, 42703, 42704, 42803, 42804.
    """
    reader = _Reader(text, what, columns, sets)
    node = reader.any()
    if reader.at < len(reader.tokens):
        raise reader.unknown()
    return node


def columns_in(node: Node) -> Iterator[tuple[str, str]]:
    """Yield alias and attribute of each column in an expression."""
    if node.op == "column":
        yield node.value
    for part in node.parts:
        yield from columns_in(part)


class _Reader:
    """Read by descent, from the loosest operator to the tightest, as PostgreSQL binds them."""

    def __init__(self, text: str, what: str, columns: Mapping[str, Mapping[str, str]], sets: frozenset[str]) -> None:
        self.what = what
        self.text = text
        self.columns = columns
        self.sets = sets
        self.in_set = False
        self.tokens: list[Any] = module("lexer").tokenize(text)
        self.at = 0

    def unknown(self) -> BrokerError:
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is None:
            return refuse(f"the {self.what} ends too early: {self.text}", "Finish it.", "42601")
        return refuse(f'"{token.text}" in the {self.what} is not evaluated in Spark: {self.text}')

    def word(self, *words: str) -> str:
        """Take a key word, if it is one of these."""
        if self.at < len(self.tokens) and self.tokens[self.at].word(*words):
            self.at += 1
            return str(self.tokens[self.at - 1].value)
        return ""

    def sign(self, *signs: str) -> str:
        """Take an operator or a symbol, if it is one of these."""
        if self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind in ("operator", "symbol") and token.value in signs:
                self.at += 1
                return str(token.value)
        return ""

    def need(self, sign: str) -> None:
        if not self.sign(sign):
            raise self.unknown()

    def any(self) -> Node:
        node = self.all()
        while self.word("or"):
            node = Node("or", "bool", (self.truth(node), self.truth(self.all())))
        return node

    def all(self) -> Node:
        node = self.negation()
        while self.word("and"):
            node = Node("and", "bool", (self.truth(node), self.truth(self.negation())))
        return node

    def negation(self) -> Node:
        if self.word("not"):
            return Node("not", "bool", (self.truth(self.negation()),))
        return self.test()

    def truth(self, node: Node) -> Node:
        if node.kind not in ("bool", "null"):
            raise refuse(f"a condition in the {self.what} is no boolean: {self.text}", "Compare it.", "42804")
        return node

    def test(self) -> Node:
        node = self.comparison()
        while self.word("is"):
            turned = bool(self.word("not"))
            if not self.word("null"):
                raise self.unknown()
            node = Node("is null", "bool", (node,))
            node = Node("not", "bool", (node,)) if turned else node
        return node

    def comparison(self) -> Node:
        node = self.among()
        sign = self.sign(*_COMPARISONS)
        return self.compared(sign, node, self.among()) if sign else node

    def among(self) -> Node:
        node = self.concatenation()
        start = self.at
        turned = bool(self.word("not"))
        word = self.word("between", "in", "like")
        if not word:
            self.at = start
            return node
        if word == "between":
            low = self.concatenation()
            if not self.word("and"):
                raise self.unknown()
            bounds = (self.compared(">=", node, low), self.compared("<=", node, self.concatenation()))
            found = Node("and", "bool", bounds)
        elif word == "in":
            found = self.listed(node)
        else:
            pattern = self.concatenation()
            if node.kind not in ("text", "null") or pattern.op != "literal" or pattern.kind != "text":
                raise refuse(f"like in the {self.what} needs a text and a constant pattern: {self.text}")
            found = Node("like", "bool", (node,), pattern.value)
        return Node("not", "bool", (found,)) if turned else found

    def listed(self, node: Node) -> Node:
        self.need("(")
        found = self.compared("=", node, self.any())
        while self.sign(","):
            found = Node("or", "bool", (found, self.compared("=", node, self.any())))
        self.need(")")
        return found

    def compared(self, sign: str, left: Node, right: Node) -> Node:
        left, right = _as(left, right.kind), _as(right, left.kind)
        kinds = {left.kind, right.kind} - {"null"}
        if len(kinds) > 1 and not kinds <= set(NUMBERS):
            names = " and ".join(sorted(kinds))
            raise refuse(f"{names} are not compared in Spark, in the {self.what}: {self.text}")
        if sign not in ("=", "<>") and kinds & {"text", "bool"}:
            raise refuse(f"the order of texts depends on a collation, in the {self.what}: {self.text}")
        return Node(sign, "bool", (left, right))

    def concatenation(self) -> Node:
        node = self.sum()
        while self.sign("||"):
            other = self.sum()
            if {node.kind, other.kind} - {"text", "int", "null"} or "text" not in (node.kind, other.kind):
                raise refuse(f"|| in the {self.what} joins texts and whole numbers only: {self.text}")
            node = Node("||", "text", (node, other))
        return node

    def sum(self) -> Node:
        node = self.product()
        while sign := self.sign("+", "-"):
            node = self.computed(sign, node, self.product())
        return node

    def product(self) -> Node:
        node = self.signed()
        while sign := self.sign("*", "/", "%"):
            node = self.computed(sign, node, self.signed())
        return node

    def computed(self, sign: str, left: Node, right: Node) -> Node:
        kinds = (left.kind, right.kind)
        found = _RESULTS.get((sign, *kinds))
        if found is None and set(kinds) <= {*NUMBERS, "null"} and not (sign == "%" and "float" in kinds):
            found = next((kind for kind in ("float", "decimal", "int") if kind in kinds), "null")
        if found is None:
            raise refuse(f"{kinds[0]} {sign} {kinds[1]} in the {self.what} is not evaluated in Spark: {self.text}")
        return Node(sign, found, (left, right))

    def signed(self) -> Node:
        if self.sign("-"):
            node = self.signed()
            if node.kind not in NUMBERS:
                raise self.unknown()
            return Node("-", node.kind, (Node("literal", "int", value=0), node))
        self.sign("+")
        return self.single()

    def single(self) -> Node:
        if self.at >= len(self.tokens):
            raise self.unknown()
        token = self.tokens[self.at]
        if self.sign("("):
            node = self.any()
            self.need(")")
            return node
        self.at += 1
        if token.kind in ("integer", "decimal", "string"):
            return _constant(token)
        if token.word("null", "true", "false"):
            kind = "null" if token.value == "null" else "bool"
            return Node("literal", kind, value={"null": None, "true": True, "false": False}[token.value])
        if token.kind == "ident" and self.at < len(self.tokens):
            following = self.tokens[self.at]
            if following.kind == "string" and token.value in ("interval", "timestamptz", "timestamp", "date"):
                self.at += 1
                return _as(_constant(following), {"interval": "interval", "date": "date"}.get(token.value, "time"))
            if following.symbol("("):
                return self.call(token)
        if token.kind == "quoted" or (token.kind == "ident" and token.value not in module("keywords").NOT_A_COLUMN):
            return self.column(token)
        self.at -= 1
        raise self.unknown()

    def call(self, token: Any) -> Node:
        name = token.value
        if name in AGGREGATES and self.sets and not self.in_set:
            return self.aggregate(name)
        if name not in _FUNCTIONS:
            self.at -= 1
            raise self.unknown()
        self.need("(")
        parts = [self.any()]
        while self.sign(","):
            parts.append(self.any())
        self.need(")")
        kinds = {part.kind for part in parts} - {"null"}
        wanted = set(NUMBERS) if name == "abs" or kinds & set(NUMBERS) else {"text"} if name != "coalesce" else kinds
        if (_FUNCTIONS[name] and len(parts) != 1) or not kinds <= wanted or (wanted == kinds and len(kinds) > 1):
            raise refuse(f"{name} in the {self.what} is not evaluated in Spark for these values: {self.text}")
        if (name == "length" and kinds != {"text"}) or (name in ("lower", "upper") and kinds & set(NUMBERS)):
            raise refuse(f"{name} in the {self.what} takes a text: {self.text}")
        widest = next((kind for kind in ("float", "decimal", "int") if kind in kinds), next(iter(kinds), "null"))
        return Node(name, "int" if name == "length" else widest, tuple(parts))

    def aggregate(self, name: str) -> Node:
        self.need("(")
        self.in_set = True
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        following = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else None
        if token is not None and token.kind in ("ident", "quoted") and following is not None and following.symbol(")"):
            # count(b) counts the events.
            if name != "count" or token.value not in self.sets:
                raise self.unknown()
            self.at += 1
            part = Node("event", "bool", value=(token.value, ""))
        else:
            part = self.any()
        self.in_set = False
        self.need(")")
        kind = _kind_of_aggregate(name, part.kind)
        if not kind or len(_aliases(part)) != 1:
            raise refuse(f"{name} in the {self.what} is not evaluated in Spark for this: {self.text}")
        return Node(name, kind, (part,))

    def column(self, token: Any) -> Node:
        alias, name = "", token.value
        if self.sign("."):
            alias, name = name, self.tokens[self.at].value if self.at < len(self.tokens) else ""
            self.at += 1
        known = self.columns.get(alias)
        if known is None:
            raise refuse(f"{alias}.{name} in the {self.what} is not evaluated in Spark: {self.text}")
        if name not in known:
            there = ", ".join(known) or "none"
            raise refuse(f'"{name}" in the {self.what} is no attribute: {self.text}', f"There are: {there}.", "42703")
        if known[name] == "other":
            raise refuse(f"the type of {name} in the {self.what} is not evaluated in Spark: {self.text}")
        if (alias in self.sets) != self.in_set:
            raise refuse(f"{alias}.{name} in the {self.what} has to stand alone: {self.text}",
                         f"{alias} stands for a set: use count, sum, avg, min or max.", "42803")  # fmt: skip
        return Node("column", known[name], value=(alias, name))


_RESULTS = {
    ("-", "time", "time"): "interval",
    ("-", "date", "date"): "int",
    ("+", "time", "interval"): "time",
    ("-", "time", "interval"): "time",
    ("+", "interval", "time"): "time",
    ("+", "interval", "interval"): "interval",
    ("-", "interval", "interval"): "interval",
    ("+", "date", "int"): "date",
    ("-", "date", "int"): "date",
}


def _aliases(node: Node) -> set[str]:
    own = {node.value[0]} if node.op in ("column", "event") else set()
    return own.union(*(_aliases(part) for part in node.parts))


def _kind_of_aggregate(name: str, kind: str) -> str:
    if name == "count":
        return "int"
    if name in ("sum", "avg"):
        mean = "float" if kind == "float" else "decimal"
        return "" if kind not in NUMBERS else kind if name == "sum" else mean
    return kind if kind in (*NUMBERS, "time", "date", "interval") else ""


def _constant(token: Any) -> Node:
    if token.kind == "integer":
        return Node("literal", "int", value=int(token.value))
    if token.kind == "decimal":
        return Node("literal", "decimal", value=Decimal(token.value))
    return Node("literal", "text", value=token.value)


def _as(node: Node, kind: str) -> Node:
    """Return a quoted constant as what it is compared with; PostgreSQL reads it so, too."""
    if node.op != "literal" or node.kind != "text" or kind in ("text", "null"):
        return node
    try:
        return Node("literal", "decimal" if kind == "int" else kind, value=_read_constant(str(node.value), kind))
    except (ValueError, ArithmeticError, KeyError):
        raise refuse(f'"{node.value}" is no {kind}', f"Give a {kind}; a time with its zone.", "22023") from None


def _read_constant(text: str, kind: str) -> Any:
    if kind == "interval":
        return dt.timedelta(microseconds=module("composite.times").read_duration(text))
    if kind == "time":
        found = dt.datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError(text)
        return found
    if kind == "date":
        return dt.date.fromisoformat(text)
    if kind == "bool":
        return {"t": True, "true": True, "f": False, "false": False}[text.lower()]
    return float(text) if kind == "float" else Decimal(text)
