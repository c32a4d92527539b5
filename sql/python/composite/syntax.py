"""The parts of an expression over events, and its one normal form."""

from typing import NamedTuple

from composite.times import write_duration, write_time
from token_lists import PLAIN_NAME_RE, quote_name, quote_string

# Each needs its quotes as the name of a type or as an alias.
CONNECTIVES = frozenset("or and not begin end begin_transaction commit".split())
OPERATOR_WORDS = CONNECTIVES | frozenset("seq any plus repeat at every cron".split())
BINDING = {"or": 1, "and": 2, "seq": 3}  # from loosest to tightest
INFIX = {"or": "or", "and": "and", "seq": ";"}
TEMPORAL = ("at", "every", "cron")
TRANSACTION = ("begin_transaction", "commit")


class Expression(NamedTuple):
    """Hold one node of an expression.

    op: leaf; or, and, seq; any (amount of them); not (E2, E1, E3); absence (E2, E1, no E2 for amount);
        a, a* (E1, E2, E3); p, p* (E1, E3, every amount); plus (E1, amount); repeat (E1, amount to upper);
        at (amount), every (amount), cron (text, zone); begin_transaction, commit.
    amount and upper: counts, microseconds, or for `at` microseconds since 1970.
    A leaf has type, moment (begin, end or nothing), source, predicate and alias, empty when not given.
    """

    op: str
    parts: "tuple[Expression, ...]" = ()
    amount: int = 0
    upper: int = 0
    text: str = ""
    zone: str = ""
    type: str = ""
    moment: str = ""
    source: str = ""
    predicate: str = ""
    alias: str = ""

    @property
    def name(self) -> str:
        """Return what a filter may call a leaf: its alias, else its type."""
        return self.alias or self.type


def leaves(expression: Expression) -> list[Expression]:
    """Return the leaves that name an event type, in the order of the text."""
    if expression.op == "leaf":
        return [expression]
    return [leaf for part in expression.parts for leaf in leaves(part)]


def print_expression(expression: Expression, binding: int = 0) -> str:
    """Return the normal form: what parses to the same expression and is printed as itself again."""
    op, parts = expression.op, expression.parts
    own = BINDING.get(op, 4)
    if op in INFIX:
        left, right = print_expression(parts[0], own - 1), print_expression(parts[1], own)
        written = f"{left} {INFIX[op]} {right}"
    elif op == "leaf":
        written = print_leaf(expression)
    elif op in ("not", "absence"):
        end = print_expression(parts[2]) if op == "not" else "+ " + quote_string(write_duration(expression.amount))
        written = f"not({print_expression(parts[0])})[{print_expression(parts[1])}, {end}]"
    elif op in TRANSACTION:
        written = op
    else:
        written = f"{op.upper() if op in ('a', 'a*', 'p', 'p*') else op}({', '.join(arguments_of(expression))})"
    return f"({written})" if own <= binding else written


def arguments_of(expression: Expression) -> list[str]:
    """Return the printed arguments of an operator that is written like a function."""
    op, parts = expression.op, [print_expression(part) for part in expression.parts]
    if op == "any":
        return [str(expression.amount), *parts]
    if op == "repeat":
        return [*parts, str(expression.amount), *([str(expression.upper)] if expression.upper else [])]
    if op in ("p", "p*"):
        return [parts[0], quote_string(write_duration(expression.amount)), parts[1]]
    if op == "plus":
        return [*parts, quote_string(write_duration(expression.amount))]
    if op == "at":
        return [quote_string(write_time(expression.amount))]
    if op == "every":
        return [quote_string(write_duration(expression.amount))]
    return [quote_string(expression.text)] if op == "cron" else parts


def print_leaf(leaf: Expression) -> str:
    """Return a leaf as text."""
    written = f"{leaf.moment} " if leaf.moment else ""
    written += print_name(leaf.type)
    if leaf.source:
        written += "@" + print_name(leaf.source)
    if leaf.predicate:
        written += f" ({leaf.predicate})"
    return f"{written} {print_name(leaf.alias)}" if leaf.alias else written


def print_name(name: str) -> str:
    """Return a name as text, quoted where it would be read as something else."""
    plain = PLAIN_NAME_RE.fullmatch(name) and name not in OPERATOR_WORDS
    return name if plain else quote_name(name)
