"""Find the names that a filter uses."""

from typing import NamedTuple, Optional

from filter_literals import type_tokens
from keywords import COLUMN_ONLY, KEYWORDS, NOT_A_COLUMN
from lexer import Token
from safe_filter import OPERATOR_WORDS, SAFE_TYPES, SafeNames
from token_lists import hide_dollars, partners, quote_name

# Key words that are called like a function and are one in the catalogue.
CALLED_WORDS = frozenset("left right extract normalize overlay position substring trim".split())
NOT_CALLED = NOT_A_COLUMN | COLUMN_ONLY


class Scope(NamedTuple):
    """Hold the names a filter may refer to."""

    type_name: str
    attribute_names: frozenset[str]

    def reference(self, tokens: list[Token]) -> Optional[Token]:
        """Return the attribute that the tokens refer to, if they are just that, written in full."""
        if len(tokens) == 1 and tokens[0].kind == "attribute":
            return tokens[0]
        if len(tokens) == 3 and tokens[1].symbol(".") and tokens[0].value == self.type_name:
            name = tokens[2]
        elif len(tokens) == 1 and not tokens[0].word(*NOT_A_COLUMN):
            name = tokens[0]
        else:
            return None
        if tokens[0].kind not in ("ident", "quoted") or name.value not in self.attribute_names:
            return None
        return attribute_token(self.type_name, name.value)


def attribute_token(type_name: str, name: str) -> Token:
    """Return a reference to an attribute, qualified and quoted."""
    return Token("attribute", f"{hide_dollars(quote_name(type_name))}.{hide_dollars(quote_name(name))}", name)


def guess_names(tokens: list[Token], scope: Scope) -> SafeNames:
    """Return what a filter seems to use, told from the tokens alone; sub-selects are not told apart."""
    names = SafeNames([], set(), set(), set())
    add_operators(tokens, names)
    in_type = add_types(tokens, names)
    for i, token in enumerate(tokens):
        before = tokens[i - 1] if i else None
        after = tokens[i + 1] if i + 1 < len(tokens) else None
        if token.kind not in ("ident", "quoted") or i in in_type or (before and before.word("as")):
            continue
        if after and after.symbol("("):
            if token.kind == "quoted" or token.value in CALLED_WORDS or token.value not in NOT_CALLED:
                names.functions.add("btrim" if token.word("trim") else token.value)
        elif scope.reference([token]) and not (before and before.symbol(".")):
            names.references.append((i, 1, token.value))
        elif i > 1 and scope.reference(tokens[i - 2 : i + 1]):
            names.references.append((i - 2, 3, token.value))
    return names


def add_operators(tokens: list[Token], names: SafeNames) -> None:
    """Note the operators, also those that are written as words."""
    for i, token in enumerate(tokens):
        after = tokens[i + 1] if i + 1 < len(tokens) else None
        word = "not " + token.value if i and tokens[i - 1].word("not") else token.value
        if token.kind == "operator":
            names.operators.add(token.value)
        elif token.kind == "ident" and word in OPERATOR_WORDS:
            names.operators.update(OPERATOR_WORDS[word].split())
        elif token.word("distinct") and after and after.word("from"):
            names.operators.add("=")


def add_types(tokens: list[Token], names: SafeNames) -> set[int]:
    """Note the types of casts and of typed literals; return the indexes of their tokens."""
    pairs = partners(tokens)
    found: set[int] = set()
    for i, token in enumerate(tokens[:-1]):
        if token.symbol("::") or (token.word("as") and in_cast(tokens, i, pairs)):
            found.update(add_type(tokens, i + 1, pairs, names))
        elif tokens[i + 1].kind == "string" and may_be_type(token):
            found.update(add_type(tokens, i, pairs, names))
    return found


def may_be_type(token: Token) -> bool:
    """Tell whether a token may be the name of a type before a string."""
    return token.kind == "quoted" or (token.kind == "ident" and token.value not in KEYWORDS - SAFE_TYPES.keys())


def in_cast(tokens: list[Token], i: int, pairs: dict[int, int]) -> bool:
    """Tell whether token i stands in the parentheses of a CAST."""
    openings = [at for at, partner in pairs.items() if at < i < partner]
    return bool(openings) and max(openings) > 0 and tokens[max(openings) - 1].word("cast")


def add_type(tokens: list[Token], start: int, pairs: dict[int, int], names: SafeNames) -> range:
    """Note the type whose name starts at a token; return the indexes of its tokens."""
    span = type_tokens(tokens, start, pairs)
    words = [tokens[i].value for i in span if tokens[i].kind in ("ident", "quoted")]
    if words[:2] == ["double", "precision"]:
        words = ["float8"]
    elif words[1:2] == ["varying"]:
        words = ["varchar"] if words[0] != "bit" else ["varbit"]
    elif words[1:2] == ["with"]:
        words = [words[0] + "tz"]
    elif words[1:2] == ["without"]:
        words = words[:1]
    if words:
        names.types.add(SAFE_TYPES.get(words[-1], words[-1]))
    return span
