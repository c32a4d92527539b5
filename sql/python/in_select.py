"""Rewrite `attribute IN (SELECT column FROM …)` as EXISTS, whose constants may become parameters.

With a parameter inside, PostgreSQL runs an IN as a subplan for each event; an EXISTS it joins by hash.
"""

from typing import Optional

from filter_literals import mark_slots
from lexer import Token
from token_lists import partners, top_level

# What may not stand in the sub-select beside SELECT column FROM … WHERE …
OTHER_CLAUSES = (
    "group", "having", "window", "union", "intersect", "except", "order", "limit", "offset", "fetch", "for", "into",
    "with", "select", "table",
)


def rewrite_in_select(
    tokens: list[Token], reference: Token, length: int, type_name: str
) -> Optional[list[Token]]:
    """Return `EXISTS (SELECT 1 FROM … WHERE … AND (column) = reference)`, or None when that is not known to be the same.

    The tokens are one conjunct, its first `length` ones refer to an attribute, which `reference` writes in full. As a
    conjunct of a filter, unknown and false are the same, so the two forms select the same events.
    """
    if not (len(tokens) > length + 3 and tokens[length].word("in") and tokens[length + 1].symbol("(")):
        return None
    if partners(tokens)[length + 1] != len(tokens) - 1:
        return None
    inside = tokens[length + 2 : -1]
    outer = top_level(inside)
    froms = [i for i in outer if inside[i].word("from")]
    wheres = [i for i in outer if inside[i].word("where")]
    if not (inside[0].word("select") and froms and len(wheres) <= 1 and (not wheres or froms[0] < wheres[0])):
        return None
    if any(inside[i].word(*OTHER_CLAUSES) for i in outer[1:]) or any(inside[i].symbol(",") for i in outer if i < froms[0]):
        return None
    column = plain_column(inside[1 : froms[0]])
    end = wheres[0] if wheres else len(inside)
    sources = inside[froms[0] : end]
    if column is None or len(sources) < 2 or any(names(token, type_name) for token in sources):
        return None
    condition = mark_slots(inside[end + 1 :])
    if wheres and not condition:
        return None
    if any(condition[i].word("or") for i in top_level(condition)):
        condition = [symbol("("), *condition, symbol(")")]
    return [
        word("exists"), symbol("("), word("select"), Token("integer", "1", "1"), *sources, word("where"),
        *condition, *([word("and")] if condition else []),
        symbol("("), *column, symbol(")"), Token("operator", "=", "="), reference, symbol(")"),
    ]  # fmt: skip


def plain_column(output: list[Token]) -> Optional[list[Token]]:
    """Return the column that is all a sub-select puts out, without DISTINCT, ALL and label; None if it is not just one."""
    if output and output[0].word("distinct", "all"):
        output = output[1:]
    if len(output) > 2 and output[-2].word("as") and output[-1].kind in ("ident", "quoted"):
        output = output[:-2]
    column = all(
        token.symbol(".") if i % 2 else token.kind in ("ident", "quoted") for i, token in enumerate(output)
    )
    return output if column and len(output) in (1, 3, 5) and not output[0].word("null", "true", "false") else None


def names(token: Token, type_name: str) -> bool:
    """Tell whether a token is the name of the event type, which would capture the reference."""
    return token.kind in ("ident", "quoted") and token.value == type_name


def word(value: str) -> Token:
    """Return a key word."""
    return Token("ident", value, value)


def symbol(value: str) -> Token:
    """Return a symbol."""
    return Token("symbol", value, value)
