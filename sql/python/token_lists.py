"""Look at and write out lists of SQL tokens: brackets, operands, source text in one normal form."""

import re

from keywords import KEYWORDS, NOT_A_COLUMN
from lexer import SqlTextError, Token

NESTING = 100  # of brackets and CASE together; the readers below are recursive
CLOSERS = {")": "(", "]": "["}
DOLLAR_DIGIT_RE = re.compile(r"\$(?=[0-9])")
PLAIN_NAME_RE = re.compile(r"[a-z_][a-z0-9_]*")
# Reserved words that are a value, or end one.
VALUE_WORDS = frozenset(
    "null true false end isnull notnull current_catalog current_date current_role current_schema current_time"
    " current_timestamp current_user localtime localtimestamp session_user system_user user".split()
)
# Reserved words that belong to a query and never to an expression outside parentheses.
QUERY_WORDS = (
    "select",
    "table",
    "union",
    "intersect",
    "except",
    "where",
    "group",
    "having",
    "window",
    "order",
    "limit",
    "offset",
    "fetch",
    "into",
    "returning",
)
INT8_MAX = 2**63 - 1


def check_brackets(tokens: list[Token], what: str) -> None:
    """Raise SqlTextError unless all parentheses and square brackets pair up; `what` names the text.

    42601 for a bracket without its partner, 54000 for more than 100 levels of brackets and CASE.
    """
    opened: list[Token] = []
    cases = 0
    for token in tokens:
        if token.symbol("(", "["):
            opened.append(token)
        elif token.symbol(")", "]") and (not opened or opened.pop().value != CLOSERS[token.value]):
            raise SqlTextError(
                f'unbalanced "{token.value}" in the {what}',
                token.position,
                f"Each {token.value} needs its {CLOSERS[token.value]} before it.",
            )
        cases = max(cases + token.word("case") - token.word("end"), 0)
        if len(opened) + cases > NESTING:
            raise SqlTextError(
                f"the {what} is nested deeper than {NESTING} levels",
                token.position,
                "Write it with fewer parentheses.",
                sqlstate="54000",
            )
    if opened:
        raise SqlTextError(
            f'unclosed "{opened[-1].value}" in the {what}',
            opened[-1].position,
            "Close every parenthesis and square bracket.",
        )


def partners(tokens: list[Token]) -> dict[int, int]:
    """Return for the index of each bracket the index of its partner; the brackets must have been checked."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for i, token in enumerate(tokens):
        if token.symbol("(", "["):
            opened.append(i)
        elif token.symbol(")", "]"):
            found[i] = opened.pop()
            found[found[i]] = i
    return found


def top_level(tokens: list[Token]) -> list[int]:
    """Return the indexes of the tokens outside brackets and CASE, whose own tokens are left out too.

    An END closes nothing but a CASE between the same brackets: elsewhere the words may be labels of columns.
    """
    found = []
    opened: list[str] = []
    for i, token in enumerate(tokens):
        if token.symbol("(", "[") or token.word("case"):
            opened.append(token.value)
        elif token.symbol(")", "]"):
            while opened and opened.pop() == "case":
                pass
        elif token.word("end") and opened and opened[-1] == "case":
            opened.pop()
        elif not opened:
            found.append(i)
    return found


def starts_query(tokens: list[Token]) -> bool:
    """Tell whether tokens begin as a query does that does not begin with a word of QUERY_WORDS."""
    if not tokens:
        return False
    return tokens[0].word("with") or (tokens[0].word("values") and len(tokens) > 1 and tokens[1].symbol("("))


def operands_end(tokens: list[Token]) -> list[bool]:
    """Return for each token whether a value is complete behind it, so that an operator may follow.

    Tells a sign from a subtraction and the operator BETWEEN from a column of that name. In doubt: complete.
    """
    ends: list[bool] = []
    for i, token in enumerate(tokens):
        if token.kind == "symbol":
            ends.append(token.value in (")", "]"))
        elif token.kind == "ident":
            if token.value in NOT_A_COLUMN:
                ends.append(token.value in VALUE_WORDS)
            else:
                ends.append(not (token.value in ("between", "escape") and infix_position(tokens, ends, i)))
        else:
            ends.append(token.kind != "operator" or (i > 0 and tokens[i - 1].symbol(".")))
    return ends


def infix_position(tokens: list[Token], ends: list[bool], i: int) -> bool:
    """Tell whether token i stands where an operator is expected, NOT put aside; `ends` is known up to it."""
    if i > 1 and tokens[i - 1].word("not"):
        return ends[i - 2]
    return i > 0 and ends[i - 1]


def fold_signs(tokens: list[Token]) -> list[Token]:
    """Return the tokens with each minus sign made part of the number it belongs to.

    Not before `::`, which binds more tightly than a sign: `-32768::int2` overflows.
    """
    ends = operands_end(tokens)
    folded: list[Token] = []
    for i, token in enumerate(tokens):
        signed = (
            i > 0
            and token.kind in ("integer", "decimal")
            and tokens[i - 1].kind == "operator"
            and tokens[i - 1].value == "-"
            and (i == 1 or not ends[i - 2])
            and not (i + 1 < len(tokens) and tokens[i + 1].symbol("::", "[", "."))
        )
        if signed:
            folded[-1] = token._replace(value="-" + token.value, position=tokens[i - 1].position)
        else:
            folded.append(token)
    return folded


def literal_kind(token: Token) -> str:
    """Return string, integer (fits in int8 before its sign, as PostgreSQL reads it) or decimal."""
    if token.kind == "integer" and (len(token.value) > 20 or int(token.value.lstrip("-")) > INT8_MAX):
        return "decimal"
    return token.kind


def quote_name(name: str) -> str:
    """Return a name between double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quote_string(value: str) -> str:
    """Return a string constant that reads the same whatever standard_conforming_strings is."""
    quoted = "'" + value.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in value else quoted


