"""Tell which literals of a filter may become parameters."""

from typing import Optional

from keywords import NOT_A_COLUMN
from lexer import Token
from token_lists import QUERY_WORDS, infix_position, operands_end, partners, starts_query, top_level

# A literal behind any other name belongs to it: date '2020-01-01', zone 'utc', first 5.
VALUE_FOLLOWS = NOT_A_COLUMN - {"limit", "offset", "fetch", "localtime", "localtimestamp", "collate"}
# What asks for constants between its parentheses in PostgreSQL's grammar.
CONSTANTS_ONLY = ("extract", "localtime", "localtimestamp", "current_time", "current_timestamp")


def mark_slots(tokens: list[Token]) -> list[Token]:
    """Return the tokens with `slot` set on each literal that may be replaced by a parameter.

    Stay as they are: typed literals, precisions of types, subscripts and arrays, everything in a
    sub-select, and numbers of LIMIT, OFFSET and FETCH.
    """
    fixed = fixed_literals(tokens)
    literals = ("string", "integer", "decimal")
    return [t._replace(slot=True) if t.kind in literals and i not in fixed else t for i, t in enumerate(tokens)]


def fixed_literals(tokens: list[Token]) -> set[int]:
    """Return the indexes of tokens that must not become parameters; not only of literals."""
    fixed: set[int] = set()
    pairs = partners(tokens)
    ends = operands_end(tokens)
    for i, token in enumerate(tokens):
        before = tokens[i - 1] if i else None
        if token.symbol("[") or (token.symbol("(") and (is_select(tokens, i, pairs[i]) or wants_constants(before))):
            fixed.update(range(i, pairs[i]))
        elif token.symbol("::") or token.word("as"):
            fixed.update(type_tokens(tokens, i + 1, pairs))
        elif before is None or token.kind not in ("string", "integer", "decimal"):
            continue
        elif before.symbol(")") and token.kind == "string":
            fixed.update(range(pairs[i - 1], i + 1))  # numeric(10,2) '1.5'
        elif before.word("between"):
            if not infix_position(tokens, ends, i - 1):
                fixed.add(i)
        elif before.kind in ("ident", "quoted") and not before.word(*VALUE_FOLLOWS):
            fixed.add(i)
    return fixed


def wants_constants(before: Optional[Token]) -> bool:
    """Tell whether the parenthesis behind a token takes constants only."""
    return before is not None and before.word(*CONSTANTS_ONLY)


def is_select(tokens: list[Token], opening: int, closing: int) -> bool:
    """Tell whether two parentheses hold a sub-select, a set operation or VALUES."""
    inside = tokens[opening + 1 : closing]
    return starts_query(inside) or any(inside[i].word(*QUERY_WORDS) for i in top_level(inside))


def type_tokens(tokens: list[Token], start: int, pairs: dict[int, int]) -> range:
    """Return the indexes of the name of a type, with precision and array brackets, that starts at `start`."""
    at = start
    words = 0
    while at < len(tokens):
        token = tokens[at]
        if token.symbol("("):
            if words == 0:
                break
            at = pairs[at] + 1
        elif token.symbol("["):
            at = pairs[at] + 1
        elif token.symbol(".") or (token.kind in ("ident", "quoted") and (words == 0 or continues_type(tokens, at))):
            words += 1
            at += 1
        else:
            break
    return range(start, at)


def continues_type(tokens: list[Token], at: int) -> bool:
    """Tell whether a name that is not the first of a type belongs to it."""
    return tokens[at - 1].symbol(".") or tokens[at].word(
        "precision", "varying", "character", "char", "with", "without", "time", "zone", "second"
    )
