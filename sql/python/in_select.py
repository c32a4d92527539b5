"""Rewrite `attribute IN (SELECT column FROM ..)` as EXISTS, whose constants may become parameters.

With a parameter inside, PostgreSQL runs an IN as a subplan for each event; an EXISTS it joins by hash.
"""

from typing import NamedTuple, Optional

from filter_literals import mark_slots
from keywords import NOT_A_COLUMN
from lexer import Token
from token_lists import partners, top_level

# What may not stand in the sub-select beside SELECT column FROM .. WHERE ..
OTHER_CLAUSES = (
    "group",
    "having",
    "window",
    "union",
    "intersect",
    "except",
    "order",
    "limit",
    "offset",
    "fetch",
    "for",
    "into",
    "with",
    "select",
    "table",
)


class Select(NamedTuple):
    """Hold the parts of a sub-select; the sources begin with FROM."""

    column: list[Token]
    sources: list[Token]
    condition: list[Token]


def rewrite_in_select(tokens: list[Token], reference: Token, length: int, type_name: str) -> Optional[list[Token]]:
    """Return `EXISTS (SELECT 1 FROM .. WHERE .. AND (column) = reference)`, or None when that may differ.

    The tokens are one conjunct, its first `length` ones refer to an attribute, which `reference` writes in
    full. For a conjunct of a filter unknown and false are the same, so both forms select the same events.
    """
    if not (len(tokens) > length + 3 and tokens[length].word("in") and tokens[length + 1].symbol("(")):
        return None
    select = read_select(tokens[length + 2 : -1]) if partners(tokens)[length + 1] == len(tokens) - 1 else None
    if select is None or any(names(token, type_name) for token in select.sources):
        return None
    condition = mark_slots(select.condition)
    if any(condition[i].word("or") for i in top_level(condition)):
        condition = [symbol("("), *condition, symbol(")")]
    equal = [symbol("("), *select.column, symbol(")"), Token("operator", "=", "="), reference]
    where = [*condition, word("and"), *equal] if condition else equal
    head = [word("exists"), symbol("("), word("select"), Token("integer", "1", "1")]
    return [*head, *select.sources, word("where"), *where, symbol(")")]


def read_select(tokens: list[Token]) -> Optional[Select]:
    """Return the parts of SELECT column FROM .. [WHERE ..], or None for any other query."""
    outer = top_level(tokens)
    froms = [i for i in outer if tokens[i].word("from")]
    wheres = [i for i in outer if tokens[i].word("where")] or [len(tokens)]
    if not tokens[0].word("select") or any(tokens[i].word(*OTHER_CLAUSES) for i in outer[1:]):
        return None
    if not froms or not froms[0] + 1 < wheres[0] or wheres[0] == len(tokens) - 1 or len(wheres) > 1:
        return None
    column = plain_column(tokens[1 : froms[0]])
    return Select(column, tokens[froms[0] : wheres[0]], tokens[wheres[0] + 1 :]) if column else None


def plain_column(output: list[Token]) -> Optional[list[Token]]:
    """Return the one column that a sub-select puts out, without DISTINCT and label, or None."""
    if output and output[0].word("distinct", "all"):
        output = output[1:]
    if len(output) > 2 and output[-2].word("as") and output[-1].kind in ("ident", "quoted"):
        output = output[:-2]
    if len(output) not in (1, 3, 5) or output[0].word(*NOT_A_COLUMN):
        return None
    parts = all(token.kind in ("ident", "quoted") for token in output[::2])
    return output if parts and all(token.symbol(".") for token in output[1::2]) else None


def names(token: Token, type_name: str) -> bool:
    """Tell whether a token is the name of the event type, which would capture the reference."""
    return token.kind in ("ident", "quoted") and token.value == type_name


def word(value: str) -> Token:
    """Return a key word."""
    return Token("ident", value, value)


def symbol(value: str) -> Token:
    """Return a symbol."""
    return Token("symbol", value, value)
