"""Write out references to a whole event, which the code that asks a filter has not got in one piece."""

from keywords import NOT_A_COLUMN
from lexer import Token
from token_lists import quote_name


def write_whole_rows(tokens: list[Token], type_name: str, attributes: list[str]) -> list[Token]:
    """Return the tokens with the name of the event type, where it stands for the event, as its attributes.

    `quote is not null` asks each attribute, as PostgreSQL does; anywhere else it becomes a row of the type.
    A filter with a sub-select stays as it is, since the name may stand for something of its own there.
    """
    if not attributes or type_name in attributes or any(token.word("select", "table", "values") for token in tokens):
        return tokens
    written: list[Token] = []
    i = 0
    while i < len(tokens):
        length = whole_row(tokens, i, type_name)
        if not length:
            written.append(tokens[i])
            i += 1
            continue
        i += length
        test = null_test(tokens, i)
        written += compare(test, type_name, attributes) if test else make_row(type_name, attributes)
        i += len(test)
    return written


def whole_row(tokens: list[Token], i: int, type_name: str) -> int:
    """Return how many tokens from i on stand for the event, `quote` or `quote.*`; 0 when they are something else."""
    token = tokens[i]
    named = token.value == type_name and token.kind in ("ident", "quoted") and not token.word(*NOT_A_COLUMN)
    before, after = tokens[i - 1] if i else None, tokens[i + 1] if i + 1 < len(tokens) else None
    if not named or (before and (before.symbol(".", "::") or before.word("as") or before.word("collate"))):
        return 0
    if after and after.symbol("."):
        star = tokens[i + 2] if i + 2 < len(tokens) else None
        return 3 if star and star.kind == "operator" and star.value == "*" else 0
    return 0 if after and (after.symbol("(") or after.kind == "string") else 1


def null_test(tokens: list[Token], i: int) -> list[Token]:
    """Return the tokens of IS [NOT] NULL at i, or none."""
    if i < len(tokens) and tokens[i].word("isnull", "notnull"):
        return tokens[i : i + 1]
    for words in (["is", "null"], ["is", "not", "null"]):
        part = tokens[i : i + len(words)]
        if len(part) == len(words) and all(token.word(word) for token, word in zip(part, words)):
            return part
    return []


def compare(test: list[Token], type_name: str, attributes: list[str]) -> list[Token]:
    """Return the test of all attributes; a composite one is null or not as a whole, as in a test of a row."""
    null = test[0].word("isnull") or len(test) == 2
    words = ["is", "not", "distinct", "from", "null"] if null else ["is", "distinct", "from", "null"]
    found = [Token("symbol", "(", "(")]
    for name in attributes:
        if len(found) > 1:
            found.append(Token("ident", "and", "and"))
        found += [*attribute(type_name, name), *(Token("ident", word, word) for word in words)]
    return [*found, Token("symbol", ")", ")")]


def make_row(type_name: str, attributes: list[str]) -> list[Token]:
    """Return a row of the event type."""
    found = [Token("ident", "row", "row"), Token("symbol", "(", "(")]
    for name in [*attributes, "_producer", "_producer_seq"]:
        if len(found) > 2:
            found.append(Token("symbol", ",", ","))
        found += attribute(type_name, name)
    return [*found, Token("symbol", ")", ")"), Token("symbol", "::", "::"), *attribute("pgps_event", type_name)]


def attribute(qualifier: str, name: str) -> list[Token]:
    """Return a qualified name."""
    return [
        Token("quoted", quote_name(qualifier), qualifier),
        Token("symbol", ".", "."),
        Token("quoted", quote_name(name), name),
    ]