def hide_dollars(quoted: str) -> str:
    """Return a quoted name or string in which no $ comes before a digit, so that only a parameter looks like one."""
    if not DOLLAR_DIGIT_RE.search(quoted):
        return quoted
    if quoted[0] == '"':
        return "U&" + DOLLAR_DIGIT_RE.sub(r"\\0024", quoted.replace("\\", "\\\\"))
    return DOLLAR_DIGIT_RE.sub(r"\\044", quoted if quoted[0] == "E" else "E" + quoted)


def write_token(token: Token) -> str:
    """Return a token in its one normal form."""
    if token.kind == "string":
        return hide_dollars(quote_string(token.value))
    if token.kind == "bits":
        return token.text[0].lower() + "'" + token.value + "'"
    if token.kind == "attribute":
        return token.text
    keyword = token.kind == "quoted" and token.value in KEYWORDS
    if keyword or (token.kind in ("ident", "quoted") and not PLAIN_NAME_RE.fullmatch(token.value)):
        return hide_dollars(quote_name(token.value))
    return token.value


def glued(token: Token, after: Token) -> bool:
    """Tell whether nothing stands between two tokens when written."""
    names = ("ident", "quoted")
    if token.symbol(":"):
        return False
    if token.symbol("(", "[", "::") or after.symbol(")", "]", ",", "::"):
        return True
    if token.symbol("."):
        return after.kind in names or after.value == "*"
    if after.symbol("."):
        return token.kind in names or token.symbol(")", "]")
    if after.symbol("("):
        return token.kind == "quoted" or (token.kind == "ident" and token.value not in SPACED_WORDS)
    return after.symbol("[") and (token.kind in names or token.symbol(")", "]"))


GLUED_WORDS = VALUE_WORDS | {"cast", "left", "right"}
SPACED_WORDS = NOT_A_COLUMN - GLUED_WORDS | {"between", "escape", "exists", "filter", "over", "values", "within"}


def write_tokens(tokens: list[Token], first_slot: int = 1) -> str:
    """Return tokens as text, single spaces where needed; slots are written as $n, from `first_slot` on."""
    parts: list[str] = []
    slot = first_slot
    for i, token in enumerate(tokens):
        if i and not glued(tokens[i - 1], token):
            parts.append(" ")
        if token.slot:
            parts.append(f"${slot}")
            slot += 1
        else:
            parts.append(write_token(token))
    return "".join(parts)
