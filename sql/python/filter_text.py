"""Take the text of a subscription's filter apart: shape, constants, what it uses, whether it can do harm."""

from typing import Any, Optional

from filter_literals import mark_slots
from filter_names import Scope, attribute_token, guess_names
from in_select import rewrite_in_select
from keywords import NOT_A_COLUMN
from lexer import SqlTextError, Token, clip, tokenize
from safe_filter import SafeNames, read_safe
from token_lists import (
    QUERY_WORDS,
    check_brackets,
    fold_signs,
    infix_position,
    literal_kind,
    operands_end,
    partners,
    starts_query,
    top_level,
    write_tokens,
)
from whole_row import write_whole_rows

FILTER_CHARACTERS = 100_000
# Operators, and what they are read from right to left.
MIRRORED = dict(zip("= <> < <= > >=".split(), "= <> > >= < <=".split()))
# What cannot fail, whatever the values: conjuncts of nothing else may be asked in any order.
HARMLESS_WORDS = frozenset(
    "and asymmetric between distinct false from ilike in is isnull like not notnull null or symmetric true"
    " unknown".split()
)
HARMLESS_OPERATORS = frozenset("= <> < <= > >= || ~~ ~~* !~~ !~~*".split())


def parse_filter(text: str, type_name: str, attribute_names: list[str]) -> dict[str, Any]:
    """Return the parts of a filter as a dict that can be written as JSON.

    text: the filter in one normal form.
    shape: conjuncts in one order, with $1, $2 .. for the constants.
    parameters: these constants, each {literal, value, kind}.
    safe: true when the filter can read nothing but the event.
    attributes, functions, operators, types: sorted names; as far as the text alone tells, unless safe.
    keys: the conjuncts `attribute operator $n`, each {attribute, operator, parameter}.
    in_select: true when an IN (SELECT ..) was rewritten.
    pushed: the conjuncts that a broker elsewhere may ask, as one filter; None when there are none.
    Raises SqlTextError: 42601, 22023 when empty, 54000 when too long or nested too deep.
    """
    tokens = strip_parentheses(write_whole_rows(read_filter(text), type_name, attribute_names))
    folded = fold_signs(tokens)
    safe = read_safe(folded, type_name, attribute_names)
    marked = mark_slots(folded)
    if safe:
        marked = write_references(marked, safe, type_name)
    scope = Scope(type_name, frozenset(attribute_names))
    conjuncts = [part for whole in split_conjuncts(marked) for part in simplify(whole, scope)]
    rewritten = [rewrite(conjunct, scope) for conjunct in conjuncts]
    in_select = any(new is not None for new in rewritten)
    conjuncts = order([new or old for new, old in zip(rewritten, conjuncts)])
    names = safe or guess_names(folded, scope)
    slots = [token for conjunct in conjuncts for token in conjunct if token.slot]
    return {
        "text": write_tokens(folded),
        "shape": write_shape(conjuncts),
        "parameters": [
            {
                "literal": write_tokens([slot._replace(slot=False)]),
                "value": slot.value,
                "kind": literal_kind(slot),
            }
            for slot in slots
        ],
        "safe": safe is not None,
        "attributes": sorted({name for _, _, name in names.references}),
        "functions": sorted(names.functions),
        "operators": sorted(names.operators),
        "types": sorted(names.types),
        "keys": find_keys(conjuncts, scope),
        "in_select": in_select,
        "pushed": write_tokens(folded) if safe else push(folded, type_name, attribute_names),
    }


def push(tokens: list[Token], type_name: str, attribute_names: list[str]) -> Optional[str]:
    """Return the conjuncts that read nothing but the event and cannot fail, joined by AND; None when none do.

    What may fail stays with the conjuncts that are to protect it.
    """
    parts = [
        write_tokens(conjunct)
        for conjunct in split_conjuncts(tokens)
        if harmless(conjunct) and read_safe(conjunct, type_name, attribute_names)
    ]
    return " and ".join(f"({part})" for part in parts) or None


def read_filter(text: str) -> list[Token]:
    """Return the tokens of a filter that cannot leave the parentheses it is put between.

    Names behind a dot or AS come back as quoted ones, since SQL lets them be key words there.
    """
    if len(text) > FILTER_CHARACTERS:
        raise SqlTextError(
            f"filter of {len(text)} characters is longer than {FILTER_CHARACTERS}",
            FILTER_CHARACTERS + 1,
            "Put the constants in a table and filter with IN (SELECT ..).",
            sqlstate="54000",
        )
    tokens = tokenize(text)
    if not tokens:
        raise SqlTextError(
            "the filter is empty",
            1,
            "Leave the filter out (NULL) to receive every event of the type.",
            sqlstate="22023",
        )
    read: list[Token] = []
    for token in tokens:
        behind_dot = bool(read) and read[-1].symbol(".")
        label = bool(read) and read[-1].word("as") and token.value in NOT_A_COLUMN
        is_name = token.kind == "ident" and (behind_dot or label)
        read.append(token._replace(kind="quoted") if is_name else token)
    check_brackets(read, "filter")
    refuse_strays(read)
    return read


def refuse_strays(tokens: list[Token]) -> None:
    """Raise SqlTextError 42601 for what has no place in a predicate, and what would make it more than one."""
    depth = brackets = 0
    for i, token in enumerate(tokens):
        depth += token.symbol("(", "[") - token.symbol(")", "]")
        brackets += token.symbol("[") - token.symbol("]")
        hint = None
        if token.symbol(";"):
            hint = "A filter is one SQL expression, not a statement."
        elif token.kind == "parameter":
            hint = "Write the value itself; filters that differ in values only are matched together."
        elif token.symbol("..", "{", "}") or (token.symbol(":") and not brackets):
            hint = "A filter is what may stand behind WHERE, without variables."
        elif token.symbol(",") and depth == 0:
            hint = "Join conditions with AND."
        elif depth == 0 and (token.word(*QUERY_WORDS) or (i == 0 and starts_query(tokens))):
            hint = "Give the predicate alone: what would stand behind WHERE."
        if hint:
            raise SqlTextError(f'syntax error in the filter at "{clip(token.text)}"', token.position, hint)


