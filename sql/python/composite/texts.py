"""The texts beside an expression: partition keys, the filter and the attributes."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Optional

from composite.parser import plain_names
from composite.syntax import print_name
from lexer import SqlTextError, Token, clip, tokenize
from token_lists import check_brackets, top_level, write_tokens

CHARACTERS_BESIDE = 100_000
RESERVED_ATTRIBUTES = ("starts_at", "ends_at", "detected_at", "constituents")


class Condition(NamedTuple):
    """Hold one condition of a filter: its normal form, and the names of the leaves that it is about.

    given, at: as it was written, and at which character of the filter.
    """

    text: str
    names: tuple[str, ...]
    given: str = ""
    at: int = 1


class Attribute(NamedTuple):
    """Hold one attribute: name, SQL type and SQL expression, and the names of leaves in it; given, at: as there."""

    name: str
    type: str
    text: str
    names: tuple[str, ...]
    given: str = ""
    at: int = 1


def read_tokens(text: str, what: str) -> list[Token]:
    """Return the tokens of a text that is SQL but for its frame."""
    if len(text) > CHARACTERS_BESIDE:
        raise SqlTextError(f"the {what} is too long", 1, "Write a shorter one.", sqlstate="54000")
    tokens = tokenize(text)
    check_brackets(tokens, what)
    for token in tokens:
        if token.kind == "parameter" or token.symbol(";", "{", "}"):
            raise SqlTextError(f'syntax error at "{clip(token.text)}"', token.position, f"Give SQL as the {what}.")
    if not tokens:
        raise SqlTextError(f"the {what} is empty", 1, "Leave the argument out.")
    return plain_names(tokens)


def read_partition(text: str, leaf_count: int) -> tuple[tuple[str, ...], ...]:
    """Return the key attributes of each leaf: `symbol`, `symbol, ticker` or `(symbol, day), (ticker, d)`."""
    tokens = read_tokens(text, "partition key")
    groups = [column_names(part) for part in split_at_commas(tokens)]
    if len(groups) == 1:
        groups *= leaf_count
    if len(groups) != leaf_count:
        message = f"{len(groups)} partition keys for {leaf_count} leaves"
        hint = "Name one attribute that all leaves have, or one for each leaf; several columns go in parentheses."
        raise SqlTextError(message, 1, hint, sqlstate="22023")
    if len({len(group) for group in groups}) > 1:
        hint = "Give each leaf as many key attributes as the others."
        raise SqlTextError("partition keys of several lengths", 1, hint, sqlstate="22023")
    return tuple(groups)


def column_names(tokens: list[Token]) -> tuple[str, ...]:
    """Return the one name, or those between parentheses."""
    if tokens[0].symbol("(") and tokens[-1].symbol(")"):
        return tuple(name for part in split_at_commas(tokens[1:-1], tokens[0]) for name in column_names(part))
    if len(tokens) != 1 or tokens[0].kind not in ("ident", "quoted"):
        bad = tokens[1] if len(tokens) > 1 and tokens[0].kind in ("ident", "quoted") else tokens[0]
        message = f'syntax error at "{clip(bad.text)}"'
        raise SqlTextError(message, bad.position, "Name attributes, as symbol or (symbol, day).")
    return (tokens[0].value,)


def split_at_commas(tokens: list[Token], before: Optional[Token] = None) -> list[list[Token]]:
    """Return the parts between commas at top level; none may be empty."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += token.symbol("(", "[") - token.symbol(")", "]")
        if depth == 0 and token.symbol(","):
            parts.append([])
        else:
            parts[-1].append(token)
    if not all(parts):
        position = tokens[0].position if tokens else before.position if before else 1
        raise SqlTextError("nothing between two commas", position, "Leave out the comma that is too many.")
    return parts


def read_conditions(text: str, names: Mapping[str, str]) -> tuple[Condition, ...]:
    """Return the conditions of a filter that have to hold together; each is tested as soon as that is possible."""
    tokens = read_tokens(text, "filter")
    return tuple(
        Condition(write_tokens(part), names_in(part, names, "filter"), *place_of_text(part, text))
        for part in split_conditions(tokens)
    )


def place_of_text(tokens: list[Token], text: str) -> tuple[str, int]:
    """Return the part of a text that tokens were read from, and at which character it begins."""
    first, last = tokens[0], tokens[-1]
    return text[first.position - 1 : last.position - 1 + len(last.text)], first.position