def strip_parentheses(tokens: list[Token]) -> list[Token]:
    """Return the tokens without parentheses around all of them; those of a row or a sub-select stay."""
    while len(tokens) > 2 and tokens[0].symbol("(") and partners(tokens)[0] == len(tokens) - 1:
        inside = tokens[1:-1]
        outer = top_level(inside)
        if starts_query(inside) or any(inside[i].symbol(",") or inside[i].word(*QUERY_WORDS) for i in outer):
            break
        tokens = inside
    return tokens


def write_references(tokens: list[Token], safe: SafeNames, type_name: str) -> list[Token]:
    """Return the tokens with each reference to an attribute qualified and quoted."""
    written: list[Token] = []
    at = 0
    for start, length, name in safe.references:
        written += [*tokens[at:start], attribute_token(type_name, name)]
        at = start + length
    return written + tokens[at:]


def split_conjuncts(tokens: list[Token]) -> list[list[Token]]:
    """Return the parts of a filter that are joined by AND, however they are put in parentheses."""
    tokens = strip_parentheses(tokens)
    outer = top_level(tokens)
    if any(tokens[i].word("or") for i in outer):
        return [tokens]
    ends = operands_end(tokens)
    parts: list[list[Token]] = []
    start = betweens = 0
    for i in outer:
        if tokens[i].word("between") and infix_position(tokens, ends, i):
            betweens += 1
        elif tokens[i].word("and") and betweens:
            betweens -= 1
        elif tokens[i].word("and"):
            parts.append(tokens[start:i])
            start = i + 1
    if not parts:
        return [tokens]
    return [conjunct for part in [*parts, tokens[start:]] for conjunct in split_conjuncts(part)]


def simplify(tokens: list[Token], scope: Scope) -> list[list[Token]]:
    """Return a conjunct as comparisons with the attribute on the left, two for a BETWEEN of literals."""
    if len(tokens) > 2 and tokens[0].slot and tokens[1].kind == "operator" and scope.reference(tokens[2:]):
        mirrored = MIRRORED.get(tokens[1].value)
        return [[*tokens[2:], Token("operator", mirrored, mirrored), tokens[0]]] if mirrored else [tokens]
    left, right = tokens[:-4], tokens[-4:]
    if scope.reference(left) and right[0].word("between") and right[1].slot and right[3].slot:
        at_least, at_most = Token("operator", ">=", ">="), Token("operator", "<=", "<=")
        return [[*left, at_least, right[1]], [*left, at_most, right[3]]]
    return [tokens]


def rewrite(conjunct: list[Token], scope: Scope) -> Optional[list[Token]]:
    """Return an IN (SELECT ..) as EXISTS where that is possible."""
    for length in (1, 3):
        reference = scope.reference(conjunct[:length])
        if reference:
            return rewrite_in_select(conjunct, reference, length, scope.type_name)
    return None


def order(conjuncts: list[list[Token]]) -> list[list[Token]]:
    """Return conjuncts in one order, whatever order they were written in.

    Those that cannot raise an error come first, sorted; the others follow as they stand, so that none of
    them sees a value from which a conjunct before it was to protect it, as in `b <> 0 and a / b > 2`.
    """

    def key(conjunct: list[Token]) -> tuple[bool, str]:
        return (False, write_shape([conjunct])) if harmless(conjunct) else (True, "")

    return sorted(conjuncts, key=key)


def harmless(conjunct: list[Token]) -> bool:
    """Tell whether a conjunct is made of comparisons of attributes and literals."""
    for i, token in enumerate(conjunct):
        if token.kind == "operator":
            known = token.value in HARMLESS_OPERATORS
        elif token.kind == "ident" and token.value in NOT_A_COLUMN:
            known = token.value in HARMLESS_WORDS
        elif token.kind == "symbol":
            known = token.value in ("(", ")", ",", ".")
        else:
            after = conjunct[i + 1] if i + 1 < len(conjunct) else None
            known = not (after and after.symbol("(") and token.kind in ("ident", "quoted"))
        if not known:
            return False
    return True


def write_shape(conjuncts: list[list[Token]]) -> str:
    """Return the conjuncts joined by AND, literals that may differ as $n."""
    parts: list[str] = []
    slot = 1
    for conjunct in conjuncts:
        part = write_tokens(conjunct, slot)
        slot += sum(token.slot for token in conjunct)
        if len(conjuncts) > 1 and any(conjunct[i].word("or") for i in top_level(conjunct)):
            part = f"({part})"
        parts.append(part)
    return " and ".join(parts)


def find_keys(conjuncts: list[list[Token]], scope: Scope) -> list[dict[str, Any]]:
    """Return the conjuncts by which an index could find the constants."""
    found: list[dict[str, Any]] = []
    slot = 0
    for conjunct in conjuncts:
        reference = scope.reference(conjunct[:-2])
        if reference and conjunct[-1].slot and conjunct[-2].value in ("=", "<", "<=", ">", ">="):
            found.append({"attribute": reference.value, "operator": conjunct[-2].value, "parameter": slot + 1})
        slot += sum(token.slot for token in conjunct)
    return found