def split_conditions(tokens: list[Token]) -> list[list[Token]]:
    """Return the operands of AND at top level; one part when there is an OR beside it."""
    top = top_level(tokens)
    if any(tokens[i].word("or") for i in top):
        return [tokens]
    parts: list[list[Token]] = [[]]
    between = 0
    inside = set(top)
    for i, token in enumerate(tokens):
        between += i in inside and token.word("between")
        if i in inside and token.word("and"):
            if not between:
                parts.append([])
                continue
            between -= 1
        parts[-1].append(token)
    return parts if all(parts) else [tokens]


def names_in(tokens: list[Token], names: Mapping[str, str], what: str) -> tuple[str, ...]:
    """Return the names of leaves in an SQL expression; SqlTextError for one that can never stand for an event."""
    found: set[str] = set()
    query = any(token.word("select") for token in tokens)
    for i, token in enumerate(tokens):
        if token.kind not in ("ident", "quoted") or is_no_column(tokens, i):
            continue
        after = tokens[i + 1] if i + 1 < len(tokens) else None
        if after is not None and after.symbol("("):
            continue
        bound = names.get(token.value)
        qualifies = after is not None and after.symbol(".") and not calls(tokens, i + 2)
        if bound in ("always", "maybe"):
            found.add(token.value)
        elif qualifies and (bound == "never" or not query):
            raise unbound_name(token, bound, what, names)
    return tuple(sorted(found))


def is_no_column(tokens: list[Token], at: int) -> bool:
    """Tell whether a name belongs to what stands before it: a dot, or the place of a type, collation or operator."""
    before = tokens[at - 1] if at else None
    if before is None:
        return False
    opens = at > 1 and before.symbol("(") and tokens[at - 2].word("operator")
    return opens or before.symbol(".", "::") or before.word("as", "collate")


def calls(tokens: list[Token], at: int) -> bool:
    """Tell whether a name behind a dot is that of a function, or of a schema's table."""
    return at + 1 < len(tokens) and tokens[at + 1].symbol("(", ".")


def unbound_name(token: Token, bound: Optional[str], what: str, names: Mapping[str, str]) -> SqlTextError:
    """Return the error for a name that stands for no event."""
    name = print_name(token.value)
    if bound == "ambiguous":
        hint = "Give each of these leaves an alias."
        return SqlTextError(f"{name} could be several leaves", token.position, hint, sqlstate="42702")
    if bound == "never":
        message = f"alias {name} in the {what} is never bound"
        hint = "What must not come, and what only closes a window, is no part of what is detected."
        return SqlTextError(message, token.position, hint, sqlstate="42704")
    known = ", ".join(print_name(name) for name, bound in names.items() if bound in ("always", "maybe"))
    message = f"alias {name} in the {what} does not exist"
    return SqlTextError(message, token.position, f"The expression has: {known or 'none'}.", sqlstate="42704")


def read_attributes(text: str, names: Mapping[str, str]) -> tuple[Attribute, ...]:
    """Return the attributes of `name type = expression, ...`."""
    found: list[Attribute] = []
    for part in split_at_commas(read_tokens(text, "list of attributes")):
        equals = next((i for i, token in enumerate(part) if token.kind == "operator" and token.value == "="), 0)
        hint = "Write each as: name type = expression."
        if part[0].kind not in ("ident", "quoted") or equals < 2 or equals + 1 == len(part):
            raise SqlTextError(f'syntax error at "{clip(part[0].text)}"', part[0].position, hint)
        name = part[0].value
        if name in RESERVED_ATTRIBUTES or name in [attribute.name for attribute in found]:
            message = f"attribute {print_name(name)} is there already"
            raise SqlTextError(message, part[0].position, "Choose another name.", sqlstate="42701")
        value = part[equals + 1 :]
        used = names_in(value, names, "list of attributes")
        found.append(
            Attribute(name, write_tokens(part[1:equals]), write_tokens(value), used, *place_of_text(value, text))
        )
    return tuple(found)


def rename(condition: Condition, new: Callable[[str], str]) -> str:
    """Return the text of a condition with other names for its leaves."""
    tokens = plain_names(tokenize(condition.text))
    return write_tokens(
        [
            token._replace(kind="quoted", value=new(token.value), text="")
            if token.kind in ("ident", "quoted")
            and token.value in condition.names
            and not is_no_column(tokens, i)
            and not (i + 1 < len(tokens) and tokens[i + 1].symbol("("))
            else token
            for i, token in enumerate(tokens)
        ]
    )
